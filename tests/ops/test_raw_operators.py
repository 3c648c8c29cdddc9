"""Direct calls of the operators, without the Python checks: damaged operands raise and the process survives."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import pytest
import torch
from children import execute
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.backend import loader
from sinpe_ext.operations import plans as packed_plan

B, S, D = 2, 5, 8
ENCODING = sinpe.Encoding(D)
MAX = 2**63 - 1


@pytest.fixture(autouse=True)
def need_kernels() -> None:
    if loader.setting() == "eager" or loader.resolve("cpu").backend != "compiled":
        pytest.skip("the compiled backend is not in use")


def op(name: str) -> Any:
    return getattr(torch.ops.sinpe_ext, name).default


def words() -> Tensor:
    return packed_plan.pack_plan(ENCODING)


def x(*shape: int) -> Tensor:
    return torch.ones(shape or (B, S, D))


def whole(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def shrunk(t: Tensor) -> Tensor:
    t.untyped_storage().resize_(t.untyped_storage().nbytes() // 2)
    return t


NONE = None, None
ROWS = 0, False
SHRUNK: dict[str, tuple[str, Any]] = {  # operand -> a call in which half of its storage was freed
    "x": ("add", lambda: (shrunk(x()), words(), *NONE, *NONE, None, *ROWS, 1.0, 0, 0, [])),
    "plan": ("add", lambda: (x(), shrunk(words().clone()), *NONE, *NONE, None, *ROWS, 1.0, 0, 0, [])),
    "out": ("add_out", lambda: (x(), words(), *NONE, *NONE, None, *ROWS, 1.0, 0, 0, [], shrunk(x()))),
    "out of table": ("table_out", lambda: (words(), 0, shrunk(x(S, D)))),
    "positions": ("encode", lambda: (shrunk(whole(S)), words(), D, torch.float32)),
    "positions of rows": (
        "add_out",
        lambda: (x(), words(), shrunk(whole(1, S)), None, *NONE, None, *ROWS, 1.0, 0, 0, [], x()),
    ),
    "padding_mask": (
        "add_out",
        lambda: (x(), words(), None, shrunk(whole(1, S).bool()), *NONE, None, *ROWS, 1.0, 0, 0, [], x()),
    ),
    "seed": ("dropout", lambda: (x(), shrunk(whole(2)[1:]), 9000, 1.0, [])),
    "alpha": ("add", lambda: (x(), words(), *NONE, shrunk(x(2)[1:]), None, None, *ROWS, 1.0, 0, 0, [])),
    "angular_frequencies": ("row_dots", lambda: (x(), words(), *NONE, shrunk(x(D).double()), None, *ROWS, 0, [])),
    "terms": ("tree_sum", lambda: (shrunk(x(D).double()),)),
    "ids": ("embed_backward", lambda: (x(), shrunk(whole(B, S)), None, 3, -1, 1.0, 0, [])),
    "grad": ("embed_backward", lambda: (shrunk(x()), whole(B, S), None, 3, -1, 1.0, 0, [])),
    "weight": (
        "embed",
        lambda: (whole(S), shrunk(x(3, D)), words(), *NONE, None, None, *ROWS, 1.0, -1, False, 0, []),
    ),
}


@pytest.mark.bad_input(17, "compiled")
@pytest.mark.parametrize("operand", SHRUNK)
def test_operand_with_shrunk_storage_is_rejected(operand: str) -> None:
    name, make = SHRUNK[operand]
    wanted = (
        f"^{operand.split()[0]}: expected a tensor whose memory holds its elements, got .*; it was freed or resized"
    )
    with pytest.raises(RuntimeError, match=wanted):
        op(name)(*make())


@pytest.mark.bad_input(14, "compiled")
@pytest.mark.parametrize("length", [S - 1, S + 1, 1])
def test_positions_and_masks_of_another_length_are_rejected(length: int) -> None:
    positions, mask = torch.arange(length)[None], torch.zeros(B, length, dtype=torch.bool)
    for operands, name in (((positions, None), "positions"), ((None, mask), "padding_mask")):
        with pytest.raises(RuntimeError, match=rf"^{name}: expected the shape \({B} or 1, {S}\), got \(.*{length}\)"):
            op("add_out")(x(), words(), *operands, *NONE, None, *ROWS, 1.0, 0, 0, [], x())


def shared(dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor]:
    """An operand, and an x in the same memory."""
    memory = torch.ones(2 * B * S * D)
    operand = memory.view(dtype)[: math.prod(shape)].view(shape)
    return operand, memory[: B * S * D].view(B, S, D)


def over_words(words: Tensor) -> tuple[Tensor, Tensor]:
    """The plan or grid, and an x whose memory starts in the middle of it."""
    memory = torch.zeros(words.numel() + B * S * D, dtype=torch.int64)
    memory[: words.numel()] = words
    return memory[: words.numel()], memory[words.numel() // 2 :].view(torch.float32)[: B * S * D].view(B, S, D)


def overlaps() -> dict[str, tuple[str, tuple[Any, ...], Tensor]]:
    """operand -> operator and arguments, `out` last, overlapping the operand; and the operand."""
    words_of_grid, values = grid_operands()
    positions, x_positions = shared(torch.float32, 1, S)
    starts, x_starts = shared(torch.int64, B, 1)
    mask, x_mask = shared(torch.bool, 1, S)
    plan, x_plan = over_words(words())
    grid, x_grid = over_words(words_of_grid)
    both, x_values = shared(torch.float32, values.numel())
    return {
        "plan": ("add_out", (x(), plan, *NONE, *NONE, None, *ROWS, 1.0, 0, 0, [], x_plan), plan),
        "plan of a table": ("table_out", (plan, 0, x_plan[0]), plan),
        "positions": (
            "add_out", (x(), words(), positions, None, *NONE, None, *ROWS, 1.0, 0, 0, [], x_positions), positions,
        ),
        "starts": ("add_out", (x(), words(), starts, None, *NONE, None, 0, True, 1.0, 0, 0, [], x_starts), starts),
        "padding_mask": ("add_out", (x(), words(), None, mask, *NONE, None, *ROWS, 1.0, 0, 0, [], x_mask), mask),
        "grid": ("add_out", (x(), grid, *NONE, *NONE, values, *ROWS, 1.0, 0, 0, [], x_grid), grid),
        "axis_rows": ("add_out", (x(), words_of_grid, *NONE, *NONE, both, *ROWS, 1.0, 0, 0, [], x_values), both),
        "mask of a grid": (
            "add_out", (x(), words_of_grid, None, mask, *NONE, values, *ROWS, 1.0, 0, 0, [], x_mask), mask,
        ),
    }  # fmt: skip


def grid_operands() -> tuple[Tensor, Tensor]:
    """The packed grid of S places and D channels, and the values of its only axis."""
    words = torch.tensor([0x53494E504547, 14, 0, 1, 1, D, S * D, 0, S, 0, 0, 1, D, 0])
    return words, torch.ones(S * D)


OVERLAPS = ["plan", "plan of a table", "positions", "starts", "padding_mask", "grid", "axis_rows", "mask of a grid"]


@pytest.mark.bad_input(12, "compiled")
@pytest.mark.parametrize("operand", OVERLAPS)
def test_out_overlapping_an_operand_is_rejected(operand: str) -> None:
    """The kernels read these again after the checks: an `out` over the grid crashed the process."""
    name, arguments, read = overlaps()[operand]
    before = read.clone()
    with pytest.raises(RuntimeError, match="an out that overlaps an operand"):
        op(name)(*arguments)
    assert torch.equal(read, before)
    *rest, out = arguments
    op(name)(*rest, torch.empty_like(out))  # without overlap it works


def test_zero_channels_do_not_read_ids() -> None:
    """2^36 expanded ids: reading them would take minutes."""
    ids = torch.zeros(1, dtype=torch.int64).expand(2**36)
    grad = torch.ones(1, 0).expand(2**36, 0)
    begin = time.thread_time()
    assert op("embed_backward")(grad, ids, None, 4, -1, 1.0, 0, []).shape == (4, 0)
    assert time.thread_time() - begin < 1


@pytest.mark.bad_input(17, "compiled")
def test_products_beyond_int64() -> None:
    for arguments in ((2**62, D), (2**61, D), (MAX, D)):
        with pytest.raises(RuntimeError, match="out: expected a number of elements within int64|overflow|allocate"):
            op("table")(words(), -(2**62), arguments[0], arguments[1], torch.float32)
    seed = torch.tensor(5)
    for elements in (
        [0, 1, 1, 2**62],
        [0, MAX, 8, 1],
        [0, 40, -8, 1],
        [0, 2**62, 2**62, 1],
    ):
        with pytest.raises(
            RuntimeError, match="rng_offsets: expected steps of 0 or more to numbers that int64 holds, got others"
        ):
            op("dropout")(x(), seed, 9000, 1.0, elements)
    for first in (2**62, MAX, -1):  # part of a very large tensor: up to 64 unsigned bits
        op("dropout")(x(), seed, 9000, 1.0, [first, 40, 8, 1])
    assert op("encode")(torch.empty(0, 2**40, 2**20), words(), D, torch.float32).shape == (0, 2**40, 2**20, D)
    none = torch.empty(0).as_strided((0, 2**31, 2**31, S, D), (1, 1, 1, 1, 1))
    assert op("add")(none, words(), *NONE, *NONE, None, *ROWS, 1.0, 0, 0, []).shape == none.shape


ATTACK = """
import random, sys, torch
import sinpe_ext as sinpe
from sinpe_ext.operations import plans as packed_plan
draw = random.Random(int(sys.argv[1]))
assert sinpe.backend_info().device("cpu").backend == "compiled"
FAR = [0, 1, -1, 2, 7, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63)]
PLANS = [packed_plan.pack_plan(e) for e in (sinpe.Encoding(8), sinpe.convention("fairseq", 8), sinpe.Encoding(7))]
DTYPES = [torch.float32] * 5 + [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]

def plan():
    words = draw.choice(PLANS).clone()
    for _ in range(draw.choice([0, 1, 1, 3])):
        place = draw.randrange(20) if draw.random() < 0.7 else draw.randrange(len(words))
        words[place] = draw.choice([*FAR, int(words[place]) ^ (1 << draw.randrange(63))])
    return words[: draw.randrange(len(words))] if draw.random() < 0.1 else words

def tensor(*shape, dtype=None):
    shape = list(shape)
    if draw.random() < 0.2:
        shape[draw.randrange(len(shape))] = draw.choice([0, 1, 3, 9])
    if draw.random() < 0.1:
        shape.insert(0, 2)
    dtype = draw.choice(DTYPES) if dtype is None or draw.random() < 0.1 else dtype
    t = torch.zeros(4000).to(dtype)
    if draw.random() < 0.5:
        return torch.zeros(shape).to(dtype)
    strides = [draw.choice([0, 1, 8, 40]) if n > 1 else draw.choice([0, 1, 2**62, 2**63 - 1]) for n in shape]
    return t.as_strided(shape, strides, draw.choice([0, 1, 5]))

def some(make):
    return make() if draw.random() < 0.5 else None

positions = lambda: tensor(draw.choice([1, 2]), draw.choice([1, 5]), dtype=draw.choice([torch.int64, torch.float32]))
rows = lambda: (some(positions), some(lambda: tensor(2, 5, dtype=torch.bool)))
alpha, seed = lambda: some(lambda: tensor(1, dtype=torch.float32)), lambda: some(lambda: tensor(1, dtype=torch.int64))
start = lambda: (draw.choice(FAR), draw.random() < 0.3)
elements = lambda: [draw.choice(FAR) for _ in range(4)] if draw.random() < 0.5 else []
drop = lambda: (draw.choice([0, 9000, 65536, 65537, -1]), elements())
far = lambda: draw.choice(FAR)
extra = lambda: draw.choice([0, 0, 0, 2, 5, far()])
axis_rows = lambda: tensor(24) if draw.random() < 0.2 else None
x, ids = lambda: tensor(2, 5, 8), lambda: tensor(2, 5, dtype=torch.int64)
CALLS = {
    "table": lambda: (plan(), far(), draw.choice([0, 5, -1, 2**62]), draw.choice([8, 7, 0, -1]), torch.float32),
    "table_out": lambda: (plan(), draw.choice(FAR), tensor(5, 8)),
    "encode": lambda: (tensor(5, dtype=torch.int64), plan(), draw.choice([8, 7, 2**62]), draw.choice(DTYPES)),
    "dropout": lambda: (x(), seed(), drop()[0], 1.0, drop()[1]),
    "add": lambda: (x(), plan(), *rows(), alpha(), seed(), axis_rows(), *start(), 1.0, extra(), *drop()),
    "add_out": lambda: (x(), plan(), *rows(), alpha(), seed(), axis_rows(), *start(), 1.0, extra(), *drop(), x()),
    "row_dots": lambda: (x(), plan(), *rows(), some(lambda: tensor(8, dtype=torch.float64)), seed(), *start(), *drop()),
    "add_backward": lambda: (x(), plan(), *rows(), seed(), *start(), 1.0, *drop()),
    "tree_sum": lambda: (tensor(2, 5, dtype=draw.choice([torch.float64, torch.float32])),),
    "embed": lambda: (ids(), tensor(4, 8), plan(), *rows(), alpha(), seed(), *start(), 1.0, far(), False, *drop()),
    "embed_backward": lambda: (x(), ids(), seed(), draw.choice([4, 0, -1, 2**62]), draw.choice(FAR), 1.0, *drop()),
}
done = refused = 0
for _ in range(int(sys.argv[2])):
    name = draw.choice(list(CALLS))
    arguments = CALLS[name]()
    print(name, [tuple(a.shape) + a.stride() if isinstance(a, torch.Tensor) else a for a in arguments], file=sys.stderr)
    try:
        getattr(torch.ops.sinpe_ext, name).default(*arguments)
        done += 1
    except (RuntimeError, ValueError, TypeError):
        refused += 1
print(done, refused)
"""


@pytest.mark.bad_input(14, "compiled")
@pytest.mark.bad_input(16, "compiled")
def test_random_damage() -> None:
    """Changed plans, and wrong shapes, strides, dtypes and numbers: an error or a result, never a crash."""
    run = [sys.executable, "-W", "ignore", "-c", ATTACK, "0", "1500"]
    done = execute(run)
    passed, refused = map(int, done.stdout.split()[-2:])
    assert passed > 50 and refused > 500  # both outcomes occurred

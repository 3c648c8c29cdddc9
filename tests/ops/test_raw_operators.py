"""Direct calls of the operators, without the Python checks: damaged operands raise and the process survives."""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import pytest
import torch
from children import REPOSITORY, execute, library_environment
from test_registration import op, operands, samples
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.backend import loader
from sinpe_ext.operations.plans import pack_plan
from sinpe_ext.operator import OPERATORS

B, S, D = 2, 5, 8
MAX = 2**63 - 1


@pytest.fixture(autouse=True)
def need_kernels() -> None:
    if loader.setting() == "eager" or loader.resolve("cpu").backend != "compiled":
        pytest.skip("the compiled backend is not in use")


def call(name: str, *out: Tensor, **given: Any) -> Any:
    """Calls an operator; the plan is that of sinpe.Encoding(D) if none is given."""
    _, arguments = operands(name, *out, **({"plan": words()} | given if name not in NO_PLAN else given))
    return getattr(torch.ops.sinpe_ext, name).default(*arguments)


NO_PLAN = "dropout", "tree_sum", "embed_backward"


def words() -> Tensor:
    return pack_plan(sinpe.Encoding(D))


def x(*shape: int) -> Tensor:
    return torch.ones(shape or (B, S, D))


def whole(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def shrunk(t: Tensor) -> Tensor:
    t.untyped_storage().resize_(t.untyped_storage().nbytes() // 2)
    return t


def grid() -> dict[str, Tensor]:
    """A packed grid of S places and D channels, and the values of its only axis."""
    packed = torch.tensor([0x53494E504547, 14, 0, 1, 1, D, S * D, 0, S, 0, 0, 1, D, 0])
    return {"plan": packed, "axis_rows": torch.ones(S * D)}


FREED = "expected a tensor whose memory holds its elements, got .*; it was freed or resized"
LENGTH = rf"expected the shape \({B} or 1, {S}\), got \("
STEPS = "rng_offsets: expected steps of 0 or more to numbers that int64 holds, got others"
SIZE = "out: expected a number of elements within int64|overflow|allocate"
FLOAT32 = torch.float32
DROPS: dict[str, Any] = {"seed": torch.tensor(5), "drop_threshold": 9000}
DAMAGED: dict[str, tuple[str | None, Any]] = {  # message, call
    # shapes and types that do not fit
    **{
        f"positions of length {n}": (
            f"^positions: {LENGTH}.*{n}\\)", lambda n=n: call("add", x=x(), positions=whole(1, n)),
        )
        for n in (S - 1, S + 1, 1)
    },
    **{
        f"mask of length {n}": (
            f"^padding_mask: {LENGTH}.*{n}\\)", lambda n=n: call("add", x=x(), padding_mask=whole(B, n).bool()),
        )
        for n in (S - 1, S + 1, 1)
    },
    "dim": (None, lambda: call("table", start=0, length=S, dim=D + 1, dtype=FLOAT32)),
    "length": (None, lambda: call("table", start=0, length=-1, dim=D, dtype=FLOAT32)),
    "dtype": (None, lambda: call("table", start=0, length=S, dim=D, dtype=torch.int32)),
    "range": (None, lambda: call("table", start=2**63 - 3, length=S, dim=D, dtype=FLOAT32)),
    "width": (None, lambda: call("add", x=x(S, D + 1))),
    "rank": (None, lambda: call("add", x=x(D))),
    "dtype of x": (None, lambda: call("add", x=whole(S, D))),
    "too many extra tokens": (None, lambda: call("add", x=x(S, D), extra_tokens=S + 1)),
    "fewer extra tokens than none": (None, lambda: call("add", x=x(S, D), extra_tokens=-1)),
    "width of out": (None, lambda: call("table_out", x(S, D + 1), start=0)),
    "layout of out": (None, lambda: call("table_out", x(D, S).t(), start=0)),
    "positions of int32": (None, lambda: call("encode", positions=whole(3).int(), dim=D, dtype=FLOAT32)),
    "words of a grid": (None, lambda: call("add", x=x(S, D), axis_rows=x(S * D))),
    "channels of a grid": (None, lambda: call("add", x=x(S, D + 1), **grid())),
    "places of a grid": (None, lambda: call("add", x=x(S + 1, D), **grid())),
    "rows of a grid": (None, lambda: call("add", x=x(S, D), plan=grid()["plan"], axis_rows=x(S * D - 1))),
    "dtype of a grid": (None, lambda: call("add", x=x(S, D).double(), **grid())),
    # products beyond int64
    **{
        f"{n} rows": (SIZE, lambda n=n: call("table", start=-(2**62), length=n, dim=D, dtype=FLOAT32))
        for n in (2**61, 2**62, MAX)
    },
    **{
        f"offsets {steps}": (STEPS, lambda steps=steps: call("dropout", x=x(), rng_offsets=steps, **DROPS))
        for steps in ([0, 1, 1, 2**62], [0, MAX, 8, 1], [0, 40, -8, 1], [0, 2**62, 2**62, 1])
    },
}  # fmt: skip


@pytest.mark.bad_input(14, "compiled")
@pytest.mark.bad_input(17, "compiled")
@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_operand_is_rejected(damage: str) -> None:
    message, make = DAMAGED[damage]
    with pytest.raises(RuntimeError, match=message):
        make()


@pytest.mark.bad_input(14, "compiled")
@pytest.mark.parametrize("case", [case for case in samples(False) if not case.startswith("plan_")])
def test_freed_operand_is_rejected(case: str) -> None:
    """Half of its storage was freed."""
    name, arguments = samples(False)[case]
    for k, (field, a) in enumerate(zip([*OPERATORS[name].record_type._fields, "out"], arguments, strict=False)):
        if isinstance(a, Tensor) and a.numel():
            with pytest.raises(RuntimeError, match=f"^{field}: {FREED}"):
                op(name)(*arguments[:k], shrunk(a.clone()), *arguments[k + 1 :])


def test_sizes_at_the_end_of_int64() -> None:
    for first in (2**62, MAX, -1):  # part of a very large tensor: up to 64 unsigned bits
        call("dropout", x=x(), rng_offsets=[first, 40, 8, 1], **DROPS)
    none = torch.empty(0, 2**40, 2**20)
    assert call("encode", positions=none, dim=D, dtype=FLOAT32).shape == (*none.shape, D)
    none = torch.empty(0).as_strided((0, 2**31, 2**31, S, D), (1, 1, 1, 1, 1))
    assert call("add", x=none).shape == none.shape


def shared(dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor]:
    """An operand, and an x in the same memory."""
    memory = torch.ones(2 * B * S * D)
    return memory.view(dtype)[: math.prod(shape)].view(shape), memory[: B * S * D].view(B, S, D)


def over_words(words: Tensor) -> tuple[Tensor, Tensor]:
    """The plan or grid, and an x whose memory starts in the middle of it."""
    memory = torch.zeros(words.numel() + B * S * D, dtype=torch.int64)
    memory[: words.numel()] = words
    return memory[: words.numel()], memory[words.numel() // 2 :].view(torch.float32)[: B * S * D].view(B, S, D)


OVERLAPS: dict[str, tuple[str, Any, dict[str, Any]]] = {  # operand, memory shared with out, other operands
    "plan": ("plan", lambda: over_words(words()), {}),
    "positions": ("positions", lambda: shared(torch.float32, 1, S), {}),
    "starts": ("positions", lambda: shared(torch.int64, B, 1), {"positions_are_starts": True}),
    "mask": ("padding_mask", lambda: shared(torch.bool, 1, S), {}),
    "grid": ("plan", lambda: over_words(grid()["plan"]), {"axis_rows": grid()["axis_rows"]}),
    "axis_rows": ("axis_rows", lambda: shared(torch.float32, S * D), {"plan": grid()["plan"]}),
    "mask of a grid": ("padding_mask", lambda: shared(torch.bool, 1, S), grid()),
}


@pytest.mark.bad_input(12, "compiled")
@pytest.mark.parametrize("case", OVERLAPS)
def test_out_overlapping_an_operand_is_rejected(case: str) -> None:
    """The kernels read these again after the checks: an `out` over the grid crashed the process."""
    name, make, others = OVERLAPS[case]
    operand, out = make()
    before = operand.clone()
    with pytest.raises(RuntimeError, match="an out that overlaps an operand"):
        call("add_out", out, x=x(), **others, **{name: operand})
    if case == "plan":
        with pytest.raises(RuntimeError, match="an out that overlaps an operand"):
            call("table_out", out[0], plan=operand, start=0)
    assert torch.equal(operand, before)
    call("add_out", torch.empty_like(out), x=x(), **others, **{name: operand})  # without overlap it works


ATTACK = """
import random, sys, torch
from test_registration import op, samples
draw = random.Random(int(sys.argv[1]))
FAR = [0, 1, -1, 2, 7, 2**62, 2**63 - 1, -(2**63)]  # no sizes that memory might hold
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
SAMPLES = [(name, given) for name, given in samples(False).values() if not name.startswith("plan_")]

def changed_words(words):
    words = words.clone()
    for _ in range(draw.choice([1, 1, 3])):
        place = draw.randrange(min(20, len(words)) if draw.random() < 0.7 else len(words))
        words[place] = draw.choice([*FAR, int(words[place]) ^ (1 << draw.randrange(63))])
    return words[: draw.randrange(len(words))] if draw.random() < 0.1 else words

def damaged(a):
    if isinstance(a, bool):
        return not a
    if isinstance(a, int):
        return draw.choice(FAR)
    if isinstance(a, list):
        return [draw.choice(FAR) for _ in range(4)]
    if isinstance(a, torch.dtype):
        return draw.choice(DTYPES)
    if not isinstance(a, torch.Tensor):
        return a
    if a.dtype == torch.int64 and a.dim() == 1 and len(a) > 9:
        return changed_words(a)
    shape, dtype = list(a.shape), a.dtype if draw.random() < 0.7 else draw.choice(DTYPES)
    if shape and draw.random() < 0.4:
        shape[draw.randrange(len(shape))] = draw.choice([0, 1, 3, 9])
    if draw.random() < 0.2:
        shape.insert(0, 2)
    strides = [draw.choice([0, 1, 8, 40] if n > 1 else [0, 1, 2**62, 2**63 - 1]) for n in shape]
    return torch.zeros(40 * sum(shape) + 9).to(dtype).as_strided(shape, strides, draw.choice([0, 1, 5]))

done = refused = 0
for _ in range(int(sys.argv[2])):
    name, arguments = draw.choice(SAMPLES)
    arguments = [damaged(a) if draw.random() < 0.15 else a for a in arguments]
    print(name, [tuple(a.shape) + a.stride() if isinstance(a, torch.Tensor) else a for a in arguments], file=sys.stderr)
    try:
        op(name)(*arguments)
        done += 1
    except (RuntimeError, ValueError, TypeError):
        refused += 1
print(done, refused)
"""


@pytest.mark.bad_input(14, "compiled")
@pytest.mark.bad_input(16, "compiled")
def test_random_damage() -> None:
    """Changed plans, and wrong shapes, strides, dtypes and numbers: an error or a result, never a crash."""
    folders = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests" / "ops")))
    run = [sys.executable, "-W", "ignore", "-c", ATTACK, "0", "1500"]
    done = execute(run, env=library_environment(PYTHONPATH=folders))
    passed, refused = map(int, done.stdout.split()[-2:])
    assert passed > 50 and refused > 500  # both outcomes occurred

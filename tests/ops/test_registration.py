"""The operators in torch.library: schemas, fake kernels, strides, aliasing, vmap; and packed plans."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import sinpe_ext as sinpe
from sinpe_ext.encodings.plan import plan
from sinpe_ext.operations import grid_rows
from sinpe_ext.operations import plans as packed_plan

B, S, D = 2, 3, 8
ENCODING = sinpe.convention("fairseq", D)
PACKED = packed_plan.pack_plan(ENCODING)

ROWS = "Tensor? positions, Tensor? padding_mask"
START = "SymInt start, bool positions_are_starts"
DROPPED = "int drop_threshold, SymInt[] rng_offsets"
NONE = None, None, None, None, None  # positions, padding_mask, alpha, seed, axis_rows
ADD = f"Tensor x, Tensor plan, {ROWS}, Tensor? alpha, Tensor? seed, Tensor? axis_rows, {START}, float scale"

SCHEMAS = {
    "table": "(Tensor plan, SymInt start, SymInt length, int dim, ScalarType dtype) -> Tensor",
    "table_out": "(Tensor plan, SymInt start, Tensor(a!) out) -> ()",
    "encode": "(Tensor positions, Tensor plan, int dim, ScalarType dtype) -> Tensor",
    "dropout": f"(Tensor x, Tensor? seed, int drop_threshold, float scale, {DROPPED[20:]}) -> Tensor",
    "add": f"({ADD}, SymInt extra_tokens, {DROPPED}) -> Tensor",
    "add_out": f"({ADD}, SymInt extra_tokens, {DROPPED}, Tensor(a!) out) -> ()",
    "row_dots": (
        f"(Tensor grad, Tensor plan, {ROWS}, Tensor? angular_frequencies, Tensor? seed, {START}, {DROPPED}) -> Tensor"
    ),
    "add_backward": (
        f"(Tensor grad, Tensor plan, {ROWS}, Tensor? seed, {START}, float scale, {DROPPED}) -> (Tensor, Tensor)"
    ),
    "tree_sum": "(Tensor terms) -> Tensor",
    "embed": (
        f"(Tensor ids, Tensor weight, Tensor plan, {ROWS}, Tensor? alpha, Tensor? seed, {START}, float scale, "
        f"int padding_idx, bool sparse, {DROPPED}) -> Tensor"
    ),
    "embed_backward": (
        "(Tensor grad, Tensor ids, Tensor? seed, SymInt num_embeddings, int padding_idx, float scale, "
        f"{DROPPED}) -> Tensor"
    ),
    "plan_partner": "(Tensor plan) -> Tensor",
    "plan_angular_frequencies": "(Tensor plan, int dim) -> Tensor",
    "draw_seed": "(Tensor like) -> Tensor",
}


def op(name: str) -> Any:
    return getattr(torch.ops.sinpe_ext, name).default


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    """Compiled libraries depend on these schemas: a change needs a new name."""
    assert str(op(name)._schema) == f"sinpe_ext::{name}{SCHEMAS[name]}"
    assert torch.Tag.pt2_compliant_tag in op(name).tags


def x(dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(B, S, D, dtype=dtype, requires_grad=grad)


def grid(by_channels: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and packed grid of (S, 2) places and D channels, the last one zero."""
    of = sinpe.GridEncoding((sinpe.Encoding(4), sinpe.Encoding(3)), dim=D)
    cpu = torch.device("cpu")
    values = grid_rows.values(grid_rows.AxisRows(of, (S, 2), (0, 0), torch.float32, cpu, by_channels))
    return values, grid_rows.pack_grid(of, (S, 2), by_channels, cpu)


def on_grid(grid: tuple[torch.Tensor, torch.Tensor], mask: Any = None, seed: Any = None) -> tuple[Any, ...]:
    """The operands of `add` from plan to positions_are_starts."""
    axis_rows, packed_grid = grid
    return packed_grid, None, mask, None, seed, axis_rows, 0, False


def samples(grad: bool) -> dict[str, tuple[str, tuple[Any, ...]]]:
    words = packed_plan.pack_plan(ENCODING)
    shared, whole, mask = (
        torch.rand(1, S, requires_grad=grad),
        torch.arange(B * S).reshape(B, S),
        torch.tensor([[True, False, False]]),
    )
    real, many = torch.rand(S, requires_grad=grad), torch.rand(B, S, dtype=torch.float64, requires_grad=grad)
    alpha, seed, slopes = torch.tensor([0.7], requires_grad=grad), torch.tensor(5), torch.rand(D, dtype=torch.float64)
    weight = torch.randn(4, D, requires_grad=grad)
    ids, sequences = torch.tensor([[0, 3, 1], [1, 1, 2]]), torch.tensor([2, 0, 1])
    shard = [24, 2 * S * D, D, 1]
    places, channels, image = grid(False), grid(True), torch.randn(B, 2 * S, D, requires_grad=grad)
    last = torch.tensor([[False] * (2 * S - 1) + [True]])
    return {
        "table": ("table", (words, 3, S, D, torch.float32)),
        "table bf16": ("table", (words, -3, 0, D, torch.bfloat16)),
        "table_out": ("table_out", (words, 3, torch.empty(S, D))),
        "table_out rows": ("table_out", (words, 3, torch.empty(S, 2 * D)[:, :D])),
        "encode": ("encode", (real, words, D, torch.float64)),
        "encode int": ("encode", (whole, words, D, torch.float16)),
        "encode scalar": ("encode", (torch.tensor(3), words, D, torch.float32)),
        "encode many": ("encode", (many, words, D, torch.float64)),
        "add": ("add", (x(grad=grad), words, *NONE, 5, False, 1.5, 0, 0, [])),
        "add layout": ("add", (x(grad=grad).transpose(0, 1), words, *NONE, 5, False, 1.0, 0, 0, [])),
        "add elements": ("add", (x(grad=grad), words, *NONE, 5, False, 1.5, 0, 0, [0, S * D, D, 1])),
        "add expanded": (
            "add", (x(torch.bfloat16, grad)[:1].expand(4, S, D), words, *NONE, 0, False, 1.0, 0, 0, []),
        ),
        "add window": ("add", (x(torch.float64, grad)[:, ::2, :], words, *NONE, 0, False, 1.0, 0, 0, [])),
        "add_out": (
            "add_out",
            (x(grad=grad), words, None, None, alpha, None, None, 1, False, 2.0, 0, 0, [], torch.empty(B, S, D)),
        ),
        "add_out all": (
            "add_out",
            (x(grad=grad), words, whole, mask, alpha, None, None, 0, False, 2.0, 0, 0, [], torch.empty(B, S, D)),
        ),
        "add_out starts": (
            "add_out",
            (x(), words, whole[:, :1], None, None, None, None, 0, True, 1.0, 0, 0, [], torch.empty(B, D, S).mT),
        ),
        "dropout": ("dropout", (x(grad=grad), seed, 9000, 0.5, [])),
        "dropout of none": ("dropout", (x(grad=grad), None, 0, 0.5, [])),
        "dropout of all": ("dropout", (x(grad=grad), None, 65536, 1.0, [])),
        "dropout layout": ("dropout", (x(torch.float64, grad).permute(2, 0, 1), seed, 9000, 1.0, [0, 1, S * D, D])),
        "dropout shard": ("dropout", (x(torch.bfloat16, grad)[:, ::2], seed, 30000, 1.0, shard)),
        "add dropout": (
            "add", (x(grad=grad), words, None, None, alpha, seed, None, 5, False, 1.5, 0, 9000, []),
        ),
        "add all": (
            "add", (x(torch.float64, grad), words, many, mask, alpha, seed, None, 0, False, 1.5, 0, 9000, shard),
        ),
        "add shared positions": (
            "add", (x(grad=grad), words, shared, mask, None, seed, None, 0, False, 1.0, 0, 9000, []),
        ),
        "add starts": (
            "add", (x(torch.float16, grad), words, whole[:, :1], None, alpha, None, None, 0, True, 2.0, 0, 0, []),
        ),
        "add dropout layout": (
            "add",
            (
                x(grad=grad).transpose(0, 1), words, None, None, None, seed, None, 5, False, 1.0, 0, 9000,
                [0, D, S * D, 1],
            ),
        ),
        "add_out dropout": (
            "add_out",
            (x(grad=grad), words, whole, mask, alpha, seed, None, 0, False, 2.0, 0, 9000, [], torch.empty(B, S, D)),
        ),
        "add extra tokens": ("add", (x(grad=grad), words, None, None, None, None, None, 5, False, 2.0, 1, 0, [])),
        "add extra tokens all": (
            "add",
            (x(torch.float64, grad), words, many[:, 1:], mask[:, 1:], alpha, seed, None, 0, False, 2.0, 1, 9000, []),
        ),
        "add extra tokens only": (
            "add", (x(grad=grad), words, None, None, alpha, seed, None, 5, False, 1.5, S, 9000, shard),
        ),
        "add_out extra tokens": (
            "add_out", (x(grad=grad), words, *NONE, 5, False, 1.0, 2, 0, [], torch.empty(B, S, D)),
        ),
        "add grid": ("add", (image, *on_grid(places), 2.0, 0, 0, [])),
        "add_out grid": ("add_out", (image, *on_grid(places), 2.0, 0, 0, [], torch.empty(B, 2 * S, D))),
        "add_out grid all": (
            "add_out",
            (image, *on_grid(places, last, seed), 2.0, 0, 9000, [7, 2 * S * D, D, 1], torch.empty(B, 2 * S, D)),
        ),
        "add_out grid channels": (
            "add_out", (image.mT, *on_grid(channels, None, seed), 1.0, 0, 9000, [], torch.empty(B, D, 2 * S)),
        ),
        "add_out grid extra tokens": (
            "add_out",
            (
                torch.randn(B, 2 * S + 2, D, requires_grad=grad), *on_grid(places, last, seed), 0.5, 2, 9000, [],
                torch.empty(B, 2 * S + 2, D),
            ),
        ),
        "row_dots": ("row_dots", (x(grad=grad), words, None, None, None, seed, 5, False, 9000, [])),
        "row_dots all": ("row_dots", (x(torch.float64, grad), words, many, mask, slopes, seed, 0, False, 9000, shard)),
        "row_dots starts": ("row_dots", (x(torch.float16), words, whole[:, :1], None, None, None, 0, True, 0, [])),
        "row_dots 2-D": ("row_dots", (x(grad=grad)[0], words, shared, None, None, None, 0, False, 0, [])),
        "add_backward": ("add_backward", (x(grad=grad), words, None, None, seed, 5, False, 1.0, 9000, [])),
        "add_backward all": (
            "add_backward", (x(torch.float64, grad), words, many, mask, seed, 0, False, 1.5, 9000, shard),
        ),
        "add_backward layout": (
            "add_backward",
            (x(grad=grad).transpose(0, 1), words, None, None, None, 5, False, 0.5, 0, [0, D, S * D, 1]),
        ),
        "tree_sum": ("tree_sum", (torch.rand(B, S, dtype=torch.float64, requires_grad=grad),)),
        "tree_sum of many": ("tree_sum", (torch.randn(64 * 64 + 1, dtype=torch.float64, requires_grad=grad),)),
        "tree_sum of none": ("tree_sum", (torch.empty(0, S, dtype=torch.float64, requires_grad=grad),)),
        "embed": ("embed", (ids, weight, words, None, None, alpha, seed, 5, False, 1.5, 1, False, 9000, [])),
        "embed all": ("embed", (ids, weight, words, many, mask, alpha, seed, 0, False, 1.5, 1, False, 9000, shard)),
        "embed sequence": (
            "embed", (sequences, weight, words, None, None, None, None, 5, False, 1.0, -1, False, 0, []),
        ),
        "embed_backward": ("embed_backward", (x(grad=grad), ids, seed, 5, 1, 0.3, 9000, [])),
        "embed_backward of none": ("embed_backward", (x(grad=grad).mT.contiguous().mT, ids, None, 5, -1, 1.0, 0, [])),
        "plan_partner": ("plan_partner", (words,)),
        "plan_angular_frequencies": ("plan_angular_frequencies", (words, D)),
    }  # fmt: skip


@pytest.mark.bad_input(13, "compiled")
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "requires_grad"])
@pytest.mark.parametrize("case", samples(False))
def test_opcheck(case: str, grad: bool) -> None:
    name, arguments = samples(grad)[case]
    with warnings.catch_warnings():
        if name.endswith("_out"):  # mutating operators have no derivative, and torch raises when one is requested
            warnings.filterwarnings("ignore", message=".*an autograd kernel was not registered")
        results = torch.library.opcheck(op(name), arguments)
    assert set(results.values()) == {"SUCCESS"}


def as_tuple(made: Any) -> tuple[torch.Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("case", [case for case in samples(False) if "_out" not in case])
def test_fake_results_match_real_ones(case: str) -> None:
    name, arguments = samples(False)[case]
    real = op(name)(*arguments)
    with FakeTensorMode() as mode:
        fake = op(name)(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments))
    meta = op(name)(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments))
    for made in (fake, meta):
        for got, want in zip(as_tuple(made), as_tuple(real), strict=True):
            assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)


BATCHED = [
    "encode many",
    "add",
    "add extra tokens",
    "add extra tokens all",
    "add elements",
    "dropout",
    "dropout layout",
    "add all",
    "row_dots all",
    "add_backward all",
    "tree_sum",
    "embed all",
    "embed_backward",
]


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("case", BATCHED)
def test_vmap_equals_one_call_per_sample(case: str) -> None:
    """All tensors except constants (plan, slopes) get a batch dimension; with seeds, each sample has its own mask."""
    name, arguments = samples(False)[case]
    words = packed_plan.pack_plan(ENCODING)
    batched, in_dims = [], []
    for place, a in enumerate(arguments):
        constant = not isinstance(a, torch.Tensor) or a is words or (name == "row_dots" and place == 4)
        in_dims.append(None if constant else 0)
        batched.append(a if constant else torch.stack([a, a if a.dtype == torch.bool else a + 0, a.clone()]))
    got = torch.func.vmap(op(name), in_dims=tuple(in_dims))(*batched)
    one_by_one = [
        op(name)(*(a if d is None else a[k] for a, d in zip(batched, in_dims, strict=True))) for k in range(3)
    ]
    for many, each in zip(as_tuple(got), zip(*map(as_tuple, one_by_one), strict=True), strict=True):
        assert torch.equal(many, torch.stack(each))


def test_add_backward_is_dropout_and_row_dots() -> None:
    """With the same bits; the arguments of the samples above."""
    for case in ("add_backward", "add_backward all", "add_backward layout"):
        arguments = samples(False)[case][1]
        grad, words, positions, mask, seed, start, are_starts, scale, drop, offsets = arguments
        to_x, dots = op("add_backward")(*arguments)
        rows = (words, positions, mask, None, seed, start, are_starts, drop, offsets)
        assert torch.equal(dots, op("row_dots")(grad, *rows)) and not dots.isnan().any()
        assert torch.equal(to_x, op("dropout")(grad, seed, drop, scale, offsets))


def functions_of_positions(device: str) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    x, images = torch.empty(B, S, D, device=device), torch.empty(B, S, S, 16, device=device)
    ids, weight = torch.zeros(B, S, dtype=torch.long, device=device), torch.empty(9, D, device=device)
    return {
        "encode": lambda p: sinpe.encode(p, D),
        "encode, float32 angles": lambda p: sinpe.encode(p, sinpe.Encoding(D, angle="float32_pow")),
        "add": lambda p: sinpe.add(x, positions=p, dropout=0.1, seed=1),
        "embed": lambda p: sinpe.embed(ids, weight, positions=p),
        "grid": lambda p: sinpe.add(images, "mae2d", positions=torch.stack([p, p], -1).expand(S, S, 2)),
    }


@pytest.mark.parametrize("kind", ["meta", "fake"])
@pytest.mark.parametrize("name", functions_of_positions("meta"))
def test_positions_without_data_have_a_gradient(name: str, kind: str, backend: str) -> None:
    with FakeTensorMode() if kind == "fake" else contextlib.nullcontext():
        device = "cpu" if kind == "fake" else kind
        positions = torch.empty(S, device=device, requires_grad=True)
        result = functions_of_positions(device)[name](positions)
        assert torch.autograd.grad(result.sum(), positions)[0].shape == (S,)


def test_jvp_under_fake_tensor_mode(backend: str) -> None:
    with FakeTensorMode():
        positions = torch.empty(S)
        tangent = torch.func.jvp(lambda p: sinpe.encode(p, D), (positions,), (torch.ones(S),))[1]
        assert tangent.shape == (S, D)


def test_functions_under_fake_tensor_mode(backend: str) -> None:
    layer = sinpe.SinusoidalPositionalEncoding(D, max_len=50).eval()
    with FakeTensorMode():
        given = torch.empty(S, B, D, dtype=torch.bfloat16).transpose(0, 1)
        trained = given.clone().requires_grad_()
        alpha = torch.ones(1, requires_grad=True)
        summed = sinpe.add(trained, ENCODING, alpha=alpha, positions=torch.rand(S, requires_grad=True), dropout=0.1)
        (of_x, of_alpha) = torch.autograd.grad(summed.sum(), (trained, alpha))
        assert of_x.shape == given.shape and of_alpha.shape == (1,)
        weight, ids = torch.randn(9, D, requires_grad=True), torch.zeros(B, S, dtype=torch.long)
        embedded = sinpe.embed(ids, weight, dropout=0.1, padding_idx=0)
        assert torch.autograd.grad(embedded.sum(), weight)[0].shape == weight.shape
        in_place = sinpe.add_(trained * 1, alpha=alpha, positions=torch.rand(S, requires_grad=True), dropout=0.1)
        assert torch.autograd.grad(in_place.sum(), alpha)[0].shape == (1,)
        results = [
            summed.detach(),
            sinpe.add(given, ENCODING, start=torch.tensor([1, 2])),
            sinpe.add(given, ENCODING, dropout=0.3),
            sinpe.add_(given, ENCODING, dropout=0.3, seed=5),
            sinpe.add_(given, ENCODING, positions=torch.arange(S), padding_mask=torch.zeros(S, dtype=torch.bool)),
            layer(given),
        ]
        for made in results:
            assert (made.shape, made.stride(), made.dtype) == (given.shape, given.stride(), given.dtype)
        assert sinpe.table(S, ENCODING).shape == (S, D)
        assert sinpe.table(S, ENCODING, out=torch.empty(S, D)).shape == (S, D)
        assert sinpe.encode(torch.rand(4, 5), ENCODING).shape == (4, 5, D)


ENCODINGS = [
    sinpe.Encoding(D),
    sinpe.Encoding(7, layout="cos_sin", amplitude=-0.3, start=-5),
    sinpe.Encoding(9, odd="pad", cos_frequency="own", unit="turn", position_scale=1000),
    sinpe.Encoding(6, frequencies=(1e-60, -3.5, 0.0)),
]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=repr)
def test_packed_plan_decodes_to_the_plan(encoding: sinpe.Encoding) -> None:
    """A saved graph contains only the packed plan, which the reference implementation decodes."""
    known = plan(encoding)
    words = packed_plan.plan_tensor(known)
    assert packed_plan.decoded(words) is known
    back = packed_plan.decoded(words.clone())
    for name in [*(field.name for field in dataclasses.fields(known)), "n_osc", "packed"]:
        assert getattr(back, name) == getattr(known, name)


def test_plan_cache_is_bounded() -> None:
    """A base that changes with each sequence must not fill memory."""
    first = weakref.ref(packed_plan.pack_plan(sinpe.Encoding(4, base=1.5)))
    for base in range(2, 600):
        packed_plan.pack_plan(sinpe.Encoding(4, base=base))
    gc.collect()
    assert first() is None


@pytest.mark.parametrize("words", [[1, 2, 3], [0] * 40, [*packed_plan.pack_plan(ENCODING).tolist(), 0]])
def test_invalid_packed_plan_is_rejected(words: list[int]) -> None:
    given = torch.tensor(words)
    with pytest.raises(RuntimeError, match="plan: expected a packed plan tensor, got other values; pass"):
        packed_plan.decoded(given)
    with pytest.raises(RuntimeError, match="plan: "):
        op("table")(given, 0, S, D, torch.float32)


PLAIN = 1.0, 0, 0, []  # scale, extra_tokens, drop, elements
MISUSE: dict[str, tuple[str, tuple[Any, ...]]] = {  # checked in C++, whoever calls
    "dim": ("table", (packed_plan.pack_plan(ENCODING), 0, S, D + 1, torch.float32)),
    "length": ("table", (packed_plan.pack_plan(ENCODING), 0, -1, D, torch.float32)),
    "dtype": ("table", (packed_plan.pack_plan(ENCODING), 0, S, D, torch.int32)),
    "range": ("table", (packed_plan.pack_plan(ENCODING), 2**63 - 3, S, D, torch.float32)),
    "width": ("add", (torch.ones(S, D + 1), PACKED, *NONE, 0, False, 1.0, 0, 0, [])),
    "rank": ("add", (torch.ones(D), PACKED, *NONE, 0, False, 1.0, 0, 0, [])),
    "x dtype": ("add", (torch.ones(S, D, dtype=torch.int64), PACKED, *NONE, 0, False, 1.0, 0, 0, [])),
    "too many extra tokens": ("add", (torch.ones(S, D), PACKED, *NONE, 0, False, 1.0, S + 1, 0, [])),
    "fewer extra tokens than none": ("add", (torch.ones(S, D), PACKED, *NONE, 0, False, 1.0, -1, 0, [])),
    "out": ("table_out", (packed_plan.pack_plan(ENCODING), 0, torch.empty(S, D + 1))),
    "out layout": ("table_out", (packed_plan.pack_plan(ENCODING), 0, torch.empty(D, S).t())),
    "grid words": (
        "add_out", (torch.ones(6, D), *on_grid((torch.ones(6), PACKED)), *PLAIN, torch.ones(6, D)),
    ),
    "grid channels": ("add_out", (torch.ones(6, D + 1), *on_grid(grid(False)), *PLAIN, torch.ones(6, D + 1))),
    "grid places": ("add_out", (torch.ones(7, D), *on_grid(grid(False)), *PLAIN, torch.ones(7, D))),
    "grid values": (
        "add_out", (torch.ones(6, D), *on_grid((grid(False)[0][1:], grid(False)[1])), *PLAIN, torch.ones(6, D)),
    ),
    "grid dtype": ("add_out", (torch.ones(6, D).double(), *on_grid(grid(False)), *PLAIN, torch.ones(6, D).double())),
    "positions": ("encode", (torch.ones(3, dtype=torch.int32), packed_plan.pack_plan(ENCODING), D, torch.float32)),
}  # fmt: skip


@pytest.mark.parametrize("case", MISUSE.values(), ids=MISUSE)
def test_kernels_check_memory_safety(case: Any) -> None:
    from sinpe_ext.backend import loader

    if not loader.compiled("cpu"):
        pytest.skip("the compiled backend is not in use")  # asking for the reason would load it
    name, arguments = case
    with pytest.raises(RuntimeError):
        op(name)(*arguments)

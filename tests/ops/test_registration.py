"""The operators in torch.library: schemas, fake kernels, strides, aliasing, vmap, operands; and packed plans."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.encodings.plan import plan
from sinpe_ext.operations import grid_rows
from sinpe_ext.operations import plans as packed_plan
from sinpe_ext.operations.add import ADD
from sinpe_ext.operations.dropout import DROPOUT
from sinpe_ext.operator import OPERATORS
from sinpe_ext.records import Add, Dropout

B, S, D = 2, 3, 8
ENCODING = sinpe.convention("fairseq", D)
PACKED = packed_plan.pack_plan(ENCODING)

ROWS = "Tensor? positions, Tensor? padding_mask"
START = "SymInt start, bool positions_are_starts"
DROPPED = "int drop_threshold, SymInt[] rng_offsets"
OF_ADD = f"Tensor x, Tensor plan, {ROWS}, Tensor? alpha, Tensor? seed, Tensor? axis_rows, {START}, float scale"

SCHEMAS = {
    "table": "(Tensor plan, SymInt start, SymInt length, int dim, ScalarType dtype) -> Tensor",
    "table_out": "(Tensor plan, SymInt start, Tensor(a!) out) -> ()",
    "encode": "(Tensor positions, Tensor plan, int dim, ScalarType dtype) -> Tensor",
    "dropout": f"(Tensor x, Tensor? seed, int drop_threshold, float scale, {DROPPED[20:]}) -> Tensor",
    "add": f"({OF_ADD}, SymInt extra_tokens, {DROPPED}) -> Tensor",
    "add_out": f"({OF_ADD}, SymInt extra_tokens, {DROPPED}, Tensor(a!) out) -> ()",
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


def operands(name: str, out: Tensor | None = None, **given: Any) -> tuple[str, tuple[Any, ...]]:
    """An operator and its operands; those that are not given have their defaults."""
    if "plan" in OPERATORS[name].record_type._fields:
        given = {"plan": PACKED} | given
    record = OPERATORS[name].record_type(**given)
    return name, (*(list(value) if value == () else value for value in record), *(() if out is None else (out,)))


def x(dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.randn(B, S, D, dtype=dtype, requires_grad=grad)


GRID = sinpe.GridEncoding((sinpe.Encoding(4), sinpe.Encoding(3)), dim=D)  # the last channel is zero


def grid(by_channels: bool = False, acc: torch.dtype = torch.float32) -> dict[str, Any]:
    """The operands of `add` for (S, 2) places."""
    cpu = torch.device("cpu")
    rows = grid_rows.values(grid_rows.AxisRows(GRID, (S, 2), (0, 0), acc, cpu, by_channels))
    return {"plan": grid_rows.pack_grid(GRID, (S, 2), by_channels, cpu), "axis_rows": rows}


def samples(grad: bool) -> dict[str, tuple[str, tuple[Any, ...]]]:
    shared, whole = torch.rand(1, S, requires_grad=grad), torch.arange(B * S).reshape(B, S)
    mask, last = torch.tensor([[True, False, False]]), torch.tensor([[False] * (2 * S - 1) + [True]])
    real, many = torch.rand(S, requires_grad=grad), torch.rand(B, S, dtype=torch.float64, requires_grad=grad)
    alpha, slopes = torch.tensor([0.7], requires_grad=grad), torch.rand(D, dtype=torch.float64)
    weight = torch.randn(4, D, requires_grad=grad)
    ids, sequences = torch.tensor([[0, 3, 1], [1, 1, 2]]), torch.tensor([2, 0, 1])
    shard, turned = [24, 2 * S * D, D, 1], [0, D, S * D, 1]
    image = torch.randn(B, 2 * S, D, requires_grad=grad)
    longer = torch.randn(B, 2 * S + 2, D, requires_grad=grad)
    given, wide, first = x(grad=grad), x(torch.float64, grad), x(grad=grad).transpose(0, 1)
    drops: dict[str, Any] = {"seed": torch.tensor(5), "drop_threshold": 9000}
    starts: dict[str, Any] = {"positions": whole[:, :1], "positions_are_starts": True}
    of_all = drops | {"positions": many, "padding_mask": mask}
    return {
        "table": operands("table", start=3, length=S, dim=D, dtype=torch.float32),
        "table bf16": operands("table", start=-3, length=0, dim=D, dtype=torch.bfloat16),
        "table_out": operands("table_out", torch.empty(S, D), start=3),
        "table_out rows": operands("table_out", torch.empty(S, 2 * D)[:, :D], start=3),
        "encode": operands("encode", positions=real, dim=D, dtype=torch.float64),
        "encode int": operands("encode", positions=whole, dim=D, dtype=torch.float16),
        "encode scalar": operands("encode", positions=torch.tensor(3), dim=D, dtype=torch.float32),
        "encode many": operands("encode", positions=many, dim=D, dtype=torch.float64),
        "add": operands("add", x=given, start=5, scale=1.5),
        "add layout": operands("add", x=first, start=5),
        "add elements": operands("add", x=given, start=5, scale=1.5, rng_offsets=[0, S * D, D, 1]),
        "add expanded": operands("add", x=x(torch.bfloat16, grad)[:1].expand(4, S, D)),
        "add window": operands("add", x=wide[:, ::2, :]),
        "add dropout": operands("add", x=given, alpha=alpha, start=5, scale=1.5, **drops),
        "add all": operands("add", x=wide, alpha=alpha, scale=1.5, rng_offsets=shard, **of_all),
        "add shared positions": operands("add", x=given, positions=shared, padding_mask=mask, **drops),
        "add starts": operands("add", x=x(torch.float16, grad), alpha=alpha, scale=2.0, **starts),
        "add dropout layout": operands("add", x=first, start=5, rng_offsets=turned, **drops),
        "add extra tokens": operands("add", x=given, start=5, scale=2.0, extra_tokens=1),
        "add extra tokens all": operands(
            "add", x=wide, positions=many[:, 1:], padding_mask=mask[:, 1:], alpha=alpha, scale=1.5, extra_tokens=1,
            **drops,
        ),
        "add extra tokens only": operands(
            "add", x=given, alpha=alpha, start=5, scale=1.5, extra_tokens=S, rng_offsets=shard, **drops
        ),
        "add grid": operands("add", x=image, scale=2.0, **grid()),
        "add_out": operands("add_out", torch.empty(B, S, D), x=given, alpha=alpha, start=1, scale=2.0),
        "add_out all": operands("add_out", torch.empty(B, S, D), x=given, alpha=alpha, scale=2.0, **of_all),
        "add_out starts": operands("add_out", torch.empty(B, D, S).mT, x=x(), **starts),
        "add_out extra tokens": operands("add_out", torch.empty(B, S, D), x=given, start=5, extra_tokens=2),
        "add_out grid": operands(
            "add_out", torch.empty(B, 2 * S, D), x=image, scale=2.0, padding_mask=last,
            rng_offsets=[7, 2 * S * D, D, 1], **grid(), **drops,
        ),
        "add_out grid channels": operands("add_out", torch.empty(B, D, 2 * S), x=image.mT, **grid(True), **drops),
        "add_out grid extra tokens": operands(
            "add_out", torch.empty_like(longer), x=longer, padding_mask=last, scale=0.5, extra_tokens=2, **grid(),
            **drops,
        ),
        "dropout": operands("dropout", x=given, scale=0.5, **drops),
        "dropout of none": operands("dropout", x=given, seed=None, drop_threshold=0),
        "dropout of all": operands("dropout", x=given, seed=None, drop_threshold=65536),
        "dropout layout": operands("dropout", x=wide.permute(2, 0, 1), rng_offsets=[0, 1, S * D, D], **drops),
        "dropout shard": operands("dropout", x=x(torch.bfloat16, grad)[:, ::2], rng_offsets=shard, **drops),
        "row_dots": operands("row_dots", grad=given, start=5, **drops),
        "row_dots all": operands("row_dots", grad=wide, angular_frequencies=slopes, rng_offsets=shard, **of_all),
        "row_dots starts": operands("row_dots", grad=x(torch.float16), **starts),
        "row_dots 2-D": operands("row_dots", grad=given[0], positions=shared),
        "add_backward": operands("add_backward", grad=given, start=5, **drops),
        "add_backward all": operands("add_backward", grad=wide, scale=1.5, rng_offsets=shard, **of_all),
        "add_backward layout": operands("add_backward", grad=first, start=5, scale=0.5, rng_offsets=turned),
        "tree_sum": operands("tree_sum", terms=torch.rand(B, S, dtype=torch.float64, requires_grad=grad)),
        "tree_sum of many": operands("tree_sum", terms=torch.randn(4097, dtype=torch.float64, requires_grad=grad)),
        "tree_sum of none": operands("tree_sum", terms=torch.empty(0, S, dtype=torch.float64, requires_grad=grad)),
        "embed": operands("embed", ids=ids, weight=weight, alpha=alpha, start=5, scale=1.5, padding_idx=1, **drops),
        "embed all": operands("embed", ids=ids, weight=weight, alpha=alpha, padding_idx=1, rng_offsets=shard, **of_all),
        "embed sequence": operands("embed", ids=sequences, weight=weight, start=5),
        "embed_backward": operands(
            "embed_backward", grad=given, ids=ids, num_embeddings=5, padding_idx=1, scale=0.3, **drops
        ),
        "embed_backward of none": operands(
            "embed_backward", grad=given.mT.contiguous().mT, ids=ids, num_embeddings=5, seed=None
        ),
        "plan_partner": operands("plan_partner"),
        "plan_angular_frequencies": operands("plan_angular_frequencies", dim=D),
    }  # fmt: skip


@pytest.mark.bad_input(13, "compiled")
@pytest.mark.parametrize("case", samples(False))
def test_opcheck(case: str) -> None:
    """Schema, fake kernel, autograd, graphs; and the meta device."""
    name, arguments = samples("_out" not in case)[case]
    results = torch.library.opcheck(op(name), arguments)
    assert set(results.values()) == {"SUCCESS"}
    if "_out" not in case:
        meta = op(name)(*(a.detach().to("meta") if isinstance(a, Tensor) else a for a in arguments))
        for got, want in zip(as_tuple(meta), as_tuple(op(name)(*arguments)), strict=True):
            assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)


def as_tuple(made: Any) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


CONSTANTS = "plan", "angular_frequencies", "axis_rows"
BATCHED = [
    "encode many", "add", "add extra tokens", "add extra tokens all", "add elements", "dropout", "dropout layout",
    "add all", "row_dots all", "add_backward all", "tree_sum", "embed all", "embed_backward",
]  # fmt: skip


FIRST = ["add", "add dropout", "add starts", "add_backward", "dropout"]


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize(("case", "first"), [*((case, False) for case in BATCHED), *((case, True) for case in FIRST)])
def test_vmap_equals_one_call_per_sample(case: str, first: bool) -> None:
    """Over all tensors except constants, or the second dimension of the first alone; each has its own seed and mask."""
    name, arguments = samples(False)[case]
    fields = OPERATORS[name].record_type._fields
    in_dims = [
        int(first) if isinstance(a, Tensor) and field not in CONSTANTS and not (first and k) else None
        for k, (field, a) in enumerate(zip(fields, arguments, strict=True))
    ]
    batched = [
        a if d is None else torch.stack([a, a if a.dtype == torch.bool else a + 1, a.clone()], d)
        for a, d in zip(arguments, in_dims, strict=True)
    ]
    if "ids" in fields:
        batched[fields.index("ids")] %= 4
    got = torch.func.vmap(op(name), in_dims=tuple(in_dims))(*batched)
    each = [
        op(name)(*(a if d is None else a.select(d, k) for a, d in zip(batched, in_dims, strict=True))) for k in range(3)
    ]
    for many, samples_of in zip(as_tuple(got), zip(*map(as_tuple, each), strict=True), strict=True):
        assert torch.equal(many, torch.stack(samples_of))


def test_add_backward_is_dropout_and_row_dots() -> None:
    """With the same bits; the arguments of the samples above."""
    for case in ("add_backward", "add_backward all", "add_backward layout"):
        arguments = samples(False)[case][1]
        grad, words, positions, mask, seed, start, are_starts, scale, drop, offsets = arguments
        to_x, dots = op("add_backward")(*arguments)
        rows = (words, positions, mask, None, seed, start, are_starts, drop, offsets)
        assert torch.equal(dots, op("row_dots")(grad, *rows)) and not dots.isnan().any()
        assert torch.equal(to_x, op("dropout")(grad, seed, drop, scale, offsets))


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


EXTRA, ROWS_OF_GRID = 2, 2 * S
OFFSETS = [7, 3 * (ROWS_OF_GRID + EXTRA) * D, D, 1]
SEEDED: dict[str, Any] = {"seed": torch.tensor(5), "drop_threshold": 20000, "scale": 1.5}
SOME_ROWS = torch.tensor([[False, True, False, False, True, False]])
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 3.0, "start": 4},
    "dropout": SEEDED | {"padding_mask": SOME_ROWS, "alpha": torch.tensor(0.5)},
    "dropout of a shard": SEEDED | {"rng_offsets": OFFSETS, "positions": torch.rand(B, ROWS_OF_GRID)},
    "starts": {"positions": torch.tensor([[3], [70]]), "positions_are_starts": True},
    "all dropped": {"drop_threshold": 65536},
}


def data(dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(B, ROWS_OF_GRID + EXTRA, D, generator=generator).to(dtype)


def two_calls(a: Add) -> Tensor:
    """The result for extra tokens, by a call for these and one for the others."""
    first, *steps = a.rng_offsets or [0, (ROWS_OF_GRID + EXTRA) * D, D, 1]
    behind = a._replace(x=a.x[:, EXTRA:], extra_tokens=0, rng_offsets=[first + EXTRA * D, *steps])
    front = DROPOUT(Dropout(a.x[:, :EXTRA], a.seed, a.drop_threshold, a.scale, [first, *steps]))
    return torch.cat([front, ADD(behind)], 1)


@pytest.mark.emulated
@pytest.mark.parametrize("of_grid", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_extra_tokens_are_scaled_and_dropped_alone(dtype: torch.dtype, of_grid: bool) -> None:
    for name, case in CASES.items():
        given = data(dtype)
        source = grid(acc=torch.float64 if dtype == torch.float64 else torch.float32) if of_grid else {"plan": PACKED}
        case = {k: v for k, v in case.items() if not of_grid or not k.startswith(("position", "alpha"))}
        a = Add(given, extra_tokens=EXTRA, **source, **case)
        want = two_calls(a)
        assert torch.equal(ADD(a), want), name
        if dtype != torch.float64:
            assert torch.equal(ADD.reference(*a), want), name
        ADD(a, given)
        assert torch.equal(given, want), name


@pytest.mark.emulated
def test_gradients_behind_extra_tokens() -> None:
    for rng_offsets in ([], OFFSETS):
        given, alpha = data(torch.float64).requires_grad_(), torch.tensor(0.7, requires_grad=True, dtype=torch.float64)
        at = torch.rand(1, ROWS_OF_GRID, dtype=torch.float64).requires_grad_()
        a = Add(given, PACKED, at, SOME_ROWS, alpha, extra_tokens=EXTRA, rng_offsets=rng_offsets, **SEEDED)
        got, want, registered = (
            torch.autograd.grad(result.square().sum(), (given, alpha, at))
            for result in (ADD(a), two_calls(a), ADD.op(*a))
        )
        for one, other, same in zip(got, want, registered, strict=True):
            torch.testing.assert_close(one, other)
            assert torch.equal(one, same)
    given, grad = data().requires_grad_(), data()
    a = Add(given, extra_tokens=EXTRA, **grid(), **SEEDED)  # of a grid: dropout of the gradient
    (of_x,) = torch.autograd.grad(ADD(a), given, grad)
    assert torch.equal(of_x, DROPOUT(Dropout(grad, a.seed, a.drop_threshold, a.scale)))

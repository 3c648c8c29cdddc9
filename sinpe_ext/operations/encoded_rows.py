"""Rows of an encoding: the operators `table` and `encode`, their adjoint `row_dots`, and `tree_sum` of its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any

import torch
from torch import Tensor

from .. import torch_state
from ..encodings import resolve
from ..encodings.plan import plan as _plan_of
from ..encodings.tracing import constant_in_graph
from ..encodings.values import position_range
from ..operator import Derivative, Operator, one_by_one
from ..records import Dropout, Encode, PlanAngularFrequencies, PlanPartner, RowDots, Size, Table, TableOut, TreeSum
from ..reference import apply, float32_angle, kept_rows, onnx, tree_sum
from ..reference.tiles import accumulation, arranged, widest
from ..torch_state import outside_modes
from .dropout import scaled
from .plans import (
    PLAN_ANGULAR_FREQUENCIES,
    PLAN_PARTNER,
    EncodingArguments,
    _order,
    constant_name,
    constants_bytes,
    decoded,
    derivative_constants,
    graph_constant,
    graph_plan,
    is_constant,
    named_constant,
    pack_plan,
)

MAX_CONSTANT_BYTES = 1 << 24  # of rows in all graphs; KEPT_BYTES for one


def table(of: EncodingArguments, length: Any, start: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows at positions encoding.start + start, ..., encoding.start + start + length - 1; start may be a 0-d tensor."""
    encoding, state = resolve.encoding(*of), torch_state.read()
    if (state.fake or device.type == "meta") and not state.fx_tracing:
        return torch.empty((length, encoding.dim), dtype=dtype, device=device)
    if encoding.angle != "exact" or isinstance(start, Tensor):
        return encode(of, torch.arange(length, device=device) + (encoding.start + start), dtype)
    rows: Tensor
    if state.compiling:
        if torch_state.is_exporting():
            return onnx.table(_plan_of(encoding), length, start, dtype, device, _limbs(dtype, device))
        if _can_be_constant(length, start, encoding.dim, dtype, device):
            name = _rows_name(*of, device, index(length), index(start), dtype)
            if name:
                return named_constant(name).clone()
        rows = TABLE(Table(graph_plan(*of, device), start, length, encoding.dim, dtype), state=state)
    else:
        with _stated_size((length, encoding.dim), dtype, device):
            rows = TABLE(Table(pack_plan(encoding, device), start, length, encoding.dim, dtype), state=state)
    return rows if rows.device.type == device.type else rows.to(device)


def _can_be_constant(length: Any, start: Any, dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether rows in a graph can be a constant of it, with which the compiler can fuse what follows, and not the
    result of an operator: few rows at the same positions in all its runs. Exported programs contain operators."""
    from torch.fx.experimental.symbolic_shapes import has_static_value  # imports sympy, as the compiler does

    if torch.compiler.is_exporting() or (device.type == "cuda" and not torch.cuda.is_available()):
        return False
    if dtype == torch.float64 or not (has_static_value(length) and has_static_value(start)):
        return False
    return bool(0 < length * dim * 4 <= kept_rows.KEPT_BYTES)


@constant_in_graph
def _rows_name(
    value: Any, dim: int | None, selection: Any, device: torch.device, length: int, start: int, dtype: torch.dtype
) -> str:
    """The name of the constant of a graph with the rows of `table`; empty if those of all graphs would take more than
    `MAX_CONSTANT_BYTES`."""
    encoding = resolve.encoding(value, dim, selection)
    size, others = length * encoding.dim * dtype.itemsize, constants_bytes("rows")

    @outside_modes
    def make() -> Tensor:
        rows: Tensor = TABLE(Table(pack_plan(encoding, device), start, length, encoding.dim, dtype))
        return rows.to(device)

    key = "rows", encoding, device, length, start, dtype
    return constant_name(key, make) if is_constant(key) or size + others <= MAX_CONSTANT_BYTES else ""


def encode(of: EncodingArguments, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows at int64, float32 or float64 positions, differentiable."""
    state, device = torch_state.read(), positions.device
    encoding = resolve.encoding(*of)
    if encoding.angle != "exact":
        if state.fake and not state.fx_tracing:  # the constants have data; only shape and gradient matter
            return (positions.unsqueeze(-1) * torch.empty(encoding.dim, device=device)).to(dtype)
        return _encode_in_float32(of, positions, dtype)
    if state.transformed or (positions.requires_grad and not state.compiling and (state.traced or positions.is_meta)):
        return _by_angle_addition(of, positions, dtype)
    return _rows_at(of, positions, dtype)


def _rows_at(of: EncodingArguments, positions: Tensor, dtype: torch.dtype, partner: bool = False) -> Tensor:
    """`encode` of an exact encoding, by an operator or, for an export, in standard operations; or rows of its partner
    plan."""
    state, device = torch_state.read(), positions.device
    encoding = resolve.encoding(*of)
    rows: Tensor
    if state.compiling:
        if torch_state.is_exporting():
            plan = _plan_of(encoding).partner() if partner else _plan_of(encoding)
            return onnx.encode(plan, positions, dtype, _limbs(dtype, device, positions.dtype))
        packed_plan = graph_plan(*of, device)
        packed_plan = derivative_plan(packed_plan, encoding.dim)[0] if partner else packed_plan
        rows = ENCODE(Encode(positions.contiguous(), packed_plan, encoding.dim, dtype))
        return rows
    packed_plan = derivative_constants(_plan_of(encoding), device)[0] if partner else pack_plan(encoding, device)
    shape = (*positions.shape, encoding.dim)
    if (state.fake or positions.is_meta) and not state.fx_tracing:
        return positions.new_empty(shape, dtype=dtype)
    with _stated_size(shape, dtype, device):
        rows = ENCODE(Encode(positions.contiguous(), packed_plan, encoding.dim, dtype), state=state)
    return rows


def _by_angle_addition(of: EncodingArguments, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """`encode` of an exact encoding in operations that every transform of torch differentiates, to any order.

    With w the angular frequency of a channel and PE' / w its value a quarter turn further, the channel at p + d is
    PE(p) cos(w d) + PE'(p) / w sin(w d). Here p is `positions` without derivatives, computed by the operator, and
    d = positions - p is zero, with all derivatives of `positions`. So the values are those of the operator.
    """
    encoding, state, device = resolve.encoding(*of), torch_state.read(), positions.device
    at, acc = positions.detach(), accumulation(dtype)
    if not positions.is_floating_point():
        return _rows_at(of, at, dtype)
    wide = accumulation(dtype, positions.dtype)
    if state.compiling:
        frequencies = PLAN_ANGULAR_FREQUENCIES(PlanAngularFrequencies(graph_plan(*of, device), encoding.dim))
    else:
        frequencies = derivative_constants(_plan_of(encoding), device)[1]
        if state.fake and not state.fx_tracing:  # only the shape matters
            frequencies = torch.empty(frequencies.shape, dtype=frequencies.dtype, device=device)
    angle = (positions - at).to(wide).unsqueeze(-1) * frequencies.to(device, wide)
    rows, partner = _rows_at(of, at, acc), _rows_at(of, at, wide, partner=True)
    rows_wide = rows if wide == acc else _rows_at(of, at, wide)
    # The first term alone has a value; 0 * cos(0) - 0 * 1 of the second one is zero, or NaN where the first one is.
    return (rows + (rows_wide * (angle.cos() - 1.0) + partner * angle.sin())).to(dtype)


def _limbs(dtype: torch.dtype, device: torch.device, *others: torch.dtype) -> onnx.Limbs:
    """The arithmetic of an export: float32 where that is asked for, or where the device has no float64."""
    has_float64 = widest(device) == torch.float64 and torch_state.exports_float64()
    return onnx.DOUBLE if has_float64 or torch.float64 in (dtype, *others) else onnx.SINGLE


@contextmanager
def _stated_size(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Context manager: if an operator fails because the memory was insufficient, raises torch's error, which says how
    much was needed."""
    try:
        yield
    except RuntimeError:
        torch.empty(shape, dtype=dtype, device=device)
        raise


def _encode_in_float32(of: EncodingArguments, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """`encode` of an encoding whose angles are float32."""
    encoding, device = resolve.encoding(*of), positions.device
    if not torch.compiler.is_compiling():
        return float32_angle.encode(encoding, positions, dtype)
    frequencies, kinds = graph_constant("frequencies", *of, device), graph_constant("kinds", *of, device)
    multiply, factor = _order(*of)
    return float32_angle.rows(positions, frequencies, kinds, multiply, factor, encoding.amplitude, dtype)


def derivative_plan(packed_plan: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The packed partner plan and the angular frequencies of a plan, see `plans.py`."""
    if torch_state.read().traced:
        frequencies = PLAN_ANGULAR_FREQUENCIES(PlanAngularFrequencies(packed_plan, dim))
        return PLAN_PARTNER(PlanPartner(packed_plan)), frequencies
    return derivative_constants(decoded(packed_plan), packed_plan.device)


def row_positions(positions: Tensor, are_starts: bool, length: Size) -> Tensor:
    """The position of each row, for the operands `positions` and `positions_are_starts` of `add`."""
    return positions + torch.arange(length, device=positions.device) if are_starts else positions


def reduced(each: Tensor, positions: Tensor) -> Tensor:
    """Sums a gradient of shape (batch, *middle, sequence) or (sequence,) to the shape of positions, (batch or 1,
    sequence)."""
    each = each.sum(tuple(range(1, each.dim() - 1))) if each.dim() > 2 else each
    return (each if each.dim() > 1 else each.unsqueeze(0)).sum_to_size(positions.shape).to(positions.dtype)


def _table(t: Table, is_new: bool) -> Tensor:
    plan = decoded(t.plan)
    position_range(plan.start + t.start, t.length)  # a graph may pass an unchecked start
    return kept_rows.table(plan, t.length, plan.start + t.start, t.dtype, t.plan.device, is_new)


TABLE = Operator(
    "table",
    Table,
    reference=lambda t: _table(t, True),
    fake=lambda t: t.plan.new_empty((t.length, t.dim), dtype=t.dtype),
)
TABLE_OUT = Operator(
    "table_out",
    TableOut,
    "()",
    reference=lambda t, out: out.copy_(_table(Table(t.plan, t.start, out.shape[0], out.shape[1], out.dtype), False)),
)


def _encode_batched(operator: Operator, info: Any, in_dims: Any, positions: Tensor, *others: Any) -> tuple[Tensor, int]:
    return operator.op(positions.movedim(in_dims[0], 0).contiguous(), *others), 0


def _encode_gradients(e: Encode, needed: Encode, grad: Tensor) -> dict[str, Tensor | None]:
    if not needed.positions:
        return {}
    dim = grad.shape[-1]
    partner, angular_frequencies = derivative_plan(e.plan, dim)
    wide = grad.to(accumulation(grad.dtype, e.positions.dtype)).reshape(1, -1, dim)
    dots = ROW_DOTS(RowDots(wide, partner, e.positions.reshape(1, -1), angular_frequencies=angular_frequencies))
    return {"positions": dots.reshape(e.positions.shape).to(e.positions.dtype)}


ENCODE = Operator(
    "encode",
    Encode,
    reference=lambda e: kept_rows.encode(decoded(e.plan), e.positions, e.dtype),
    fake=lambda e: e.positions.new_empty((*e.positions.shape, e.dim), dtype=e.dtype),
    vmap=_encode_batched,
    derivative=Derivative(_encode_gradients, values=lambda needed: ("positions", "plan")),
)


def empty_dots(grad: Tensor) -> Tensor:
    """An empty tensor like the result of `row_dots`."""
    return grad.new_empty(grad.shape[:-1], dtype=widest(grad.device))


def rows_and_grad(needed: Any) -> tuple[str, ...]:
    """The tensors whose values `row_dots_gradients` reads."""
    rows = "plan", "positions", "padding_mask"
    return ("grad", *rows) if needed.positions else rows


def row_dots_gradients(a: RowDots, needed: Any, upstream: Tensor) -> dict[str, Tensor | None]:
    """The gradients with respect to grad and positions, from that of the result."""
    gradients: dict[str, Tensor | None] = {}
    dim, rank = a.grad.shape[-1], len(a.grad.shape)
    if needed.grad:
        acc, device = accumulation(a.grad.dtype), a.grad.device
        if a.positions is None:
            rows = TABLE(Table(a.plan, a.start, a.grad.shape[-2], dim, acc)).to(device)
        else:
            at = row_positions(a.positions, a.positions_are_starts, a.grad.shape[-2])
            rows = ENCODE(Encode(at.contiguous(), a.plan, dim, acc))
        rows = rows if a.angular_frequencies is None else rows * a.angular_frequencies.to(rows.device, acc)
        rows = rows if a.padding_mask is None else rows.masked_fill(a.padding_mask.unsqueeze(-1), 0.0)
        product = (upstream.to(acc).unsqueeze(-1) * arranged(rows, rank)).to(a.grad.dtype)
        gradients["grad"] = scaled(Dropout(product, a.seed, a.drop_threshold, 1.0, a.rng_offsets))
    if needed.positions:
        assert a.positions is not None
        partner, further = derivative_plan(a.plan, dim)
        further = further if a.angular_frequencies is None else further * a.angular_frequencies
        each = ROW_DOTS(a._replace(plan=partner, angular_frequencies=further))
        gradients["positions"] = reduced(each * upstream, a.positions)
    return gradients


ROW_DOTS = Operator(
    "row_dots",
    RowDots,
    reference=lambda a: apply.row_dots(decoded(a.plan), a),
    fake=lambda a: empty_dots(a.grad),
    vmap=one_by_one,
    derivative=Derivative(row_dots_gradients, lambda needed: ("angular_frequencies", *rows_and_grad(needed))),
)


# The sum of all elements, in the order of csrc/core/tree_sum.h.
TREE_SUM = Operator(
    "tree_sum",
    TreeSum,
    reference=lambda t: tree_sum.total(t.terms),
    fake=lambda t: t.terms.new_empty(()),
    vmap=one_by_one,
    derivative=Derivative(lambda t, needed, grad: {"terms": grad.expand(t.terms.shape)}, values=lambda needed: ()),
)

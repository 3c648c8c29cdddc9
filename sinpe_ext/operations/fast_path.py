"""What `csrc/pybind/fast_path/`, which checks and runs most calls, needs of Python: plans, grids, seeds, autograd.

Such a call takes microseconds, of which checks in Python and torch's dispatcher would take most. The functions of C,
`loader.fast_functions["add"]` and so on, return None for arguments that they do not take; the caller then takes the
general path, which raises the error messages. If the installation has not built the module `_core`, they take none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import torch_state
from ..backend import loader
from ..device_constants import releases_with
from ..encodings import resolve
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..operator import Unsaved, apply_of
from ..records import Add, Dropout, Embed
from ..reference.tiles import accumulation, widest
from . import dropout, grid_rows
from .add import ADD, AddArguments, alpha_gradient
from .dropout import scaled
from .embed import EMBED, EmbedArguments
from .grid_add import GridAdd
from .plans import CPU, pack_plan


def _device(index: int) -> torch.device:
    """The CUDA device of this number; the CPU for -1."""
    return CPU if index < 0 else torch.device("cuda", index)


def _plan(encoding: Any, dim: int, device: int) -> tuple[Tensor, int, int, int, int] | None:
    """The packed plan of an `encoding` argument for `dim` channels: (tensor, address, number of elements, number of
    channels, start of the encoding); None if the kernels do not support it. For a dim of 0 the argument must be an
    Encoding."""
    if dim and (encoding is None or type(encoding) is str):
        try:
            encoding = None if resolve.is_grid(encoding) else resolve.encoding(encoding, dim)
        except (TypeError, ValueError):  # the general path raises the error of the first invalid argument
            return None
    if type(encoding) is not Encoding or encoding.angle != "exact" or encoding.dim != (dim or encoding.dim):
        return None
    packed_plan = pack_plan(encoding, _device(device))
    return packed_plan, packed_plan.data_ptr(), packed_plan.numel(), encoding.dim, encoding.start


def _draw_seed(device: int) -> int:
    return dropout.draw(_device(device))


def _rows(of: AddArguments | EmbedArguments, seed: int, drop_threshold: int, device: torch.device) -> dict[str, Any]:
    """The operands that `add` and `embed` have in common, for arguments that C has checked."""
    start, positions, mask, alpha = of.start, of.positions, of.padding_mask, of.alpha
    are_starts = isinstance(start, Tensor)
    if are_starts:
        positions, start = start.reshape(-1, 1), 0
    elif positions is not None:
        positions = positions.reshape(-1, positions.shape[-1])
    if mask is not None:
        mask = mask.reshape(-1, mask.shape[-1])
    if not isinstance(alpha, Tensor):
        alpha = None if alpha == 1.0 else dropout.number(alpha, widest(device), device)
    return {
        "positions": positions,
        "padding_mask": mask,
        "alpha": alpha,
        "seed": _seed_tensor(seed, drop_threshold, device),
        "start": start,
        "positions_are_starts": are_starts,
        "scale": of.scale,
        "drop_threshold": drop_threshold,
    }


def _seed_tensor(seed: int, drop_threshold: int, device: torch.device) -> Tensor | None:
    return dropout.number(seed, torch.int64, device) if drop_threshold else None


# Results that C has computed, as differentiable.


class RecordedAdd(torch.autograd.Function):
    """The result of `add` as differentiable with respect to x, as dropout(scale * x), which differs by a constant; and
    with respect to alpha, unless that is None. With alpha, positions are implicit and there is no dropout."""

    @staticmethod
    def forward(
        ctx: Any, call: tuple[Tensor, Tensor | None, int, int, int, float], x: Tensor, alpha: Tensor | None
    ) -> Tensor:
        # In a tuple, because autograd would return a view of an argument.
        result, plan, ctx.start, *ctx.numbers = call
        if alpha is not None:
            ctx.save_for_backward(plan)
            ctx.alpha = Unsaved(alpha.shape, alpha.dtype, alpha.device)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (seed, drop_threshold, scale) = grads, ctx.numbers
        of_x = of_alpha = sum_of_rows = None
        is_compiling = torch.compiler.is_compiling()
        if ctx.needs_input_grad[1]:
            if drop_threshold and not is_compiling:
                of_x = loader.fast_functions["dropout"](grad, *ctx.numbers)
            if of_x is None:
                of_x = scaled(Dropout(grad, _seed_tensor(seed, drop_threshold, grad.device), drop_threshold, scale))
        if ctx.needs_input_grad[2]:
            (plan,), alpha = ctx.saved_tensors, ctx.alpha
            if not is_compiling:
                sum_of_rows = loader.fast_functions["alpha_gradient"](grad, plan, ctx.start)
            if sum_of_rows is None:
                of_alpha = alpha_gradient(grad, Add(grad, plan, alpha=alpha, start=ctx.start))
            else:
                try:
                    of_alpha = torch.full(alpha.shape, sum_of_rows, dtype=alpha.dtype, device=alpha.device)
                except RuntimeError:  # it overflows to infinity
                    of_alpha = torch.full(alpha.shape, sum_of_rows, dtype=torch.float64).to(alpha.dtype)
        return None, of_x, of_alpha


def _recorded_add_rows(
    result: Tensor, given: tuple[Any, ...], plan: tuple[Any, ...], seed: int, drop_threshold: int
) -> Tensor:
    """The result of `add` of an x in canonical form as differentiable with respect to x, alpha and positions."""
    a = AddArguments(*given)
    return ADD.recorded(Add(a.x, plan[0], **_rows(a, seed, drop_threshold, a.x.device)), result)


def _recorded_embed(
    result: Tensor, given: tuple[Any, ...], plan: tuple[Any, ...], seed: int, drop_threshold: int
) -> Tensor:
    """The result of `embed` as differentiable with respect to weight, alpha and positions."""
    e = EmbedArguments(*given)
    padding_row = -1 if e.padding_idx is None else e.padding_idx % e.weight.shape[0]
    rows = _rows(e, seed, drop_threshold, e.weight.device)
    return EMBED.recorded(Embed(e.ids, e.weight, plan[0], padding_idx=padding_row, sparse=e.sparse, **rows), result)


def _grid(given: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The grid of a call of `add`: (the tensors, address and number of elements of the packed grid, the same of the
    rows of its axes, sizes and strides of x as a tensor of three dimensions, whose rows are the extra tokens and the
    points, number of extra tokens); None for the general path."""
    arguments = AddArguments(*given)
    try:
        if not resolve.is_grid(arguments.encoding):
            return None
        call = GridAdd(arguments)
    except (IndexError, TypeError, ValueError, RuntimeError):  # the general path raises it again
        return None
    x, form = call.x, call.form
    # With the extra tokens, which are the first rows: of a single row behind them, the stride would be arbitrary.
    view = x.permute(*form.batch_at, *form.rows_at, form.channels_at) if form.extra else form.canonical(x)
    by_channels = view.stride(-1) != 1 == view.stride(-2)
    is_supported = call.has_kernel and not call.is_single_encoding and form.points and form.is_viewable(x)
    if not is_supported or (form.extra and (by_channels or form.rows_at[0] != x.dim() - 2)):
        return None
    lengths, acc = tuple(form.lengths), accumulation(x.dtype)
    of = grid_rows.AxisRows(call.grid, lengths, tuple(call.starts), acc, x.device, by_channels)
    if x.is_cuda and not grid_rows.are_cached(of):
        return None
    view = view.transpose(-1, -2) if by_channels else view
    try:
        view = view.view(-1, *view.shape[-2:])
    except RuntimeError:  # its samples are not evenly spaced
        return None
    if by_channels and x.is_cpu:  # a table of all points, so that nothing is left to combine
        value, dim = call.grid_given
        rows = grid_rows.table(value, dim, lengths, call.starts, acc, x.device).reshape(-1, dim).t().contiguous()
        whole = GridEncoding((grid_rows.zero_encoding(form.points),))
        packed = grid_rows.pack_grid(whole, (dim,), False, x.device)
    else:
        rows = grid_rows.values(of)
        packed = grid_rows.pack_grid(call.grid, lengths, by_channels, x.device)
        rows = grid_rows.values(of)  # again: on CUDA the second constant may have displaced the first in the cache
    operands = packed.data_ptr(), packed.numel(), rows.data_ptr(), rows.numel()
    return (packed, rows), *operands, tuple(view.shape), view.stride(), form.extra


def set_up(module: Any) -> bool:
    """Passes the Python objects that `csrc/pybind/fast_path/` needs to the module `_core`; returns whether it can be
    used."""
    of_torch = (
        Tensor,
        torch.empty_like,
        torch._C._is_cow_tensor,  # type: ignore[attr-defined]
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch._C._increment_version,  # type: ignore[attr-defined]
        nn.Parameter,
        torch.empty,
        torch.float32,
        torch.embedding,
        torch.ops.aten.mul.Scalar,  # saves no tensor for backward; x * number does
        GridEncoding,
    )
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    conditions = torch_state.CONDITIONS, torch_state.VARIABLES, torch_state.is_intercepted
    recorded = apply_of(RecordedAdd), _recorded_add_rows, _recorded_embed
    functions = _plan, _grid, _draw_seed, *recorded, torch.autograd._profiler_enabled  # type: ignore[attr-defined]
    is_usable: bool = exchange is not None and module.set_up(exchange, *of_torch, *conditions, *functions)
    if is_usable:
        torch_state.use_compiled(module.is_intercepted)
        releases_with(module.forget)
    return is_usable

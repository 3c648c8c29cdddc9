"""Code that the layers share: argument checks, the limit `max_len`, torch.fx tracing, and `extra_repr`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import torch_state
from ..encodings import values
from ..encodings.values import is_dtensor
from ..operations import checks
from ..operations.sum import Sum


def repr_parts(layer: Any) -> list[str]:
    """The parts of `extra_repr` that both layers have: the encoding, and the options that differ from their default."""
    parts = [repr(layer.encoding)]
    parts += [f"max_len={layer.max_len}"] if layer.max_len is not None else []
    parts += ["require_positions=True"] if layer.require_positions else []
    parts += ["batch_first=False"] if not layer.batch_first else []
    parts += [f"scale={layer.scale:g}"] if layer.scale != 1.0 else []
    parts += [f"alpha={layer._first_alpha:g}"] if layer._first_alpha != 1.0 else []
    return [*parts, "learned_alpha=True"] if isinstance(layer.alpha, nn.Parameter) else parts


def factory_kwargs(device: Any, dtype: Any) -> dict[str, Any]:
    """Checks `device` and `dtype` of a layer and returns them as keyword arguments of tensor factories."""
    checks.float_dtype("dtype", torch.get_default_dtype() if dtype is None else dtype)
    return {"device": None if device is None else checks.torch_device(device), "dtype": dtype}


def check_unsupported(max_norm: Any, scale_grad_by_freq: Any) -> None:
    """Refuses the two options of nn.Embedding that SinusoidalEmbedding does not support."""
    if max_norm is not None or values.flag("scale_grad_by_freq", scale_grad_by_freq):
        raise ValueError(
            f"max_norm, scale_grad_by_freq: expected None and False, got {values.shown(max_norm)} and "
            f"{scale_grad_by_freq}; for these options use nn.Embedding followed by SinusoidalPositionalEncoding"
        )


def refuse_script(layer: nn.Module) -> nn.Module:
    """`__prepare_scriptable__` of the layers, which torch.jit.script calls first: raises NotImplementedError."""
    raise NotImplementedError(checks.NO_SCRIPT)


def check_required_positions(layer: Any, t: Any, positions: Any) -> None:
    """Raises ValueError if a layer with require_positions=True is called without positions on an ordinary tensor."""
    if layer.require_positions and positions is None and not is_dtensor(t):
        raise ValueError(
            "positions: expected the positions of these rows, as the layer's require_positions=True says, got none; "
            "pass those of this part of the sequence, see sinpe_ext.distributed.shard_positions, or DTensors"
        )


def rate(dropout: Any) -> tuple[float, nn.Module | None]:
    """(p, module): the dropout probability of the fused pass, and the module to apply after it.

    The module is None for an ordinary nn.Dropout. If the dropout has hooks or is another module, p is 0 and the module
    itself is called.
    """
    if type(dropout) is not nn.Dropout or (
        dropout._forward_hooks or dropout._forward_pre_hooks or dropout._backward_hooks or dropout._backward_pre_hooks
    ):
        return 0.0, dropout
    return (dropout.p if dropout.training else 0.0), None


def is_within(first: Any, rows: Any, max_len: int) -> bool:
    """Whether max_len allows `rows` rows from the int `first` on, decided without reading tensor data.

    False if `check_limit` has to decide, and under tracing, where the answer would become a constant of the graph.
    """
    return not torch_state.read().traced and type(first) is int and 0 <= first <= max_len - rows


def is_fx_proxy(value: Any) -> bool:
    """Whether the input of a layer is a torch.fx.Proxy, as under torch.fx.symbolic_trace."""
    return not isinstance(value, Tensor) and isinstance(value, torch.fx.Proxy)


def record_fx_call(layer: nn.Module, value: Any, **options: Any) -> Any:
    """Records the call of a layer as one call_module node: the layer is a leaf module, as those of torch.nn are.

    torch.fx recognizes leaf modules by the module name torch.nn, so the layer has to record itself.
    """
    return value.tracer.create_proxy("call_module", value.tracer.path_of_module(layer), (value,), options)


def check_limit(call: Any, max_len: int) -> None:
    """Raises IndexError for positions outside of the first max_len of the encoding, as indexing a table would."""
    call = getattr(call, "call", call)  # that of the values of a jagged tensor, or of the local tensor of a DTensor
    if not hasattr(call, "sum"):  # a process that is not part of the mesh has no rows
        return
    of: Sum = call.sum
    rows, lowest = of.layout.rows, of.firsts[0]
    highest = lowest + max_len - 1
    first: float
    last: float
    if of.positions is None:
        rows = of.layout.whole_rows
        first = lowest + of.start[0] - of.layout.row_offset
        last = first + rows - 1
        if isinstance(of.start[0], torch.SymInt):  # a comparison would limit the sizes that a program accepts
            allowed = torch.scalar_tensor(first, dtype=torch.int64) >= lowest
            allowed &= torch.scalar_tensor(last, dtype=torch.int64) <= highest
            torch._assert_async(allowed, _limit_message(of, lowest, highest, "others"))
            return
    elif not rows or 0 in of.positions.shape or of.device.type == "meta":
        return
    else:
        p = of.positions
        if torch_state.unreadable(p):
            ahead = rows - 1 if of.positions_are_starts else 0
            allowed = ((p >= lowest) & (p <= highest - ahead)).all()
            torch._assert_async(allowed, _limit_message(of, lowest, highest, "others"))
            return
        first, last = torch.stack(p.aminmax()).tolist()  # the only synchronization with a device
        last += rows - 1 if of.positions_are_starts else 0
    if rows and not (first >= lowest and last <= highest):
        is_below = first < lowest
        raise IndexError(_limit_message(of, lowest, highest, f"{first if is_below else last}", is_below))


def _limit_message(of: Sum, lowest: int, highest: int, got: str, is_below: bool = False) -> str:
    """The error message for a position outside of lowest..highest; `is_below`: known to be below it."""
    advice = "raise max_len or leave it unset, no table is stored"
    is_start = of.positions is None or of.positions_are_starts
    if is_below and is_start:
        advice = "pass a start of 0 or more"
    elif is_below:
        absolute = f"add encoding.start, {lowest}, to them, which explicit positions include"
        advice = absolute if lowest else "pass 0 or more"
    start, layout = of.start[0], of.layout
    if of.positions is None and not isinstance(start, torch.SymInt) and start == layout.row_offset:  # too many rows
        allowed = f"{layout.target.name}: expected at most {highest - lowest + 1} rows, which max_len allows"
        return f"{allowed}, got {layout.whole_rows}; {advice}"
    if is_start:
        return f"start: expected rows at positions {lowest} to {highest}, which max_len allows, got {got}; {advice}"
    return f"positions: expected {lowest} to {highest}, the rows that max_len allows, got {got}; {advice}"

"""What the layers share: their fast path, their limit of rows, and what they print."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import checks
from ..ops import traced
from ..runtime import observers
from ..runtime.observers import is_traced
from ..runtime.parallel import is_dtensor


def options(layer: Any) -> list[str]:
    """What both layers print of themselves: the encoding, and what differs from its default."""
    parts = [repr(layer.encoding)]
    parts += [f"max_len={layer.max_len}"] if layer.max_len is not None else []
    parts += ["require_positions=True"] if layer.require_positions else []
    parts += ["batch_first=False"] if not layer.batch_first else []
    parts += [f"scale={layer.scale:g}"] if layer.scale != 1.0 else []
    parts += [f"alpha={layer._first_alpha:g}"] if layer._first_alpha != 1.0 else []
    return [*parts, "learned_alpha=True"] if isinstance(layer.alpha, nn.Parameter) else parts


def factory(device: Any, dtype: Any) -> dict[str, Any]:
    """`device` and `dtype` of a layer, checked, as arguments for what makes its tensors."""
    checks.float_dtype("dtype", torch.get_default_dtype() if dtype is None else dtype)
    return {"device": None if device is None else checks.device(device), "dtype": dtype}


def not_offered(max_norm: Any, scale_grad_by_freq: Any) -> None:
    if max_norm is not None or checks.flag("scale_grad_by_freq", scale_grad_by_freq):
        raise ValueError(
            f"max_norm, scale_grad_by_freq: expected None and False, got {checks.shown(max_norm)} and "
            f"{scale_grad_by_freq}; they are nn.Embedding's alone, use it with SinusoidalPositionalEncoding"
        )


def refuse(layer: nn.Module, unnamed: tuple[Any, ...], unknown: dict[str, Any]) -> None:
    """Refuses arguments that forward does not have."""
    if unnamed:
        raise TypeError(
            f"{type(layer).__name__}: expected one argument by position, got {1 + len(unnamed)}; name the others. "
            "torch.onnx.export(dynamo=False) names none: export torch.nn.Sequential(layer)"
        )
    checks.no_unknown(type(layer).forward, unknown)


def refuse_script(layer: nn.Module) -> nn.Module:
    """What torch.jit.script asks of a module before it reads its code."""
    raise NotImplementedError(checks.NO_SCRIPT)


def check_positions(layer: Any, t: Any, positions: Any) -> None:
    """`require_positions` of a layer."""
    if layer.require_positions and positions is None and not is_dtensor(t):
        raise ValueError(
            "positions: expected the positions of these rows, as the layer's require_positions=True says, got none; "
            "pass those of this part of the sequence, see sinpe_ext.distributed.shard_positions, or DTensors"
        )


def rate(dropout: Any) -> tuple[float, nn.Module | None]:
    """The probability to drop with in the fused pass, and what else a layer put in nn.Dropout's place has to do."""
    if type(dropout) is not nn.Dropout or (
        dropout._forward_hooks or dropout._forward_pre_hooks or dropout._backward_hooks or dropout._backward_pre_hooks
    ):
        return 0.0, dropout
    return (dropout.p if dropout.training else 0.0), None


def is_within(first: Any, rows: Any, max_len: int) -> bool:
    """Whether rows from an int `first` on are among the max_len first ones; False where `check_limit` has to see, and
    where someone looks on, who would keep the answer."""
    return not is_traced() and type(first) is int and 0 <= first <= max_len - rows


def is_symbolic(given: Any) -> bool:
    """Whether a layer is called under torch.fx.symbolic_trace, with what stands for a tensor."""
    return not isinstance(given, Tensor) and isinstance(given, torch.fx.Proxy)


def symbolic(layer: nn.Module, given: Any, **options: Any) -> Any:
    """The node of such a call: a layer is a leaf, as torch.nn's are; a tracer knows those by their names alone."""
    return given.tracer.create_proxy("call_module", given.tracer.path_of_module(layer), (given,), options)


def check_limit(call: Any, max_len: int) -> None:
    """Rows 0 .. max_len - 1 of the encoding, as an index into a table of max_len rows would have it."""
    call = getattr(call, "local", call)  # of a DTensor
    if not hasattr(call, "shape"):  # of a process that is not part of the mesh: no rows
        return
    rows, lowest = call.shape[-2], call.encoding.start
    highest = lowest + max_len - 1
    first: float
    last: float
    if call.positions is None:
        rows = call.whole_rows
        first = lowest + int(call.start) - call.row_offset
        last = first + rows - 1
        if checks.is_jit_traced():
            _assert_in_trace(call, first + call.length() - 1 <= highest, _limit_message(lowest, highest, "others"))
    elif not rows or 0 in checks.sizes(call.positions) or call.device.type == "meta":
        return
    else:
        p = call.positions
        by_start = call.are_starts
        if observers.unreadable(p):
            ahead = call.length() - 1 if by_start else 0
            allowed = ((p >= lowest) & (p <= highest - ahead)).all()
            message = _limit_message(lowest, highest, "others")
            if checks.is_jit_traced():
                _assert_in_trace(call, allowed, message)
            else:
                torch._assert_async(allowed, message)
            return
        first, last = torch.stack(p.aminmax()).tolist()  # on a device: the one wait
        last += rows - 1 if by_start else 0
    if rows and not (first >= lowest and last <= highest):
        raise IndexError(_limit_message(lowest, highest, f"{last if first >= lowest else first}"))


def _assert_in_trace(call: Any, condition: Tensor, message: str) -> None:
    """Has torch.jit.trace record that a condition must hold; ONNX has no assertions."""
    if not observers.is_exporting():
        call.depend_on(traced.zero_where(condition, message))


def _limit_message(lowest: int, highest: int, got: str) -> str:
    return (
        f"positions: expected {lowest} to {highest}, the rows that max_len allows, got {got}; raise max_len or leave "
        "it unset, there is no table to outgrow"
    )

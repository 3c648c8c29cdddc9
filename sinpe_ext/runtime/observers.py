"""Who looks at the operations of a call: a compiler, a tracer, torch.func, an exporter. And are there numbers?"""

from __future__ import annotations

import os
from contextvars import ContextVar

import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils import _device

from .parallel import in_context_parallel
from .tracing import constant_in_graph, is_jit_traced

_is_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state
_function_modes = torch._C._len_torch_function_stack
_PROXY = torch._C._TorchDispatchModeKey.PROXY
_ATTENTION = torch._C._nn.scaled_dot_product_attention  # which context_parallel replaces

# Set by `integrations.standard_operators`.
standard_operators_asked: ContextVar[bool] = ContextVar("sinpe_ext_standard_operators", default=False)


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work, which look into every operation."""
    return is_functional() or forward_ad._current_level >= 0


def is_functional() -> bool:
    """Whether torch.func is at work, also in a graph."""
    return _transforms()


def is_traced() -> bool:
    """Whether someone looks at the operators: a compiler, a dispatch mode (fake tensors, make_fx), torch.func,
    torch.jit.trace."""
    return _is_compiling() or _modes() > 0 or _transforms() or _tracing_state() is not None


# `is_looked_at` but for the compiler, as `csrc/pybind/small_calls.h` asks it: what these functions answer, and the
# values of these modules' variables, where nobody looks.
QUESTIONS = (_modes, 0), (_transforms, False), (_tracing_state, None), (_function_modes, 0)
VARIABLES = (vars(forward_ad), "_current_level", -1), (vars(functional), "scaled_dot_product_attention", _ATTENTION)


def is_looked_at() -> bool:
    """Whether a small call has to take the long way for the sake of anyone but its caller: `is_traced()`, written out
    here since this costs a tenth of such a call, forward-mode differentiation, a TorchFunctionMode (make_fx before
    dispatch has one), or context_parallel, which has reordered the rows."""
    return (
        _is_compiling()
        or _modes() > 0
        or _transforms()
        or _tracing_state() is not None
        or forward_ad._current_level >= 0
        or (_function_modes() > 0 and not _is_default_device())
        or (functional.scaled_dot_product_attention is not _ATTENTION and in_context_parallel())
    )


def _is_default_device() -> bool:
    """Whether all TorchFunctionModes are those of torch.set_default_device and `with torch.device(...)`."""
    return all(
        type(torch._C._get_function_stack_at(k)) is _device.DeviceContext  # type: ignore[attr-defined]
        for k in range(_function_modes())
    )


def needs_operations() -> bool:
    """Whether a call is to be made of operations that someone looks into: a compiler, torch.func and forward mode,
    torch.jit.trace and make_fx."""
    return (
        _is_compiling()
        or _transforms()
        or forward_ad._current_level >= 0
        or _tracing_state() is not None
        or is_fx_tracing()
    )


def no_data(device: torch.device) -> bool:
    """Whether tensors on a device have shapes only: on the meta device, or under a FakeTensorMode."""
    if device.type == "meta":
        return True
    return _modes() > 0 and torch._guards.detect_fake_mode() is not None


def is_fx_tracing() -> bool:
    """Whether make_fx writes down the operations. Before dispatch it has a TorchFunctionMode and a stack of its own."""
    if _modes() > 0 and torch._C._get_dispatch_mode(_PROXY) is not None:
        return True
    return _function_modes() > 0 and torch._ops._get_dispatch_mode_pre_dispatch(_PROXY) is not None


@constant_in_graph
def is_exporting() -> bool:
    """Whether the graph in the making is to hold no operator of ours: torch.onnx.export, or `standard_operators`."""
    return standard_operators_asked.get() or torch.onnx.is_in_onnx_export()


def unreadable(value: torch.Tensor) -> bool:
    """Whether a tensor's numbers cannot be looked at: meta and fake tensors, a graph in the making, torch.func."""
    if value.device.type == "meta" or _is_compiling() or is_jit_traced():
        return True
    if is_functional() or _modes() > 0:
        return True
    return value.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def of_values() -> bool:
    """Whether SINPE_EXT_CHECK=1 asks for checks of numbers on a device, which wait for it."""
    return os.environ.get("SINPE_EXT_CHECK", "0") not in ("", "0")


def should_check_values(value: torch.Tensor) -> bool:
    """Whether a tensor's numbers are checked: on the CPU, where that costs next to nothing, else where asked for."""
    return (value.device.type == "cpu" or of_values()) and not unreadable(value)

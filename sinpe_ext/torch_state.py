"""What intercepts a call: a compiler, a tracer, a transform (torch.func) or a mode; and whether tensors have readable
data."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils import _device

from .encodings.tracing import constant_in_graph

_is_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state
_function_modes = torch._C._len_torch_function_stack
# Whether make_fx with pre_dispatch traces; in a backward pass its TorchFunctionMode is not active.
_pre_dispatch = functools.partial(torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch)
_PROXY = torch._C._TorchDispatchModeKey.PROXY
PLAIN = torch.Tensor, torch.nn.Parameter
_PRIVATE_DEVICE = torch._C._get_privateuse1_backend_name()
_ATTENTION = torch._C._nn.scaled_dot_product_attention  # context_parallel replaces it

P = ParamSpec("P")
R = TypeVar("R")


class TorchState(NamedTuple):
    """What intercepts the operations of a call; `read` returns it.

    Attributes:
        compiling: torch.compile or torch.export is tracing.
        functorch: a torch.func transform is active, inside a graph as well.
        transformed: that, or forward-mode differentiation, which intercept every operation, inside a graph as well.
        traced: operators are intercepted by a compiler, a dispatch mode (fake tensors, make_fx) or torch.func.
        fx_tracing: make_fx is tracing the operations.
        must_decompose: the call has to consist of dispatched torch operations, because a compiler, torch.func,
            forward-mode differentiation or make_fx intercepts them.
        fake: a FakeTensorMode is active: tensors have shapes but no data.
        jit_tracing: torch.jit.trace, or the ONNX exporter built on it, is recording.
        context_parallel: torch.distributed's context_parallel has reordered the rows of tensors.
    """

    compiling: bool = False
    functorch: bool = False
    transformed: bool = False
    traced: bool = False
    fx_tracing: bool = False
    must_decompose: bool = False
    fake: bool = False
    jit_tracing: bool = False
    context_parallel: bool = False


# Before, torch.compile does not accept encodings as constants.
_runs_in_graphs = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)


def check_version() -> None:
    """Raises RuntimeError if this torch cannot compile or export calls of this library; without fullgraph=True,
    torch.compile then runs the calling function uncompiled."""
    if not _runs_in_graphs:
        raise RuntimeError(
            f"torch: expected 2.12 or newer inside of torch.compile and torch.export, got {torch.__version__}; update "
            "torch, or call sinpe_ext outside of the compiled function"
        )


NOT_INTERCEPTED = TorchState()  # nothing intercepts the call


def read() -> TorchState:
    """The state at this moment: the object NOT_INTERCEPTED itself if nothing intercepts the call."""
    if _is_compiling():
        functorch = _transforms()
        transformed = functorch or _is_dual_level_traced()
        return TorchState(True, functorch, transformed, True, False, True, context_parallel=in_context_parallel())
    if not (_is_intercepted() or _pre_dispatch()):
        return NOT_INTERCEPTED
    functorch = _transforms()
    transformed, modes, fx_tracing = functorch or forward_ad._current_level >= 0, _modes() > 0, _is_fx_tracing()
    return TorchState(
        functorch=functorch,
        transformed=transformed,
        traced=modes or functorch,
        fx_tracing=fx_tracing,
        must_decompose=transformed or fx_tracing,
        fake=modes and torch._guards.detect_fake_mode() is not None,
        jit_tracing=_tracing_state() is not None,
        context_parallel=in_context_parallel(),
    )


@constant_in_graph
def _is_dual_level_traced() -> bool:
    """Whether forward-mode differentiation is active at this place of a graph. The graph is valid for calls at the same
    dual level only, which torch.compile guards only if the graph itself contains a dual level."""
    if torch._guards.TracingContext.try_get() is not None:  # there is none in an export that is not strict
        # torch's internals: without them, only a graph that is used at another dual level would not be compiled again.
        with suppress(ImportError, AttributeError):
            from torch._dynamo.guards import install_guard
            from torch._dynamo.variables.ctx_manager import DualLevelContextManager

            install_guard(DualLevelContextManager._guards_singleton)
    return forward_ad._current_level >= 0


@constant_in_graph
def is_vmapped() -> bool:
    """Whether torch.vmap is active, inside a graph as well."""
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    return any(transform.key() == torch._C._functorch.TransformType.Vmap for transform in transforms)


# The conditions of `is_intercepted` except the compiler's, as csrc/pybind/repeat.h evaluates them: the functions
# with the results they return, and the modules' variables with the values they have, while nothing intercepts the call.
CONDITIONS = (_modes, 0), (_transforms, False), (_tracing_state, None), (_function_modes, 0)
VARIABLES = (vars(forward_ad), "_current_level", -1), (vars(functional), "scaled_dot_product_attention", _ATTENTION)


def is_intercepted() -> bool:
    """Whether something intercepts the call: a field of `TorchState`, or a TorchFunctionMode (such as that of make_fx
    with pre_dispatch)."""
    return (
        _is_compiling()
        or _modes() > 0
        or _transforms()
        or _tracing_state() is not None
        or forward_ad._current_level >= 0
        or (_function_modes() > 0 and not _is_default_device())
        or (functional.scaled_dot_product_attention is not _ATTENTION and in_context_parallel())
    )


_is_intercepted: Callable[[], bool] = is_intercepted


def use_compiled(function: Callable[[], bool]) -> None:
    """Makes `read` use the function `is_intercepted` of the module `_core`, which takes half the time."""
    global _is_intercepted
    _is_intercepted = function


def _is_default_device() -> bool:
    """Whether every active TorchFunctionMode is that of torch.set_default_device or `with torch.device(...)`."""
    return all(
        type(torch._C._get_function_stack_at(k)) is _device.DeviceContext  # type: ignore[attr-defined]
        for k in range(_function_modes())
    )


def _is_fx_tracing() -> bool:
    """Whether make_fx is tracing. With pre_dispatch it uses a mode stack of its own."""
    if _modes() > 0 and torch._C._get_dispatch_mode(_PROXY) is not None:
        return True
    return _pre_dispatch() and torch._ops._get_dispatch_mode_pre_dispatch(_PROXY) is not None


_standard_operators_asked: ContextVar[str] = ContextVar("sinpe_ext_standard_operators", default="")


@contextmanager
def standard_operators(*, float64: bool = False) -> Iterator[None]:
    """Context manager: torch.export.export produces a program of standard operators only, for runtimes without the
    operators of this package.

    By default the program computes encodings with integers and float32 only, for runtimes without float64 such as Core
    ML and TensorRT. torch.onnx.export of a module does not need this context manager, and uses float64.

    Equivalent to such an export, with a program that can be saved::

        with standard_operators(float64=True):
            program = torch.export.export(model, arguments)
        torch.onnx.export(program, dynamo=True)

    Args:
        float64: compute with float64 instead, for any position and frequency: half the operations.
    Accuracy:
        as `reference.onnx.encode`: float32 within 1 ULP for positions below 2**32 in size, NaN beyond; with
        float64=True for every int64. A result in float64, or of float64 positions, is computed in float64.
    Raises:
        ValueError for dropout, and, without float64=True, for a start of 2**32 or more and for fractional positions
        with frequencies of 2**9 turns or more, while the program is made.
    """
    token = _standard_operators_asked.set("float64" if float64 else "float32")
    try:
        yield
    finally:
        _standard_operators_asked.reset(token)


@constant_in_graph
def is_exporting() -> bool:
    """Whether the graph being traced must not contain custom operators: torch.onnx.export, or `standard_operators`."""
    return bool(_standard_operators_asked.get()) or torch.onnx.is_in_onnx_export()


@constant_in_graph
def exports_float64() -> bool:
    """Whether such a graph may compute in float64."""
    return _standard_operators_asked.get() != "float32"


def in_context_parallel() -> bool:
    """Whether torch.distributed.tensor.experimental.context_parallel is active: it reorders the sequence of ordinary
    tensors, and replaces scaled_dot_product_attention by its own function."""
    attention = functional.scaled_dot_product_attention
    if attention is _ATTENTION:  # the usual answer, in a tenth of a microsecond
        return False
    return (getattr(attention, "__module__", None) or "").startswith("torch.distributed.tensor.experimental")


def has_no_data(device: torch.device) -> bool:
    """Whether tensors on a device have shapes but no data: on the meta device, or under a FakeTensorMode."""
    return device.type == "meta" or read().fake


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream of this device, which need not be the current device, is being captured."""
    if torch.cuda.device_count() == 1 or device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def has_own_dispatch(value: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass that runs the operations on it itself, such as a quantized or a wrapped tensor,
    and may lack the operators of this package. False for fake tensors, and for a device that is written in Python."""
    kind = type(value)
    return kind not in PLAIN and _runs_operations(kind) and value.device.type != _PRIVATE_DEVICE


@constant_in_graph
def _runs_operations(kind: Any) -> bool:
    if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return False
    return not issubclass(kind, (torch._subclasses.FakeTensor, torch._subclasses.functional_tensor.FunctionalTensor))


def unreadable(value: torch.Tensor) -> bool:
    """Whether a tensor's values cannot be read: meta and fake tensors, tracing, torch.func, CUDA graph capture."""
    state = read()
    if value.is_meta or state.traced or state.fx_tracing or (type(value) not in PLAIN and has_own_dispatch(value)):
        return True
    return value.is_cuda and is_capturing(value.device)


def device_checks_requested() -> bool:
    """Whether SINPE_EXT_CHECK=1 requests that values in device memory are checked; each check synchronizes."""
    return os.environ.get("SINPE_EXT_CHECK", "0") not in ("", "0")


def should_check_values(value: torch.Tensor) -> bool:
    """Whether a tensor's values are checked: on the CPU, where reading them is cheap, elsewhere only on request."""
    return (value.is_cpu or device_checks_requested()) and not unreadable(value)


def outside_modes(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: run the function outside of dispatch modes (fake tensors, make_fx), torch.func and inference mode, so
    that its tensors are ordinary and can be cached. A default device still applies: the function passes `device=`.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch._C._DisableTorchDispatch(), torch._C._DisableFuncTorch(), torch._C._InferenceMode(False):
            return function(*args, **kwargs)

    return run

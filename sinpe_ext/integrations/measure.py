"""Differences between outputs, and the differences that float32 angles explain."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding

# Relative error of an angle p * w computed in float32 from a float32 frequency: three roundings in the exponent, exp or
# pow within an ULP, a product and a division. At w = 1 that is p * 2^-22 (tests/peers/agreement.py has the sum).
ANGLE = 2.0**-22
VALUE = 2.0**-23  # error of its sine or cosine, within an ULP below 1
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
CHUNK = 2**22  # entries compared at a time


@dataclass
class Probe:
    """A call of a module for comparison: its arguments, and the largest position that it uses.

    Attributes:
        reported: whether its difference counts for the report; False if it only measures 16-bit rounding.
        slack: factor of the allowed error, if the old code rounds more than angles (normalised positions).
        rounds: the dtype to which the old code rounds products, if its output has a wider one.
        dropout: calls in training mode with this probability of its children's dropout, with gradients; None: in
            evaluation mode, without.
        method: the method that is called.
        may_fail: whether the old code may raise, as for a sequence longer than its table.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    position: float = 0.0
    slack: float = 1.0
    reported: bool = True
    rounds: torch.dtype | None = None
    dropout: float | None = None
    method: str = "forward"
    may_fail: bool = False

    def call(self, module: Any) -> Any:
        """The output of a module, a copy."""
        in_training = self.dropout is not None
        for each in module.modules():
            each.__dict__["training"] = in_training
            if in_training and isinstance(each, nn.Dropout):
                each.__dict__["p"] = self.dropout
        with quiet(), torch.set_grad_enabled(in_training):
            return getattr(module, self.method)(*self.args, **self.kwargs)


class Differs(Exception):
    """Raised if two outputs differ; the message says how."""


def steepest(encoding: Encoding | GridEncoding) -> float:
    """The largest angular frequency, in radians per position."""
    axes = encoding.axes if isinstance(encoding, GridEncoding) else (encoding,)
    return max(abs(w) for axis in axes for w in (*axis.frequencies_radians(), 0.0))


def amplitude(encoding: Encoding | GridEncoding) -> float:
    """The largest amplitude of the axes."""
    axes = encoding.axes if isinstance(encoding, GridEncoding) else (encoding,)
    return max(abs(axis.amplitude) for axis in axes)


def allowed(encoding: Encoding | GridEncoding, position: float, dtype: torch.dtype, size: float = 1.0) -> float:
    """The difference explained by float32 angles at a position and by rounding values of a given size to a dtype."""
    rounding = 4 * ROUNDING.get(dtype, 0.0) * size
    return amplitude(encoding) * (abs(position) * steepest(encoding) * ANGLE + VALUE) + rounding


def difference(old: Any, new: Any) -> float:
    """The largest difference between two outputs. Raises Differs if their type, shape, dtype or device differs."""
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        raise Differs(f"its output is {type(old).__name__}, not a tensor")
    for what in ("shape", "dtype", "device"):
        if getattr(old, what) != getattr(new, what):
            raise Differs(f"the {what} of the output would be {getattr(new, what)}, not {getattr(old, what)}")
    if old.is_meta:
        raise Differs("its tensors are on the meta device: load the weights first")
    if not old.numel():
        return 0.0
    if old.dim() < 2 or old.numel() <= CHUNK:
        return _largest(old, new)
    rows = max(1, CHUNK * old.shape[0] // old.numel())
    return max(_largest(*pair) for pair in zip(old.split(rows), new.split(rows), strict=True))


def _largest(old: Tensor, new: Tensor) -> float:
    """The largest absolute difference of two tensors; inf if NaN or infinite values differ."""
    old, new = old.detach().cpu(), new.detach().cpu()
    apart = (old.double() - new.double()).abs()
    # Equal infinities and NaNs count as no difference.
    return float(apart.masked_fill((old == new) | (old.isnan() & new.isnan()), 0.0).nan_to_num(nan=float("inf")).max())


def is_table(given: Tensor, rows: Tensor, encoding: Encoding | GridEncoding) -> bool:
    """Whether a table holds the rows of an encoding, except for the float32 error of its angles."""
    limit = table_limit(rows, encoding, given.dtype)
    return difference(given.to(rows.dtype), rows) <= limit


def table_limit(rows: Tensor, encoding: Encoding | GridEncoding, dtype: torch.dtype) -> float:
    """The difference that the roundings of a table explain."""
    start = abs(encoding.start) if isinstance(encoding, Encoding) else max(abs(axis.start) for axis in encoding.axes)
    length = rows.numel() // max(encoding.dim, 1)
    return max(allowed(encoding, start + length, kind) for kind in (dtype, rows.dtype))


def compare(old: Any, new: Any, probe: Probe, encoding: Encoding | GridEncoding) -> float:
    """The largest difference between the outputs of two modules. Raises Differs if it is larger than allowed."""
    try:
        before = probe.call(old)
    except Exception as problem:
        if probe.may_fail:
            return 0.0
        raise Differs(f"its {probe.method} could not be run: {_line(problem)}") from problem
    try:
        after = probe.call(new)
    except Exception as problem:
        raise Differs(f"the drop-in's {probe.method} could not be run: {_line(problem)}") from problem
    apart = difference(before, after)
    size = float(before.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) if before.numel() else 0.0
    kinds = (before.dtype, before.dtype if probe.rounds is None else probe.rounds)
    limit = max(allowed(encoding, probe.position, kind, max(size, 1.0)) for kind in kinds) * probe.slack
    if not apart <= limit:
        mode = "" if probe.dropout is None else " in training"
        raise Differs(f"the output would differ{mode} by {apart:.2g}, where float32 angles explain {limit:.2g}")
    if probe.dropout is not None:
        _compare_gradients(_gradients(old, before, probe), _gradients(new, after, probe), limit * before.numel())
    return apart


def _gradients(module: Any, output: Tensor, probe: Probe) -> list[Tensor | None]:
    """The gradients of the arguments and parameters that need one, for a gradient of noise."""
    leaves = [t for t in (*probe.args, *module.parameters()) if isinstance(t, Tensor) and t.requires_grad]
    if not output.requires_grad:
        return [None] * len(leaves)
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(4)).to(output)
    return list(torch.autograd.grad(output, leaves, noise, allow_unused=True))


def _compare_gradients(before: list[Tensor | None], after: list[Tensor | None], limit: float) -> None:
    """Raises Differs if gradients exist in one list only, or differ by more than the limit."""
    for old, new in zip(before, after, strict=True):
        if (old is None) != (new is None):
            raise Differs("its gradients are others: one is detached")
        if old is not None and new is not None and not _largest(old, new) <= limit * max(1.0, float(old.abs().max())):
            raise Differs(f"a gradient would differ by {_largest(old, new):.2g}")


class _Recorder(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def operators_of(module: Any, probe: Probe) -> Counter[str]:
    """The ATen operators that a call of a module, a copy, consists of, and how often each is called."""
    with _Recorder() as recorder:
        probe.call(module)
    return recorder.names


@contextlib.contextmanager
def quiet(device: torch.device | None = None) -> Iterator[None]:
    """Context manager: no gradients, inference mode or autocast; restores the generators of the CPU and of `device`."""
    with torch.inference_mode(False), torch.no_grad(), contextlib.ExitStack() as stack:
        for device_type in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        devices = [device] if device is not None and device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=devices))
        yield


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Context manager: one CPU thread. Trials are many small operations, for which more threads are slower."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


def _line(problem: BaseException) -> str:
    """The type and the first line of an exception."""
    text = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {text[0][:160]}" if text else type(problem).__name__

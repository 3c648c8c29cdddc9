"""`TimestepEncoding`: the encoding of timesteps, the input of the timestep MLP of a diffusion model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import torch_state
from ..backend import loader
from ..encodings import resolve
from ..encodings.encoding import Encoding
from ..encodings.tracing import refuse_in_graph
from ..encodings.values import MAX_DIM, integer
from ..functional import encode
from ..operations import checks, repetition
from ..operator import is_batched
from . import shared

_EXACT = (torch.float32, torch.int64, torch.float64)
# The value that 998.39 is rounded to in each 16-bit dtype, for the warning.
_STORED = {torch.bfloat16: "1000", torch.float16: "998.5"}
_FLOATS = torch.float32, torch.float64, *_STORED
_warned = False
_RANGE_CHECKS = 100  # calls of a process whose timesteps are compared with 0 and 1
_range_checks = _RANGE_CHECKS  # that are left


class TimestepEncoding(nn.Module):
    """Encodes timesteps or noise levels at their exact value. The layer has no parameters and an empty state dict.

    Equivalent to::

        sinpe.encode(t, sinpe.convention(encoding, dim, **fields), dtype=dtype)

    `TimestepEncoding(256)` is diffusers' `Timesteps(256, flip_sin_to_cos=False, downscale_freq_shift=1)`,
    `TimestepEncoding(256, encoding="adm")` is `Timesteps(256, True, 0)`, and `encoding="flux"` is the same applied to
    1000 * t.

    Args:
        dim: number of channels.
        encoding: an Encoding or the name of a one-dimensional convention.
        dtype: dtype of the result, whatever the dtype of t. None: the dtype that a parameter of the layer would have:
            torch's default dtype, and after `.half()`, `.to(torch.bfloat16)` or similar, called on the layer or on a
            model that contains it, that dtype; not after load_state_dict(assign=True) or an assignment to a parameter's
            data, which the layer does not see. float32, float64, bfloat16 or float16: this dtype, whatever the layer is
            converted to.
        device: accepted as in PyTorch's layers and not used: the layer holds no tensor, and the result is on the device
            of t.
        fields: fields of `Encoding` that override those of `encoding`, such as position_scale=1000 or base=...
    Raises:
        TypeError, ValueError for arguments of the wrong type or value.
    Accuracy:
        as `encode`. The product of t and position_scale is exact, not rounded to a dtype.
    Gradient:
        for a floating-point t, of any order.
    Source:
        Ho et al. 2020, "Denoising Diffusion Probabilistic Models", appendix B.
    """

    __prepare_scriptable__ = shared.refuse_script

    def __init__(
        self,
        dim: int,
        *,
        encoding: Encoding | str = "ddpm",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        **fields: Any,
    ):
        refuse_in_graph(type(self).__name__)
        super().__init__()
        shared.factory_kwargs(device, dtype)
        self.dim = integer("dim", dim, 1, MAX_DIM, "pass the number of channels")
        self.encoding = _one_dimensional(encoding, self.dim, fields)
        self.follows = dtype is None
        self.dtype = torch.get_default_dtype() if dtype is None else dtype

    def forward(self, t: Tensor) -> Tensor:
        """Returns the encodings of the timesteps t.

        Args:
            t: any shape; integers, float32 or float64, used at their exact value. encoding.start is not added. bfloat16
                and float16 are used at their stored value, with one warning per process. Another warns, in eager mode
                on the CPU, if all of the first timesteps are fractions between 0 and 1.
        Returns:
            `(*t.shape, dim)` in the dtype of the layer, on the device of t; NaN where t is NaN or infinite.
        Raises:
            TypeError if t is not a tensor, or is of a bool, complex or 8-bit floating-point dtype.
        """
        if not torch.compiler.is_compiling():
            if _range_checks:
                _warn_of_fractions(t, self.encoding)
            rows: Tensor | None = loader.repeat(repetition.ENCODE, (t, self.encoding, None, self.dtype, False))
            if rows is not None:
                return rows
        if shared.is_fx_proxy(t):
            return shared.record_fx_call(self, t)
        return encode(_timesteps(t), self.encoding, dtype=self.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TimestepEncoding:
        """Applies fn as nn.Module does, and with dtype=None follows a change of the floating-point dtype."""
        # .half(), .to(...) and .bfloat16() apply fn to parameters; as there are none, an empty tensor shows the dtype.
        if self.follows:
            dtype = fn(torch.empty(0, dtype=self.dtype, device="cpu")).dtype
            checks.float_dtype("dtype", dtype, "dtype= to TimestepEncoding, which then keeps it")
            self.dtype = dtype
        super()._apply(fn, recurse)
        return self

    def extra_repr(self) -> str:
        return f"{self.encoding!r}, dtype={None if self.follows else self.dtype}"


def _one_dimensional(encoding: Any, dim: int, fields: dict[str, Any]) -> Encoding:
    """The one-dimensional encoding of a layer, with `fields` overridden."""
    if not isinstance(encoding, (str, Encoding)) and not resolve.is_grid(encoding):
        raise TypeError(
            f"encoding: expected an Encoding or a convention's name, got {type(encoding).__name__}; pass "
            'encoding="ddpm" or convention("ddpm", dim)'
        )
    resolved = resolve.uncached(resolve.encoding(encoding, dim), encoding)  # refuses grids
    if resolved.dim != dim:
        raise ValueError(f"encoding: expected dim {dim}, that of the layer, got {resolved.dim}; make them agree")
    return resolved.replace(**fields) if fields else resolved


def _timesteps(t: Any) -> Tensor:
    """Checks t and converts it to what `encode` accepts as positions."""
    if type(t) is Tensor and t.dtype in _EXACT:
        return t
    if not isinstance(t, Tensor):
        raise TypeError(
            f"t: expected a torch.Tensor, got {type(t).__name__}; pass torch.tensor(t, device=...), the result is made "
            "on its device"
        )
    if t.dtype in _STORED:
        if not torch.compiler.is_compiling():
            _warn_once(t.dtype)
        return t.float()
    if t.dtype == torch.bool or t.is_complex() or (t.is_floating_point() and t.dtype not in _EXACT):
        raise TypeError(f"t: expected float32, float64 or an integer dtype, got {t.dtype}; convert it, as in t.float()")
    return t


def _warn_once(dtype: torch.dtype) -> None:
    """Warns, once per process, that a 16-bit dtype cannot hold most timesteps."""
    global _warned
    if _warned:
        return
    _warned = True
    warnings.warn(
        f"t: got {dtype}, which cannot hold most timesteps: 998.39 is stored as {_STORED[dtype]}. The stored values "
        "are encoded as they are; keep t in float32, the result has the layer's dtype in any case. "
        "This warning is shown once per process.",
        stacklevel=6,  # the caller of the layer, above nn.Module.__call__ and the functions that it calls
    )


def _warn_of_fractions(t: Any, encoding: Encoding) -> None:
    """Warns, once per process, if all timesteps are between 0 and 1, where an encoding of steps up to 1000 is nearly
    constant. Compares values in CPU memory only, until others are seen."""
    global _range_checks
    if encoding.position_scale != 1 or encoding.unit != "radian" or encoding.frequencies is not None:
        return  # not an encoding of steps
    if type(t) is not Tensor or t.is_nested or t.layout != torch.strided or t.dtype not in _FLOATS:
        return
    if not t.is_cpu or not 0 < t.numel() <= 1 << 16:
        return
    if torch_state.read() is not torch_state.NOT_INTERCEPTED or is_batched(t):
        return
    _range_checks -= 1
    low, high = (float(value) for value in t.detach().aminmax())
    if low < 0 or high > 1:
        _range_checks = 0
    elif low <= high and bool((t != t.round()).any()):  # not NaN
        _range_checks = 0
        warnings.warn(
            f"t: got timesteps between 0 and 1, {low:.3g} to {high:.3g}, which this encoding of steps up to 1000 "
            'maps to nearly equal rows; for models that are trained on fractions pass encoding="flux", or '
            "position_scale=1000. This warning is shown once per process.",
            stacklevel=5,  # the caller of the layer, above nn.Module.__call__
        )

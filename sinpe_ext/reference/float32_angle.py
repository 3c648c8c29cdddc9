"""angle="float32_exp" and "float32_pow": the naive formulas with their float32 roundings, for trained checkpoints.

Less accurate than the exact encoding, but the values are those that the model was trained with. The PyTorch operations
are in the same order as in the code that is imitated, so that results on the CPU are bitwise equal. The fields
determine the order:

    float32_exp   position * exp(arange(0, dim, 2) * (-log(base) / dim))
                  the tutorial; with shift=1 fairseq, M2M100, MusicGen, Whisper
      but         position * exp(-log(base) * arange(h) / (h - shift))
                  in halves, where shift is not 1: guided-diffusion, DiT, diffusers
    float32_pow   position / pow(base, arange(0, dim, 2) / dim)
                  documents 000 to 003, DETR
      but         position * (1 / pow(base, arange(0, dim, 2) / dim))
                  in halves, or with odd="round": CTRL, timm, MONAI, big_vision, positional-encodings

"In halves" means a layout in which sines and cosines are not interleaved. position_scale multiplies the position
before anything else, as in FLUX; the other factors (shift, exponent_scale, unit) apply where the encoding's formula has
them. If two libraries differ in the order of operations but in no field, one of them is imitated and the other is
close: `make check-peers` lists them, with the difference. A compiler generates its own code for these operations,
with other bits.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..device_constants import on_device
from ..encodings import frequency
from ..encodings.columns import Columns
from ..encodings.encoding import Encoding
from ..encodings.plan import Plan
from ..encodings.plan import plan as _plan_of
from ..torch_state import outside_modes
from .mkl import warm_up

_UNITS = {"radian": 1.0, "half_turn": math.pi, "turn": 2 * math.pi}
SINE, COSINE, ZERO = 0, 1, 2


class Constants(NamedTuple):
    """Per channel: the angular frequency, or the timescale if `multiplies` is false, in float32; and SINE, COSINE or
    ZERO."""

    frequencies: Tensor
    kinds: Tensor


def constants_on(encoding: Encoding, device: torch.device) -> Constants:
    """`constants` in CUDA memory for a CUDA device, so that no call waits for a copy; on the CPU for other devices."""
    host = constants(encoding)
    if device.type != "cuda":
        return host
    frequencies = on_device((encoding, "frequencies"), device, lambda: host.frequencies)
    return Constants(frequencies, on_device((encoding, "kinds"), device, lambda: host.kinds))


@lru_cache(maxsize=64)
@outside_modes
def constants(encoding: Encoding) -> Constants:
    """The constants of an encoding, on the CPU."""
    if isinstance(encoding, Columns):
        of_whole, at = constants(encoding.whole), slice(encoding.first, encoding.first + encoding.dim)
        return Constants(of_whole.frequencies[at], of_whole.kinds[at])
    plan = _plan_of(encoding)
    entries = [plan.channel(channel) for channel in range(plan.dim)]
    kinds = [ZERO if entry is None else COSINE if entry[1] else SINE for entry in entries]
    return Constants(_frequencies(encoding, plan), torch.tensor(kinds, dtype=torch.int8, device="cpu"))


def _frequencies(encoding: Encoding, plan: Plan) -> Tensor:
    """Angular frequency or timescale of each channel; 1 for a zero channel."""
    if encoding.frequencies is not None:
        angular = 2 * math.pi * torch.tensor(plan.channel_turns(), dtype=torch.float64, device="cpu")
        return (angular if multiplies(encoding) else 1.0 / angular).float()
    sines, cosines, _ = frequency.shape(encoding)
    pairs = max(sines, cosines)
    # Sines and cosines in one tensor each, as in the imitated code: torch.pow rounds the last elements of a tensor
    # differently.
    of_sines = _steps(encoding, torch.arange(0, 2 * pairs, 2, device="cpu"))
    of_cosines = of_sines if plan.shared else _steps(encoding, 2 * torch.arange(cosines, device="cpu") + 1)
    frequencies = torch.ones(plan.dim, device="cpu")
    for channel, entry in enumerate(plan.channels()):
        if entry is not None:
            pair = channel // 2 if plan.interleaved else channel - plan.n0 * (channel >= plan.n0)
            frequencies[channel] = of_cosines[pair] if entry[1] else of_sines[pair]
    return frequencies


def _steps(encoding: Encoding, index: Tensor) -> Tensor:
    """Angular frequencies or timescales at the indices `2i` of the imitated code (2i + 1 for cosines with a frequency
    of their own)."""
    warm_up()
    unit = _UNITS[encoding.unit]
    width = float(frequency.shape(encoding).exponent_dim) - 2.0 * float(encoding.shift)
    base, exponent_scale = float(encoding.base), float(encoding.exponent_scale)
    index = index.float()
    if not width:
        return torch.ones_like(index) * (unit if multiplies(encoding) else 1.0 / unit)
    if encoding.angle == "float32_exp":
        if _in_halves(encoding) and encoding.shift != 1:
            frequencies = torch.exp(-math.log(base) * exponent_scale * (index / 2) / (width / 2))
        else:
            frequencies = torch.exp(index * (-(math.log(base) / width) * exponent_scale))
        return frequencies * unit if unit != 1.0 else frequencies
    frequencies = torch.pow(base, index * exponent_scale / width)
    if multiplies(encoding):
        return 1.0 / frequencies * unit
    return frequencies / unit if unit != 1.0 else frequencies


def _in_halves(encoding: Encoding) -> bool:
    """Whether sines and cosines are not interleaved."""
    return encoding.layout != "interleaved"


def multiplies(encoding: Encoding) -> bool:
    """Whether the angle is position times angular frequency, rather than position divided by timescale."""
    return encoding.angle == "float32_exp" or _in_halves(encoding) or encoding.odd == "round"


def encode(encoding: Encoding, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """The encoding of `positions` with angles rounded to float32, (*positions.shape, dim); differentiable."""
    frequencies, kinds = constants_on(encoding, positions.device)
    position_scale = float(encoding.position_scale)
    return rows(positions, frequencies, kinds, multiplies(encoding), position_scale, encoding.amplitude, dtype)


def rows(
    positions: Tensor,
    frequencies: Tensor,
    kinds: Tensor,
    multiply: bool,
    position_scale: float,
    amplitude: float,
    dtype: torch.dtype,
) -> Tensor:
    """`encode` from its constants, in operations that a compiler can trace."""
    frequencies, kinds = frequencies.to(positions.device), kinds.to(positions.device)
    position = positions.float().unsqueeze(-1)
    if position_scale != 1.0:
        position = position * position_scale
    angle = position * frequencies if multiply else position / frequencies
    values = torch.where(kinds == COSINE, angle.cos(), angle.sin()).masked_fill(kinds == ZERO, 0.0)
    if amplitude == 0.0:  # 0 times a negative sine would be -0
        values = values.abs()
    return (values * amplitude if amplitude != 1.0 else values).to(dtype)

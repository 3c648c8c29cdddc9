"""A stored table: how its values were rounded, which rows are zero, and whether its columns can be sinusoids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .fit import ZERO, Channels, Noise, Samples, Wave, scattered

CHUNK = 2**21  # elements compared at once
LOOKED_AT = 2**23  # elements that a fit uses at most
LARGEST = 2**30  # largest number of elements of an expanded tensor, whose memory does not limit its size
MOST_CHANNELS = 2**16  # the time and memory of a fit grow with the number of channels, even for few rows
QUICK_ROWS, QUICK_COLUMNS = 256, 256
FIRST = 2**12  # rows and columns of a large table that are tested for being sinusoids
# Largest relative error of storing a value.
STORED = {
    torch.float64: 2.0**-24,  # the values may come from float32 arithmetic even so
    torch.float32: 2.0**-24,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}
FLOAT64_UNIT = 2.0**-36  # in place of STORED for values that do not come from float32 arithmetic: resolution of a fit
ANGLE_ERROR = 2.5 * 2.0**-23  # relative error of a float32 angle per e-fold of the ladder
LARGEST_ANGLE_ERROR = 0.7  # limit for positions so large that float32 angles are nearly meaningless
FEWEST_DECIMALS, MOST_DECIMALS = 3, 7  # of printed values that can be distinguished from stored ones
PRINTED = 2**13  # values read to detect decimals
SLACK = 1e-6
IRREGULAR = 0.05  # largest fraction of a column's energy that the recurrence of a sinusoid may leave unexplained


NO_SINUSOIDS = "its columns are no sinusoids: learned values, a weight or noise"


class Refused(Exception):
    """Raised if a table cannot be an encoding; the message says why."""


class Part(NamedTuple):
    """Columns of a table that depend on one coordinate: their indices, channels, wave and axis."""

    columns: Tensor | slice
    channels: Channels
    wave: Wave
    axis: int = 0


class Verdict(NamedTuple):
    """The errors of a table compared with an encoding, over its nonzero rows."""

    error: float  # largest
    rms: float
    wrong: int  # number of rows outside the tolerance
    where: tuple[int, ...]  # the first of these rows
    error_elsewhere: float  # largest error of the other rows

    @property
    def fits(self) -> bool:
        return not self.wrong


class Table:
    """Rows (n, d) of a stored tensor, with the precision of its values."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.number, self.dim = rows.shape
        self.offset = 0  # index of the first row in the given table, for messages
        sample = rows[: max(1, min(self.number, 2**18 // self.dim))]
        if not bool(torch.isfinite(sample).all()):
            raise Refused("it holds values that are NaN or infinite")
        self.storage = _storage(sample)
        self.precision = STORED[self.storage]
        self.printed, self.step = "", 0.0  # for printed values: the number of digits, as text, and the absolute error
        if self.storage in (torch.float32, torch.float64):
            self._look_for_decimals(sample.flatten()[:PRINTED].double())
        # Relative to the largest value, for either kind of error.
        self.relative = max(self.precision, self.step / (float(sample.abs().max().double()) or 1.0))

    def _look_for_decimals(self, values: Tensor) -> None:
        """Detects values that were printed with a number of decimals or of significant digits."""
        held = 2.0**-23 if self.storage is torch.float32 else 2.0**-50
        values = values[values != 0].abs()
        exponent = torch.floor(torch.log10(values * (1 + held)))
        decimals = decimals_of(values, held)
        digits = decimals_of(values / 10**exponent, held)
        if decimals and (not digits or decimals <= digits + 1):
            self.printed, self.step = f"{decimals} decimals", 0.5 * 10.0**-decimals
        elif digits:
            self.printed = f"{digits + 1} significant digits"
            self.precision = max(self.precision, 0.5 * 10.0**-digits)

    def look(self) -> None:
        """Reads every row to find those that are zero. Raises Refused if values are not finite, or all are zero."""
        size = torch.cat([self.rows[at].abs().amax(1) for at in _chunks(self.number, self.dim)]).double()
        if not bool(torch.isfinite(size).all()):
            raise Refused("it holds values that are NaN or infinite")
        self.live = (size > 0).nonzero().flatten()
        if not len(self.live):
            raise Refused("every value is zero")
        self.size = float(size.median() if len(self.live) > self.number / 2 else size[self.live].median())
        self.leading = int(self.live[0])
        gone = (size == 0).nonzero().flatten()
        self.zero_rows = tuple(gone.tolist())

    def samples(self) -> Samples:
        """The rows that a fit uses, in float64."""
        rows = self.live[: max(64, LOOKED_AT // self.dim)]
        return Samples(rows, self.rows[rows].double())

    def noise(self) -> Noise:
        """The rounding errors of the stored values."""
        relative = self.precision > STORED[torch.float32]
        subnormal = 2.0**-25 if self.storage is torch.float16 else 0.0
        unit = FLOAT64_UNIT if self.storage is torch.float64 and not self.printed else self.precision
        return Noise((self.size * self.precision + self.step) / 2 + 1e-300, relative, unit, max(self.step, subnormal))

    def tolerance(self) -> float:
        """The rounding error of a stored value of typical size."""
        return self.size * (self.precision + SLACK) + self.step

    def compare(self, parts: Sequence[Part], coordinates: Sequence[Tensor]) -> Verdict:
        """Compares the rows with waves; coordinates[axis][row] is the coordinate of a row along an axis."""
        relative = self.precision  # allowed twice: a product may have been rounded, too
        largest = inside = squares = 0.0
        count = wrong = 0
        where: list[int] = []
        for at in _chunks(len(self.live), self.dim):
            rows = self.live[at]
            table = self.rows[rows].double()
            expected, allowed = torch.zeros_like(table), torch.zeros_like(table)
            for part in parts:
                position = coordinates[part.axis][rows]
                lowest = int(position.min())
                along = torch.arange(lowest, int(position.max()) + 1, dtype=torch.float64)
                value, angle_error = part.wave.at(along, part.channels), angle_errors(part.wave, along, part.channels)
                whole = len(along) == len(position)
                expected[:, part.columns] = value if whole else value[position - lowest]
                allowed[:, part.columns] = angle_error if whole else angle_error[position - lowest]
            allowed += expected.abs() * (2 * relative) + (relative / 8 + SLACK) * self.size + self.step
            off = (table - expected).abs()
            bad = (off > allowed).any(1)
            rowwise = off.amax(1)
            largest = max(largest, float(rowwise.max()))
            squares += float(off.square().sum())
            count += off.numel()
            wrong += int(bad.sum())
            if len(where) < 8:
                where += rows[bad][:8].tolist()
            if not bool(bad.all()):
                inside = max(inside, float(rowwise[~bad].max()))
        return Verdict(largest, math.sqrt(squares / max(count, 1)), wrong, tuple(where[:8]), inside)


def angle_errors(wave: Wave, along: Tensor, channels: Channels) -> Tensor:
    """The errors that float32 angles may cause in the values at some positions, (n, m)."""
    exponent = (wave.decay * channels.rungs).abs()
    factor = wave.ladder().at(channels.rungs).abs() * (1 + exponent) * ANGLE_ERROR
    angle = torch.outer((along + wave.start).abs(), factor * (channels.kinds != ZERO))
    return abs(wave.amplitude) * angle.clamp_max_(LARGEST_ANGLE_ERROR)


def as_rows(table: Any) -> Tensor:
    """A tensor or an array as a tensor on the CPU. Raises TypeError for anything else, Refused for other dtypes."""
    holds = not isinstance(table, Tensor) or type(table).__torch_dispatch__ is Tensor.__torch_dispatch__
    if isinstance(table, Tensor) and holds:
        tensor = table.detach()
        if tensor.is_nested:
            raise Refused("a nested tensor has no rows of one length: pass one of its tensors")
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            raise Refused(f"a {tensor.device.type} tensor of layout {tensor.layout} has no rows to look at")
        if tensor.dtype not in STORED:
            raise Refused(_other(str(tensor.dtype).removeprefix("torch."), tensor.is_complex()))
        _refuse_repeated(tuple(tensor.shape), tensor.stride())
        return tensor.cpu().resolve_conj().resolve_neg()
    if not holds or not hasattr(table, "__array_interface__"):
        raise TypeError(
            f"table: expected a tensor or a NumPy array, got {type(table).__name__}; pass the values, "
            'as in state_dict["pe"] (for a file: python -m sinpe_ext identify FILE)'
        )
    kind = table.dtype.name
    if kind not in ("float16", "float32", "float64"):
        raise Refused(_other(kind, kind.startswith("complex")))
    _refuse_repeated(table.shape, tuple(stride // table.dtype.itemsize for stride in table.strides))
    return torch.from_numpy(table.astype(table.dtype.newbyteorder("="), order="C", copy=True))


def _refuse_repeated(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Raises Refused for an expanded tensor with too many elements."""
    size = math.prod(shape)
    if size > LARGEST and size > 1 + sum((length - 1) * abs(step) for length, step in zip(shape, stride, strict=True)):
        raise Refused(
            f"its shape {tuple(shape)} repeats what it holds (it was expanded) to more than {LARGEST} elements: pass "
            "the part that is repeated"
        )


def _other(kind: str, is_complex: bool) -> str:
    """The reason to report for a dtype that tables do not have."""
    if is_complex:
        return f"{kind} values are those of a rotary cache or a spectrum, not of an encoding that is added"
    return f"{kind} values cannot be sines; they may be positions or ids"


def _storage(sample: Tensor) -> torch.dtype:
    """The least precise dtype that represents the values: those of a float32 tensor may have been bfloat16 before."""
    if bool(((sample == 0) | (sample.abs() == 1)).all()):  # exact in every dtype
        return sample.dtype
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if sample.dtype in (dtype, torch.bfloat16, torch.float16):
            return sample.dtype
        if bool((sample.to(dtype).to(sample.dtype) == sample).all()):
            return dtype
    return sample.dtype


def decimals_of(values: Tensor, held: float) -> int:
    """The smallest number of decimals that gives these values, stored with the relative error `held`; 0 if there is
    none, or if any would do."""
    if len(values) < 16:
        return 0
    for decimals in range(MOST_DECIMALS + 1):
        scaled = values * 10.0**decimals
        off = (scaled - scaled.round()).abs()
        if float((scaled * held).median()) > 0.15:
            return 0
        if bool((off <= scaled * held + 1e-9).all()):
            return decimals if decimals >= FEWEST_DECIMALS else 0
    return 0


def _chunks(number: int, dim: int) -> list[slice]:
    """Ranges of rows with at most CHUNK elements each."""
    step = max(1, CHUNK // dim)
    return [slice(first, min(first + step, number)) for first in range(0, number, step)]


def has_sinusoids(rows: Tensor) -> bool:
    """Whether most columns satisfy the recurrence of a sinusoid, x[t + 1] + x[t - 1] = c x[t]; in milliseconds for any
    table."""
    sample = rows[:QUICK_ROWS][:, scattered(rows.shape[1], QUICK_COLUMNS)].double()
    sample = sample[sample.abs().amax(1) > 0]
    if len(sample) < 6:
        return True
    blocks = sample[: len(sample) // 6 * 6] if len(sample) < 16 else sample[: len(sample) // 16 * 16]
    blocks = blocks.reshape(-1, 6 if len(sample) < 16 else 16, sample.shape[1])
    middle, outer = blocks[:, 1:-1], blocks[:, 2:] + blocks[:, :-2]
    energy = middle.square().sum(1).clamp_min(1e-300)
    factor = (middle * outer).sum(1) / energy
    left = (outer - factor[:, None] * middle).square().sum(1) / (4 * energy)
    return float(left.median()) < IRREGULAR


def begins_with_sinusoids(tensor: Tensor) -> bool:
    """Whether `has_sinusoids` holds for the first rows, or the first columns, of a tensor of any size."""
    last = [axis for axis, length in enumerate(tensor.shape) if length > 1][-2:]
    plane = tensor[tuple(slice(FIRST) if axis in last else 0 for axis in range(tensor.dim()))]
    return has_sinusoids(plane) or has_sinusoids(plane.T)


def grid_coordinates(lengths: Sequence[int], extra: int, number: int) -> list[Tensor]:
    """For each axis the coordinate of each row of a flattened grid after `extra` rows."""
    inside = torch.arange(number) - extra
    along_axes = []
    for axis in range(len(lengths)):
        after = math.prod(lengths[axis + 1 :])
        along_axes.append((inside // after % lengths[axis]).clamp_min(0))
    return along_axes

"""Reads the table that `identify` is given: its values, their precision, its rows of zeros, and a quick test."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..agreement import ROUNDING
from .fit import Samples, scattered

LARGEST = 2**30  # largest number of elements of an expanded tensor, whose memory does not limit its size
MOST_CHANNELS = 2**16  # the time and memory of a fit grow with the number of channels, even for few rows
CHUNK = 2**21  # elements read at once
FIRST_ROWS, OTHER_ROWS = 1024, 1024  # consecutive rows, and rows spread over the others, that a fit reads
# Largest relative error of storing a value; for float64 the resolution of a fit.
UNITS = {**ROUNDING, torch.float64: 2.0**-36}
SUBNORMAL = {torch.float16: 2.0**-25}
QUICK_ROWS, QUICK_COLUMNS = 256, 256
IRREGULAR = 0.05  # largest fraction of a column's energy that the recurrence of a sinusoid may leave unexplained
NO_SINUSOIDS = "not sinusoidal (learned values or noise)"


class NoEncodingError(Exception):
    """Raised for a table that cannot be an encoding; the message says why."""


class StoredTable(NamedTuple):
    """The rows of a table.

    Attributes:
        rows: (n, d), in the least precise dtype that holds the values.
        zero: (n,) bool, the rows that are zero.
        size: a typical largest value of a row.
    """

    rows: Tensor
    zero: Tensor
    size: float

    @property
    def leading(self) -> int:
        """The number of rows of zeros before the first other row."""
        return int(self.zero.int().argmin())

    @property
    def caveat(self) -> str:
        """What to add to the reason why no encoding fits."""
        is_16_bit = self.rows.dtype.itemsize == 2
        return "; a table that was computed in 16-bit arithmetic is not recognised" if is_16_bit else ""

    def live(self) -> Tensor:
        """The indices of the rows that are not zero."""
        return (~self.zero).nonzero().flatten()

    def samples(self, which: Tensor | None = None) -> Samples:
        """Rows in float64: those named, which must not be zero, or else as many as a fit needs."""
        if which is None:
            live = self.live()
            which = (
                live
                if len(live) <= FIRST_ROWS + OTHER_ROWS
                else torch.cat([live[:FIRST_ROWS], live[FIRST_ROWS + scattered(len(live) - FIRST_ROWS, OTHER_ROWS)]])
            )
        dtype = self.rows.dtype
        return Samples(which, self.rows[which].double(), UNITS[dtype], self.size, SUBNORMAL.get(dtype, 0.0))


def read(rows: Tensor) -> StoredTable:
    """Reads every row (n, d) once. Raises NoEncodingError if values are not finite, all are zero or all rows equal."""
    number, dim = rows.shape
    if dim > MOST_CHANNELS:
        raise NoEncodingError(f"its {dim} channels are more than the {MOST_CHANNELS} that encodings are tried with")
    step = max(1, CHUNK // dim)
    size = torch.cat([rows[at : at + step].abs().amax(1) for at in range(0, number, step)]).double()
    if not bool(torch.isfinite(size).all()):
        raise NoEncodingError("it holds values that are NaN or infinite")
    live = size[size > 0]
    if not len(live):
        raise NoEncodingError("every value is zero")
    if number < 2:
        raise NoEncodingError("one row does not tell which encoding it is")
    held = rows.to(storage(rows[: max(1, 2**18 // dim)]))
    held = held if torch.equal(held.to(rows.dtype), rows) else rows
    table = StoredTable(held, size == 0, float(live.median()))
    samples = table.samples()
    if bool((samples.x == samples.x[0]).all()):
        raise NoEncodingError("all of its rows are equal")
    return table


def as_tensor(table: Any) -> Tensor:
    """A tensor or an array as a tensor on the CPU. Raises TypeError for anything else, NoEncodingError for a dtype or
    layout that no table has."""
    holds = not isinstance(table, Tensor) or type(table).__torch_dispatch__ is Tensor.__torch_dispatch__
    if isinstance(table, Tensor) and holds:
        tensor = table.detach()
        if tensor.is_nested:
            raise NoEncodingError("a nested tensor has no rows of one length: pass one of its tensors")
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            raise NoEncodingError(f"a {tensor.device.type} tensor of layout {tensor.layout} has no rows to look at")
        if tensor.dtype not in UNITS:
            raise NoEncodingError(_other(str(tensor.dtype).removeprefix("torch."), tensor.is_complex()))
        _refuse_repeated(tuple(tensor.shape), tensor.stride())
        return tensor.cpu().resolve_conj().resolve_neg()
    if not holds or not hasattr(table, "__array_interface__"):
        raise TypeError(
            f"table: expected a tensor or a NumPy array, got {type(table).__name__}; pass the values, "
            'as in state_dict["pe"] (for a file: python -m sinpe_ext identify FILE)'
        )
    kind = table.dtype.name
    if kind not in ("float16", "float32", "float64"):
        raise NoEncodingError(_other(kind, kind.startswith("complex")))
    _refuse_repeated(table.shape, tuple(stride // table.dtype.itemsize for stride in table.strides))
    return torch.from_numpy(table.astype(table.dtype.newbyteorder("="), order="C", copy=True))


def _refuse_repeated(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Raises NoEncodingError for an expanded tensor with too many elements."""
    size = math.prod(shape)
    if size > LARGEST and size > 1 + sum((length - 1) * abs(step) for length, step in zip(shape, stride, strict=True)):
        raise NoEncodingError(
            f"its shape {tuple(shape)} repeats what it holds (it was expanded) to more than {LARGEST} elements: pass "
            "the part that is repeated"
        )


def _other(kind: str, is_complex: bool) -> str:
    """The reason to report for a dtype that tables do not have."""
    if is_complex:
        return f"{kind} values are those of a rotary cache or a spectrum, not of an encoding that is added"
    if kind.startswith("float"):
        return f"{kind} values are not read; convert them to float32"
    return f"{kind} values cannot be sines; they may be positions or ids"


def storage(sample: Tensor) -> torch.dtype:
    """The least precise dtype that represents the values: those of a float32 tensor may have been bfloat16 before."""
    if bool(((sample == 0) | (sample.abs() == 1)).all()):  # exact in every dtype
        return sample.dtype
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if sample.dtype in (dtype, torch.bfloat16, torch.float16):
            break
        if bool((sample.to(dtype).to(sample.dtype) == sample).all()):
            return dtype
    return sample.dtype


def has_sinusoids(rows: Tensor) -> bool:
    """Whether most columns satisfy the recurrence of a sinusoid, x[t + 1] + x[t - 1] = c x[t]; in milliseconds for any
    table."""
    sample = rows[:QUICK_ROWS][:, scattered(rows.shape[1], QUICK_COLUMNS)].double()
    sample = sample[sample.abs().amax(1) > 0]
    if len(sample) < 6:
        return True
    length = 6 if len(sample) < 16 else 16
    blocks = sample[: len(sample) // length * length].reshape(-1, length, sample.shape[1])
    middle, outer = blocks[:, 1:-1], blocks[:, 2:] + blocks[:, :-2]
    energy = middle.square().sum(1).clamp_min(1e-300)
    factor = (middle * outer).sum(1) / energy
    left = (outer - factor[:, None] * middle).square().sum(1) / (4 * energy)
    return float(left.median()) < IRREGULAR

"""Rows of encodings that small calls use again, as tensors on the device of the data: reference implementation of
`csrc/cpu/kept_rows.h`.

Computing rows takes a hundred operations, however few they are. So float32 rows are kept, at most `KEPT_BYTES` for each
device, in ranges that begin and end at multiples of a block of rows. They are made when rows of the same block are
asked for a second time, if there is room: a range makes room when it was not used by the last `MOST_RECENT` lookups, so
that calls that take turns with more rows than fit do not make all of them each time. Nobody waits: while another thread
holds the lock, and in a child process that was forked while one did, a call computes its rows.
"""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..encodings.plan import Plan
from ..torch_state import is_capturing, outside_modes
from . import rows as _rows

_setting = os.environ.get("SINPE_EXT_KEPT_BYTES", "")
KEPT_BYTES = min(int(_setting), 1 << 20) if _setting.isdecimal() else 1 << 20
BLOCK_VALUES = min(1 << 16, KEPT_BYTES // 4)
MAX_ASKED = 32
MOST_RECENT = 64


@dataclass(eq=False)
class Range:
    """The rows at positions first, ..., last - 1."""

    plan: Plan
    place: Any
    first: int
    last: int
    rows: Tensor
    last_use: int  # number of a lookup


_lock = threading.Lock()
_lookups = itertools.count()
_ranges: list[Range] = []
_asked: dict[tuple[Plan, Any, int], None] = {}  # blocks for which one call has asked, the most recent one last


def table(
    plan: Plan, length: int, start: int, dtype: torch.dtype, device: torch.device, is_new: bool = False
) -> Tensor:
    """`reference.table`; unless `is_new`, the result may be what is kept, and must not be written to."""
    kept = None if dtype == torch.float64 else find(plan, start, start + length, device)
    return _rows.table(plan, length, start, dtype, device) if kept is None else kept.to(dtype, copy=is_new)


def encode(plan: Plan, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """`reference.encode`."""
    if dtype == torch.float64 or positions.device.type == "cuda" or not positions.numel():  # would wait for the device
        return _rows.encode(plan, positions, dtype)
    at = positions.cpu()
    if at.is_floating_point():
        at = at.long()
        if not torch.equal(at.to(positions.dtype), positions.cpu()):
            return _rows.encode(plan, positions, dtype)
    first, last = map(int, at.aminmax())
    kept = find(plan, first, last + 1, at.device)
    if kept is None:
        return _rows.encode(plan, positions, dtype)
    rows = kept.index_select(0, (at - first).reshape(-1))  # new, which an index of no dimensions is not
    return rows.reshape(*positions.shape, plan.dim).to(positions.device, dtype)


def find(plan: Plan, first: int, last: int, device: torch.device) -> Tensor | None:
    """The rows at positions first, ..., last - 1, float32, (last - first, dim), not to be written to; None if they are
    not kept."""
    if (last - first) * plan.dim * 4 > KEPT_BYTES or not plan.dim:
        return None
    place = _place(device)
    if place is None or not _lock.acquire(blocking=False):
        return None
    try:
        now = next(_lookups)
        for known in _ranges:
            if known.plan is plan and known.first <= first and last <= known.last and known.place == place:
                known.last_use = now
                return known.rows[first - known.first : last - known.first]
        made = _make(plan, first, last, place, device, now)
        return None if made is None else made.rows[first - made.first : last - made.first]
    finally:
        _lock.release()


def _make(plan: Plan, first: int, last: int, place: Any, device: torch.device, now: int) -> Range | None:
    """Makes the range of whole blocks with these rows if a call has asked for its first block before."""
    block = max(1, BLOCK_VALUES // plan.dim)
    key = plan, place, first // block
    if key not in _asked:
        _asked[key] = None
        if len(_asked) > MAX_ASKED:
            del _asked[next(iter(_asked))]
        return None
    start, stop = first // block * block, -(-last // block) * block
    size = (stop - start) * plan.dim * 4
    if size > KEPT_BYTES or not -(2**62) < start < stop < 2**62:
        return None
    parts = [r for r in _ranges if r.plan is plan and r.place == place and start <= r.first and r.last <= stop]
    others = [r for r in _ranges if r not in parts]
    here = sorted((r for r in others if r.rows.device.type == device.type), key=lambda r: r.last_use)
    while size + sum(r.rows.nbytes for r in here) > KEPT_BYTES:
        if now - here[0].last_use <= MOST_RECENT:
            return None
        others.remove(here.pop(0))
    computed_on = device if device.type in _rows.COMPUTED_HERE else "cpu"
    rows = outside_modes(_rows.table)(plan, stop - start, start, torch.float32, computed_on).to(device)
    made = Range(plan, place, start, stop, rows, now)
    _ranges[:] = [*others, made]
    return made


def _place(device: torch.device) -> Any:
    """The device, and its current stream if it has several: rows are used on the stream on which they were made, so
    that their memory is not used again while they are read. None where rows cannot be kept: a CUDA graph reads memory
    after it has been captured."""
    if device.type in ("cpu", "mps"):
        return device
    if device.type == "cuda" and is_capturing(device):
        return None
    try:
        return device, torch.accelerator.current_stream(device).stream_id
    except (RuntimeError, AttributeError):  # a device without streams, or torch before 2.6
        return None

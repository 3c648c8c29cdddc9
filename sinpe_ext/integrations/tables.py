"""The tensors of a module that hold rows of an encoding.

Every tensor is examined, whatever its name: a test of a few rows excludes learned weights in a fraction of a
millisecond, and `identify` decides about the others.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..agreement import agrees
from ..encodings.catalogue import convention, conventions
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..identification import identify
from .replace import LeftAlone

SINUSOIDAL = re.compile(r"sinus|sin_?cos|sine_?pos|pos\w*sine", re.IGNORECASE)
ROTARY = re.compile(r"rotary|rope|inv_freq", re.IGNORECASE)
POSITIONAL = re.compile(r"(^|_)(pe|pos|posemb|posenc)(_|\d|$)|posi|pos_?e|sinus|sin_?cos|encoding", re.IGNORECASE)
ROWS, COLUMNS, MOST_CHANNELS = 16, 32, 2**14
IRREGULAR = 0.01  # fraction of its energy by which an element may differ from the recurrence of a sinusoid


class Table(NamedTuple):
    """A tensor of a module that holds an encoding."""

    key: str  # its name in the module
    tensor: Tensor
    rows: Tensor  # (positions, channels), its values
    transposed: bool  # whether the tensor has the channels first, (channels, positions)
    encoding: Encoding | GridEncoding  # with exact angles
    convention: str  # name of the encoding
    is_whole: bool  # whether all rows are those of the encoding; not if there are rows of zeros, or a class token

    def __str__(self) -> str:
        return f"`{self.key}` holds {self.convention}, {len(self.rows)} rows"


def tables_of(module: nn.Module) -> list[Table]:
    """The tables of a module. Raises LeftAlone if there is none, although the name of the module or of a tensor
    suggests one."""
    tables, reason, kind = [], "", type(module).__name__
    if SINUSOIDAL.search(kind) and not ROTARY.search(kind) and not module._modules:
        reason = "it looks sinusoidal by its name; its class is not known, and no table was recognized"
    for key, tensor in {**module._parameters, **module._buffers, **vars(module)}.items():
        is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
        if not is_plain or not tensor.is_floating_point() or not 2 <= tensor.dim() <= 4:
            continue
        name = f"{kind}_{key}"
        if tensor.is_meta and POSITIONAL.search(name) and not tensor.requires_grad:
            reason = "its table is on the meta device: load the weights first"
        try:
            table = None if tensor.is_meta or ROTARY.search(name) else _read(key, tensor)
        except LeftAlone as fractional:
            reason = str(fractional)
            continue
        if table is not None:
            tables.append(table)
        elif not tensor.is_meta and type(tensor) is Tensor and SINUSOIDAL.search(name):
            reason = f"`{key}` is no convention that identify knows: {identify(tensor).reason}"
    if reason and not tables:
        raise LeftAlone(reason)
    return sorted(tables, key=lambda table: table.tensor.requires_grad)


def _read(key: str, tensor: Tensor) -> Table | None:
    """The table in a tensor, or in its transpose; None if neither is one. Raises LeftAlone for fractional positions."""
    lengths = [length for length in tensor.shape if length != 1]
    views: list[Tensor] = [tensor]
    if len(lengths) == 2 and lengths == list(tensor.shape[-2:]):
        views.append(tensor.detach().reshape(lengths).T)
    for view in filter(may_be_table, views):
        matches = identify(view)
        if not matches or getattr(matches[0], "transposed", False):
            continue
        if matches[0].positions:
            raise LeftAlone(f"`{key}` has rows at fractional positions, {matches[0].positions}, not at 0, 1, 2, ...")
        encoding: Any = matches[0].encoding
        if isinstance(encoding, Encoding) and encoding.layout in ("sin", "cos") and not POSITIONAL.search(key):
            return None  # of rotary embeddings, not added to anything
        rows = view.detach().reshape(-1, view.shape[-1])
        is_whole = isinstance(encoding, Encoding) and encoding.dim == rows.shape[1] and agrees(rows.cpu(), encoding)
        names = [name_of(encoding, name) for name in (matches[0].name, *matches[0].aliases)]
        name = min(names, key=lambda name: name.count(","))
        return Table(key, tensor, rows, view is not tensor, encoding, name, is_whole)
    return None


def name_of(encoding: Encoding | GridEncoding, name: str) -> str:
    """The name of a convention and the fields in which the encoding differs from it; the repr of other encodings."""
    if name not in conventions():
        return repr(encoding)
    plain: Any = convention(name, encoding.dim)
    one, other = (each.axes[0] if isinstance(each, GridEncoding) else each for each in (encoding, plain))
    numbers = ("base", "start", "position_scale", "amplitude", "shift")
    changed = [field for field in numbers if getattr(one, field) != getattr(other, field)]
    return ", ".join([name, *(f"{field} {float(getattr(one, field)):.6g}" for field in changed)])


@torch.no_grad()
def may_be_table(table: Tensor) -> bool:
    """Whether some rows of a tensor (..., channels) can be those of an encoding: whether most elements of successive
    rows satisfy x[t + 1] + x[t - 1] = c x[t], as sinusoids do, with one c for each column."""
    channels = table.shape[-1]
    kernel = table.dim() > 2 and table.requires_grad and 1 not in table.shape[:2]  # of a convolution
    if not 1 < channels <= MOST_CHANNELS or kernel or table.dtype.itemsize == 1:
        return False
    flat = table.detach().reshape(-1, channels) if table.dim() > 2 else table.detach()
    first = max(0, (len(flat) - ROWS) // 2)
    rows = flat[first : first + ROWS, :: max(1, channels // COLUMNS)].cpu().double()
    size = rows.abs()
    if len(rows) < 4 or not size.max() < torch.inf or bool(((size == 0) | (size == size.max())).all()):
        return False  # too few, or a mask
    middle, outer = rows[1:-1], rows[2:] + rows[:-2]
    energy = middle.square().mean(0)
    c = (outer / middle).nanmedian(0).values  # in a grid, some rows are the first of a line
    error = (outer - c * middle).square() / (4 * energy)
    return bool((rows != rows[0]).any() and error[:, energy > 0].median() < IRREGULAR)

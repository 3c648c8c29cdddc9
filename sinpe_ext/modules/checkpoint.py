"""State-dict hooks of the layers, for the table `pe` and a learned alpha.

`pe` is written for code that expects a table, and compared with the encoding of the layer when a checkpoint is loaded.
A learned alpha has shape (1,) here and () in other libraries; either is accepted.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import functional
from ..encodings.catalogue import CATALOGUE, convention
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.grid_catalogue import GRIDS
from ..encodings.values import is_dtensor

if TYPE_CHECKING:
    from .layers import SinusoidalPositionalEncoding

# Tolerances of the comparison. The angles of a float32 table have rounding errors below 2^-22 per position; a 16-bit
# table has in addition the rounding error of its dtype.
TABLE_ANGLE_ERROR = 2.0**-22
TABLE_ERROR = 1e-6
TABLE_ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
ROWS_TO_RECOGNIZE = 64


class Mismatch(NamedTuple):
    """How a table in a checkpoint differs from an encoding, and the convention that it matches, "" if none is known; or
    the grid_shape, or the extra_tokens, for which it is the encoding."""

    text: str
    convention: str = ""
    grid_shape: tuple[int, ...] | None = None
    extra_tokens: int | None = None


def table_of(layer: SinusoidalPositionalEncoding, device: torch.device | str | None = None) -> Tensor | None:
    """The float32 table for the buffer `pe` of a layer with persistent_table=True; None for other layers."""
    length = layer.grid_shape if layer.max_len is None else layer.max_len
    if not layer.persistent_table or length is None:
        return None
    rest: Any = {"flatten": True} if layer.grid_shape is not None else {}
    table = functional.table(length, layer.encoding, extra_tokens=layer.extra_tokens, device=device, **rest)
    return table.unsqueeze(0 if layer.batch_first else 1)


def write_table(layer: SinusoidalPositionalEncoding, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """Hook of state_dict(): writes the exact table, computed again, whatever the buffer `pe` contains."""
    device = _device_of(layer)
    table = table_of(layer, "cpu" if device.type == "meta" else device)
    if table is not None:
        state[prefix + "pe"] = table


def compare_table(
    layer: SinusoidalPositionalEncoding, state: dict[str, Any], prefix: str, metadata: Any = None, *_: Any
) -> None:
    """Hook of load_state_dict(): warns if the checkpoint's `pe` is the table of another encoding.

    The entry is replaced by the layer's own table, or removed if the layer has no buffer, so that strict loading
    succeeds in either case.
    """
    reshape_alpha(layer, state, prefix)
    pe = state.pop(prefix + "pe", None)
    if "pe" in layer._buffers:
        assigned = bool((metadata or {}).get("assign_to_params_buffers"))
        device = _device_of(layer)
        if assigned and device.type == "meta":
            device = pe.device if isinstance(pe, Tensor) and not pe.is_meta else torch.device("cpu")
        table = table_of(layer, device)
        state[prefix + "pe"] = table
        held = layer._buffers["pe"]
        if table is not None and held is not None and table.shape != held.shape:  # max_len was changed
            layer._buffers["pe"] = torch.empty_like(table, device=held.device)
    if pe is None:
        return
    _compare_order(layer, pe, prefix)
    problem = mismatch(pe, layer.encoding, layer.grid_shape, layer.extra_tokens)
    if problem is not None:
        _warn(layer, prefix, problem)


def compare_assigned(layer: SinusoidalPositionalEncoding, pe: Tensor) -> None:
    """Warns if the buffer `pe` is assigned the table of another convention.

    from_pretrained of transformers assigns buffers and calls no load_state_dict() hook. As it also assigns
    uninitialized memory, there is no warning for a table that matches no convention.
    """
    problem = mismatch(pe, layer.encoding, layer.grid_shape, layer.extra_tokens)
    if problem is not None and problem.convention:
        _warn(layer, "", problem)


def _warn(layer: SinusoidalPositionalEncoding, prefix: str, problem: Mismatch) -> None:
    """Warns that a table in a checkpoint is not that of the layer's encoding."""
    if problem.grid_shape is not None:
        sides = problem.grid_shape
        theirs, ours = (" x ".join(map(str, shape or ())) for shape in (sides, layer.grid_shape))
        warnings.warn(
            f"{prefix}pe: the checkpoint's table is the same encoding for a grid of {theirs}, and the layer's "
            f"grid_shape is {ours}; the layer computes the rows of {ours}. To stretch the trained coordinates over it, "
            f"pass encoding.interpolated({layer.grid_shape}, base_size={sides})",
            UserWarning,
            stacklevel=3,
        )
        return
    if problem.extra_tokens is not None:
        warnings.warn(
            f"{prefix}pe: the checkpoint's table is the same encoding behind {problem.extra_tokens} rows for extra "
            f"tokens, and the layer has extra_tokens={layer.extra_tokens}; pass extra_tokens={problem.extra_tokens} if "
            "the model's sequences begin with them",
            UserWarning,
            stacklevel=3,
        )
        return
    known = f"; it is {problem.convention}" if problem.convention else ""
    warnings.warn(
        f"{prefix}pe: the checkpoint's table is not this layer's encoding, {layer.encoding!r}: {problem.text}{known}. "
        "The layer keeps its own encoding; pass the encoding= that the model was trained with",
        UserWarning,
        stacklevel=3,
    )


def reshape_alpha(layer: nn.Module, state: dict[str, Any], prefix: str) -> None:
    """Reshapes an alpha of shape () in a checkpoint to a parameter of shape (1,), and the other way round."""
    held, loaded = layer._parameters.get("alpha"), state.get(prefix + "alpha")
    if held is not None and isinstance(loaded, Tensor) and loaded.numel() == 1 and held.dim() + loaded.dim() == 1:
        reshaped = loaded.reshape(held.shape)
        # torch cannot shard a 0-d tensor, so a distributed checkpoint has the whole value on every rank.
        state[prefix + "alpha"] = _sharded_as(held, reshaped) if is_dtensor(held) else reshaped


def _sharded_as(held: Any, loaded: Any) -> Tensor:
    """Shards a tensor that is whole on every rank in the same way as the DTensor `held`, without communication."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = held.device_mesh
    if not is_dtensor(loaded):
        device = mesh.device_type if held.is_meta else held.device
        loaded = DTensor.from_local(loaded.to(device), mesh, [Replicate()] * mesh.ndim, run_check=False)
    sharded: Tensor = loaded.redistribute(mesh, held.placements)
    return sharded


def _device_of(layer: nn.Module) -> torch.device:
    """The device of the buffer `pe`; the CPU for a layer without one."""
    pe = layer._buffers.get("pe")
    return torch.device("cpu") if pe is None else pe.device


def _compare_order(layer: SinusoidalPositionalEncoding, pe: Any, prefix: str) -> None:
    """Warns if `pe` has the shape for the other value of batch_first: the layer would encode the batch dimension."""
    if not isinstance(pe, Tensor) or pe.dim() != 3 or pe.shape[0] == pe.shape[1] or 1 not in pe.shape[:2]:
        return
    if (pe.shape[0] == 1) == layer.batch_first:
        return
    ours, theirs = ("batch", "sequence") if layer.batch_first else ("sequence", "batch")
    warnings.warn(
        f"{prefix}pe: the checkpoint's table has shape {tuple(pe.shape)}, that of a model with the {theirs} first, and "
        f"this layer takes the {ours} first; pass batch_first={not layer.batch_first}, or transpose its input",
        UserWarning,
        stacklevel=3,
    )


def mismatch(
    pe: Any, encoding: Encoding | GridEncoding, grid_shape: tuple[int, ...] | None = None, extra_tokens: int = 0
) -> Mismatch | None:
    """How a table in a checkpoint differs from an encoding by more than its rounding errors; None if it does not."""
    if not isinstance(pe, Tensor):
        return Mismatch(f"it is a {type(pe).__name__}, not a tensor")
    if grid_shape is not None and tuple(pe.shape[-len(grid_shape) - 1 : -1]) == grid_shape:
        pe = pe.flatten(-len(grid_shape) - 1, -2)
    rows = pe.squeeze(0) if pe.dim() == 3 and pe.shape[0] == 1 else pe.squeeze(1) if pe.dim() == 3 else pe
    if rows.dim() != 2 or rows.shape[1] != encoding.dim:
        return Mismatch(f"its shape {tuple(pe.shape)} is not that of a table, (rows, {encoding.dim})")
    if rows.device.type == "meta" or not rows.numel():
        return None
    rows = rows.detach().to("cpu")
    if isinstance(encoding, GridEncoding):
        return _grid_mismatch(rows, encoding, grid_shape, extra_tokens)
    if extra_tokens and not bool(_different_rows(rows, encoding)[0].any()):
        return None  # a table without rows for the extra tokens
    rows = rows[extra_tokens:]
    differs, error = _different_rows(rows, encoding)
    if not bool(differs.any()):
        return None
    row = int(differs.nonzero()[0])
    text = f"row {row} differs by {float(error[row]):.3g}, and {int(differs.sum())} of {len(rows)} rows differ"
    if row >= ROWS_TO_RECOGNIZE:  # its first rows are those of the layer, so no other convention can match
        return Mismatch(text)
    known = [name for name in CATALOGUE if _matches_convention(rows[:ROWS_TO_RECOGNIZE], name)]
    return Mismatch(text, f'convention("{known[0]}", {encoding.dim})' if known else "")


def _grid_mismatch(
    rows: Tensor, grid: GridEncoding, grid_shape: tuple[int, ...] | None, extra_tokens: int
) -> Mismatch | None:
    """`mismatch` for the table of a grid; None without a grid_shape, as the coordinates of its rows are unknown."""
    if grid_shape is None:
        return None
    ours = functional.table(
        grid_shape, grid, dtype=torch.float64, device="cpu", flatten=True, extra_tokens=extra_tokens
    )
    if ours.shape != rows.shape:
        front = len(rows) - len(ours) + extra_tokens
        if front > 0 and not bool(rows[:front].any()):
            error = (rows[front:].to(torch.float64) - ours[extra_tokens:]).abs()
            if bool((error <= _allowed(rows, grid, grid_shape)).all()):
                return Mismatch(f"it has {front} rows for extra tokens", extra_tokens=front)
        wanted = f"{len(ours)} of grid_shape {grid_shape} with extra_tokens {extra_tokens}"
        return Mismatch(f"it has {len(rows)} rows, not the {wanted}", grid_shape=_other_shape(rows, grid, extra_tokens))
    error = (rows.to(torch.float64) - ours).abs().amax(1)
    differs = ~(error <= _allowed(rows, grid, grid_shape))
    if not bool(differs.any()):
        return None
    row = int(differs.nonzero()[0])
    text = f"row {row} differs by {float(error[row]):.3g}, and {int(differs.sum())} of {len(rows)} rows differ"
    for name in GRIDS:
        try:
            other = convention(name, grid.dim)
        except ValueError:  # this convention does not support the dim
            continue
        if isinstance(other, GridEncoding) and other.ndim == grid.ndim:
            theirs = functional.table(
                grid_shape, other, dtype=torch.float64, device="cpu", flatten=True, extra_tokens=extra_tokens
            )
            if float((rows.to(torch.float64) - theirs).abs().max()) <= _allowed(rows, other, grid_shape):
                return Mismatch(text, f'convention("{name}", {grid.dim})')
    return Mismatch(text)


def _other_shape(rows: Tensor, grid: GridEncoding, extra_tokens: int) -> tuple[int, ...] | None:
    """The shape of a square, or the most square shape of two axes, for which a table is that of the grid."""
    count = len(rows) - extra_tokens
    if grid.ndim != 2 or count < 1:
        return None
    starts = torch.tensor([axis.start for axis in grid.axes])
    some = torch.linspace(0, count - 1, min(count, 9)).long()  # compared first
    lower = [n for n in range(1, math.isqrt(count) + 1) if count % n == 0][:-9:-1]
    for shape in ((first, count // first) for n in lower for first in dict.fromkeys((n, count // n))):
        points = torch.stack([some // shape[1], some % shape[1]], -1) + starts
        theirs, allowed = functional.encode(points, grid, dtype=torch.float64), _allowed(rows, grid, shape)
        if bool(((rows[some + extra_tokens].to(torch.float64) - theirs).abs() <= allowed).all()):
            theirs = functional.table(
                shape, grid, dtype=torch.float64, device="cpu", flatten=True, extra_tokens=extra_tokens
            )
            if bool(((rows.to(torch.float64) - theirs).abs() <= allowed).all()):
                return shape
    return None


def _allowed(rows: Tensor, grid: GridEncoding, grid_shape: tuple[int, ...]) -> float:
    """The largest difference from a grid encoding that the rounding errors of a table explain."""
    furthest = max(
        (abs(axis.start) + length) * max(1.0, abs(float(axis.position_scale)))
        for axis, length in zip(grid.axes, grid_shape, strict=True)
    )
    allowed = furthest * TABLE_ANGLE_ERROR + TABLE_ERROR + TABLE_ROUNDING.get(rows.dtype, 0.0)
    return allowed * max(1.0, *(abs(axis.amplitude) for axis in grid.axes))


def _different_rows(rows: Tensor, encoding: Encoding) -> tuple[Tensor, Tensor]:
    """(rows,) bool, which rows differ from an encoding by more than rounding errors; and their largest errors."""
    ours = functional.table(len(rows), encoding, dtype=torch.float64, device="cpu")
    error = (rows.to(torch.float64) - ours).abs().amax(1)
    positions = (torch.arange(len(rows), dtype=torch.float64) + encoding.start).abs()
    positions *= max(1.0, abs(float(encoding.position_scale)))
    allowed = positions * TABLE_ANGLE_ERROR + TABLE_ERROR + TABLE_ROUNDING.get(rows.dtype, 0.0)
    return ~(error <= allowed * max(1.0, abs(encoding.amplitude))), error


def _matches_convention(rows: Tensor, name: str) -> bool:
    """Whether rows are the first ones of the table of a convention."""
    encoding = convention(name, rows.shape[1])
    return isinstance(encoding, Encoding) and not bool(_different_rows(rows, encoding)[0].any())

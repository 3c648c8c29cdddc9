"""State-dict hooks of the layers, for the table `pe` and a learned alpha.

`pe` is written for code that expects a table, and compared with the encoding of the layer when a checkpoint is loaded.
A learned alpha has shape (1,) here and () in other libraries; either is accepted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import functional
from ..agreement import agrees, compare
from ..encodings.catalogue import CATALOGUE, convention
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.grid_catalogue import GRIDS
from ..encodings.resolve import name_of
from ..encodings.values import is_dtensor

if TYPE_CHECKING:
    from .layers import SinusoidalPositionalEncoding

ROWS_TO_RECOGNIZE = 64  # rows of a sequence that are compared with the conventions


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
    problem = mismatch(layer, pe)
    if problem is not None:
        _warn(layer, prefix, problem)


def compare_assigned(layer: SinusoidalPositionalEncoding, pe: Tensor) -> None:
    """Warns if the buffer `pe` is assigned the table of another convention.

    from_pretrained of transformers assigns buffers and calls no load_state_dict() hook. As it also assigns
    uninitialized memory, there is no warning for a table that matches no convention.
    """
    problem = mismatch(layer, pe)
    if problem is not None and problem.convention:
        _warn(layer, "", problem)


class Mismatch(NamedTuple):
    """How a table in a checkpoint differs from the encoding of a layer.

    Attributes:
        text: the difference.
        convention: the name of the convention whose table it is, "" if none is known.
        arguments: what to pass to the layer instead.
    """

    text: str
    convention: str = ""
    arguments: str = "encoding="


def mismatch(layer: SinusoidalPositionalEncoding, pe: Any) -> Mismatch | None:
    """How a table in a checkpoint differs from a layer's encoding by more than rounding errors; None if it does not."""
    encoding, extra_tokens, lengths = layer.encoding, layer.extra_tokens, layer.grid_shape
    if not isinstance(pe, Tensor):
        return Mismatch(f"it is a {type(pe).__name__}, not a tensor")
    rows = pe
    if lengths is not None and tuple(pe.shape[-len(lengths) - 1 : -1]) == lengths:
        rows = rows.flatten(-len(lengths) - 1, -2)
    if rows.dim() == 3 and 1 in rows.shape[:2]:
        rows = rows.flatten(0, 1)
    if rows.dim() != 2 or rows.shape[1] != encoding.dim:
        return Mismatch(f"its shape {tuple(pe.shape)} is not that of a table, (rows, {encoding.dim})")
    if rows.is_meta or not rows.numel() or (isinstance(encoding, GridEncoding) and lengths is None):
        return None  # nothing to compare; of a grid without grid_shape, the coordinates of the rows are unknown
    if lengths is not None and len(rows) != math.prod(lengths) + extra_tokens:
        expected = f"{math.prod(lengths) + extra_tokens} of grid_shape {lengths} with extra_tokens {extra_tokens}"
        return Mismatch(f"it has {len(rows)} rows, not the {expected}", "", "grid_shape= and extra_tokens=")
    rows = rows.detach().cpu()
    if lengths is None and extra_tokens and agrees(rows, encoding):
        return None  # a table without rows for the extra tokens
    differs, error = compare(rows[extra_tokens:], encoding, lengths)
    if not bool(differs.any()):
        return None
    row = int(differs.nonzero()[0])
    wrong = f"{int(differs.sum())} of {len(rows)} rows differ"
    text = f"row {row + extra_tokens} differs by {float(error[row]):.3g}, and {wrong}"
    if lengths is not None:
        return Mismatch(text, _convention_of(rows[extra_tokens:], encoding, lengths))
    # If the first rows are those of the layer, no other convention can match.
    first = rows[extra_tokens:][:ROWS_TO_RECOGNIZE]
    return Mismatch(text, _convention_of(first, encoding, None) if row < ROWS_TO_RECOGNIZE else "")


def _convention_of(rows: Tensor, encoding: Encoding | GridEncoding, lengths: Sequence[int] | None) -> str:
    """The name of the first convention with these rows, "" if there is none."""
    for name in CATALOGUE if lengths is None else GRIDS:
        try:
            known = convention(name, encoding.dim)
        except ValueError:  # a dim that the convention does not support
            continue
        if getattr(known, "ndim", 1) == getattr(encoding, "ndim", 1) and agrees(rows, known, lengths):
            return name_of(known)
    return ""


def _warn(layer: SinusoidalPositionalEncoding, prefix: str, problem: Mismatch) -> None:
    """Warns that a table in a checkpoint is not that of the layer's encoding."""
    known = f"; it is {problem.convention}" if problem.convention else ""
    warnings.warn(
        f"{prefix}pe: the checkpoint's table is not this layer's encoding, {name_of(layer.encoding)}: {problem.text}"
        f"{known}. The layer keeps its own encoding; pass the {problem.arguments} that the model was trained with",
        UserWarning,
        stacklevel=3,
    )


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


def _device_of(layer: nn.Module) -> torch.device:
    """The device of the buffer `pe`; the CPU for a layer without one."""
    pe = layer._buffers.get("pe")
    return torch.device("cpu") if pe is None else pe.device


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

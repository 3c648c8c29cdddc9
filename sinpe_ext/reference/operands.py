"""The operands of each operator as a NamedTuple, whose fields are the operator's arguments in the order of its schema.

Operators take the items one by one, since schemas have no records; all other code takes the whole record. The fields
are described at the top of `ops/rows.py` and `ops/embed.py`, next to the schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Dropout(NamedTuple):
    """Operands of `dropout`."""

    x: Tensor
    seed: Tensor | None
    drop_threshold: int
    scale: float = 1.0
    rng_offsets: Sequence[int] = ()


class Add(NamedTuple):
    """Operands of `add`. The defaults of the fields after plan are those of a plain sum."""

    x: Tensor
    plan: Tensor
    positions: Tensor | None = None
    padding_mask: Tensor | None = None
    alpha: Tensor | None = None
    seed: Tensor | None = None
    start: int = 0
    positions_are_starts: bool = False
    scale: float = 1.0
    drop_threshold: int = 0
    rng_offsets: Sequence[int] = ()


class AddGrid(NamedTuple):
    """Operands of `add_grid_out`, except out."""

    x: Tensor
    values: Tensor
    grid: Tensor
    padding_mask: Tensor | None = None
    seed: Tensor | None = None
    scale: float = 1.0
    drop_threshold: int = 0
    rng_offsets: Sequence[int] = ()


class RowDots(NamedTuple):
    """Operands of `row_dots`."""

    grad: Tensor
    plan: Tensor
    positions: Tensor | None = None
    padding_mask: Tensor | None = None
    angular_frequencies: Tensor | None = None
    seed: Tensor | None = None
    start: int = 0
    positions_are_starts: bool = False
    drop_threshold: int = 0
    rng_offsets: Sequence[int] = ()


class AddBackward(NamedTuple):
    """Operands of `add_backward`."""

    grad: Tensor
    plan: Tensor
    positions: Tensor | None = None
    padding_mask: Tensor | None = None
    seed: Tensor | None = None
    start: int = 0
    positions_are_starts: bool = False
    scale: float = 1.0
    drop_threshold: int = 0
    rng_offsets: Sequence[int] = ()

    def to_x(self) -> Dropout:
        """Operands of `dropout`, whose result is the first."""
        return Dropout(self.grad, self.seed, self.drop_threshold, self.scale, self.rng_offsets)

    def row_dots(self) -> RowDots:
        """Operands of `row_dots`, whose result is the second."""
        return RowDots(
            self.grad, self.plan, self.positions, self.padding_mask, None, self.seed, self.start,
            self.positions_are_starts, self.drop_threshold, self.rng_offsets,
        )  # fmt: skip


class Embed(NamedTuple):
    """Operands of `embed`."""

    ids: Tensor
    weight: Tensor
    plan: Tensor
    positions: Tensor | None = None
    padding_mask: Tensor | None = None
    alpha: Tensor | float | None = None
    seed: Tensor | None = None
    start: int = 0
    positions_are_starts: bool = False
    scale: float = 1.0
    padding_idx: int = -1
    sparse: bool = False
    drop_threshold: int = 0
    rng_offsets: Sequence[int] = ()


class EmbedBackward(NamedTuple):
    """Operands of `embed_backward`."""

    grad: Tensor
    ids: Tensor
    seed: Tensor | None
    num_embeddings: int
    padding_idx: int = -1
    scale: float = 1.0
    drop_threshold: int = 0
    rng_offsets: Sequence[int] = ()


def save(ctx: Any, operands: Any, *left_out: str) -> None:
    """Saves a record, except the fields in `left_out`, for `saved` in the backward pass."""
    tensors: list[Tensor | None] = []
    others: list[Any] = []
    for name, item in zip(operands._fields, operands, strict=True):
        item = None if name in left_out else item
        is_tensor = isinstance(item, Tensor)
        tensors.append(item if is_tensor else None)
        others.append(None if is_tensor else item)
    ctx.save_for_backward(*tensors)
    ctx.operands = operands._make(others)


def saved(ctx: Any) -> Any:
    """The record that `save` has stored."""
    pairs = zip(ctx.saved_tensors, ctx.operands, strict=True)
    return ctx.operands._make([item if tensor is None else tensor for tensor, item in pairs])

"""The operands of each operator as a record.

Operators take the items of a record one by one, in the order of its fields, since schemas have no records. Their
tensors are in canonical form: x and grad (batch, *middle, sequence, channels) or (sequence, channels), ids (batch,
*middle, sequence) or (sequence,), positions and padding_mask (batch or 1, sequence), start positions (batch or 1, 1).
`drop_threshold` is the dropout probability in units of 1 / 65536. `rng_offsets` is
[first, *steps], the index in the whole tensor of the first element and the increment of that index along each dimension
(empty: row-major); it determines the mask (`reference/philox.py`). `plan` is a plan packed into int64 words
(`encodings/plan.py`), in CUDA memory for CUDA tensors, else on the CPU. Tensors are the first fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Part(NamedTuple):
    """One shard of a tensor that is sharded along any of its dimensions.

    Attributes:
        shape: shape of the whole.
        first: index in the whole of the first element of the shard, one entry for each dimension.
    """

    shape: tuple[int, ...]
    first: tuple[int, ...]


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


# The number of tensors in a record of operands: its first fields.
_TENSORS: dict[type, int] = {
    kind: sum("Tensor" in str(hint) for hint in kind.__annotations__.values())
    for kind in (Dropout, Add, RowDots, AddBackward, Embed, EmbedBackward)
}


def save(ctx: Any, operands: Any, left_out: int | None = None) -> None:
    """Saves a record, except the tensor at the place `left_out`, for `saved` in the backward pass."""
    count = _TENSORS[type(operands)]
    tensors = operands[:count]
    if left_out is not None:
        tensors = (*tensors[:left_out], None, *tensors[left_out + 1 :])
    ctx.save_for_backward(*tensors)
    ctx.record, ctx.numbers = type(operands), operands[count:]


def saved(ctx: Any) -> Any:
    """The record that `save` has stored."""
    return ctx.record(*ctx.saved_tensors, *ctx.numbers)

"""The operands of each operator, in the order of its schema.

The structs of the C interface (csrc/include/sinpe/sinpe.h) use the same names; the plan is a separate argument there,
and what concerns dropout a struct of its own. This file imports nothing of the package: operations/ makes the records,
reference/ computes with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Size: TypeAlias = int  # a size or a position, which may be symbolic in a graph


class Dropout(NamedTuple):
    """Operands of `dropout`.

    `drop_threshold` is the dropout probability in units of 1 / 65536. `rng_offsets` is [first, *steps], the index in
    the whole tensor of the first element and the increment of that index along each dimension (empty: row-major); it
    determines the mask (`reference/philox.py`).
    """

    x: Tensor
    seed: Tensor | None
    drop_threshold: int
    scale: float = 1.0
    rng_offsets: Sequence[Size] = ()


class DrawSeed(NamedTuple):
    """Operand of `draw_seed`: a new tensor in each draw, because a graph would merge two draws with equal operands."""

    like: Tensor


class Table(NamedTuple):
    """Operands of `table`."""

    plan: Tensor
    start: Size
    length: Size
    dim: int
    dtype: torch.dtype


class TableOut(NamedTuple):
    """Operands of `table_out`, except out."""

    plan: Tensor
    start: Size


class Encode(NamedTuple):
    """Operands of `encode`."""

    positions: Tensor
    plan: Tensor
    dim: int
    dtype: torch.dtype


class RowDots(NamedTuple):
    """Operands of `row_dots`; see `Add`."""

    grad: Tensor
    plan: Tensor
    positions: Tensor | None = None
    padding_mask: Tensor | None = None
    angular_frequencies: Tensor | None = None
    seed: Tensor | None = None
    start: Size = 0
    positions_are_starts: bool = False
    drop_threshold: int = 0
    rng_offsets: Sequence[Size] = ()


class TreeSum(NamedTuple):
    """Operand of `tree_sum`: float64, on devices without it float32; contiguous."""

    terms: Tensor


class Add(NamedTuple):
    """Operands of `add`, and of `add_out` except out. The defaults of the fields after plan are those of a plain sum.

    Tensors are in canonical form: x (batch, *middle, sequence, channels) or (sequence, channels), positions and
    padding_mask (batch or 1, sequence), start positions (batch or 1, 1). `plan` is a plan packed into int64 words
    (`encodings/plan.py`), in CUDA memory for CUDA tensors, else on the CPU. `drop_threshold` and `rng_offsets` are
    those of `Dropout`.

    With `axis_rows`, the rows of a grid's axes times alpha, `plan` is the packed grid (`operations/grid_rows.py`), x is
    (*B, points, channels), or (*B, channels, points) for a grid by channels, positions are None, and start and alpha
    are not used.

    To the first `extra_tokens` rows of the sequence no encoding is added; positions, padding_mask and the points of a
    grid are those of the rows behind. 0 for a grid by channels, whose last dimension are the points.
    """

    x: Tensor
    plan: Tensor
    positions: Tensor | None = None
    padding_mask: Tensor | None = None
    alpha: Tensor | None = None
    seed: Tensor | None = None
    axis_rows: Tensor | None = None
    start: Size = 0
    positions_are_starts: bool = False
    scale: float = 1.0
    extra_tokens: Size = 0
    drop_threshold: int = 0
    rng_offsets: Sequence[Size] = ()


class AddBackward(NamedTuple):
    """Operands of `add_backward`."""

    grad: Tensor
    plan: Tensor
    positions: Tensor | None = None
    padding_mask: Tensor | None = None
    seed: Tensor | None = None
    start: Size = 0
    positions_are_starts: bool = False
    scale: float = 1.0
    drop_threshold: int = 0
    rng_offsets: Sequence[Size] = ()

    def to_x(self) -> Dropout:
        """Operands of `dropout`, whose result is the first."""
        return Dropout(self.grad, self.seed, self.drop_threshold, self.scale, self.rng_offsets)


class Embed(NamedTuple):
    """Operands of `embed`; see `Add`. ids: (batch, *middle, sequence) or (sequence,)."""

    ids: Tensor
    weight: Tensor
    plan: Tensor
    positions: Tensor | None = None
    padding_mask: Tensor | None = None
    alpha: Tensor | None = None
    seed: Tensor | None = None
    start: Size = 0
    positions_are_starts: bool = False
    scale: float = 1.0
    padding_idx: int = -1
    sparse: bool = False
    drop_threshold: int = 0
    rng_offsets: Sequence[Size] = ()


class EmbedBackward(NamedTuple):
    """Operands of `embed_backward`."""

    grad: Tensor
    ids: Tensor
    seed: Tensor | None
    num_embeddings: Size
    padding_idx: int = -1
    scale: float = 1.0
    drop_threshold: int = 0
    rng_offsets: Sequence[Size] = ()


class PlanPartner(NamedTuple):
    """Operand of `plan_partner`."""

    plan: Tensor


class PlanAngularFrequencies(NamedTuple):
    """Operands of `plan_angular_frequencies`."""

    plan: Tensor
    dim: int

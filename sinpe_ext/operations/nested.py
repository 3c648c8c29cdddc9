"""Jagged nested tensors (`layout=torch.jagged`): the same calls on their values, where positions start at 0, or at
`start`, in each sequence.

torch's nested tensors are a prototype. This module uses `values`, `offsets`, `lengths` and `nested_tensor_from_jagged`,
and, without a public equivalent, `_ragged_idx`, `_maybe_min_seqlen` and `_maybe_max_seqlen`, the smallest and largest
length if they have been computed already.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..encodings import values
from ..encodings.values import strided_tensor
from ..torch_state import should_check_values
from . import checks, memory, table
from .add import AddArguments, SequenceAdd, Sum
from .embed import EmbedArguments, EmbedCall

_is_compiling = torch.compiler.is_compiling


def is_jagged(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.jagged


def sequence_positions(ends: Tensor, rows: Any, first: Any = 0) -> Tensor:
    """The positions of concatenated sequences, each beginning at `first`.

    Args:
        ends: (sequences + 1,), int64, contiguous: 0, then the end of each sequence.
        rows: total number of rows; rows after the last end are treated as one more sequence.
        first: an int, or int64 of shape (sequences, 1) or (1, 1); rows after the last end then begin at 0.
    Returns:
        (rows,), int64.
    """
    index = torch.arange(rows, device=ends.device)
    if isinstance(first, Tensor):
        first = functional.pad(first.reshape(-1).expand(ends.shape[0] - 1), (0, 1))
    return index - (ends - first)[torch.searchsorted(ends, index, right=True) - 1]


class Sequences:
    """The sequences of a jagged tensor as ranges of the rows of its values.

    Attributes:
        values: (rows, ...), the sequences, concatenated.
        ends: (sequences + 1,) int64, torch's offsets.
        count: number of sequences.
        longest: number of rows of the longest sequence; 1 if the offsets are not read.
    """

    def __init__(self, name: str, jagged: Any) -> None:
        self.name, self.jagged, self.shape = name, jagged, tuple(jagged.shape)
        if jagged._ragged_idx != 1:
            raise ValueError(
                f"{name}: expected sequences of different lengths along dimension 1, (batch, sequence, ...), got "
                f"dimension {jagged._ragged_idx} in shape {self.shape}; transpose it"
            )
        if jagged.lengths() is not None:
            raise ValueError(
                f"{name}: expected jagged sequences that lie one behind the other, got one with lengths, whose "
                f"values have gaps; pass {name}.contiguous()"
            )
        self.values: Tensor = jagged.values()
        strided_tensor(name, self.values)
        ends = jagged.offsets()
        self.ends, self.count = ends.long().contiguous(), ends.shape[0] - 1
        self.longest = int(self.ends.diff().max()) if self.count and should_check_values(ends) else 1

    def like(self, values: Tensor) -> Tensor:
        """A jagged tensor with other values and the same offsets tensor, so that torch can combine the two."""
        jagged = self.jagged
        known: dict[str, Any] = {"min_seqlen": jagged._maybe_min_seqlen, "max_seqlen": jagged._maybe_max_seqlen}
        wrapped: Tensor = torch.nested.nested_tensor_from_jagged(values, jagged.offsets(), **known)
        return wrapped

    def values_of(self, name: str, value: Any) -> Tensor:
        """The values of another jagged tensor, which must have the same offsets."""
        advice = f"pass torch.nested.nested_tensor_from_jagged(values, {self.name}.offsets())"
        if not is_jagged(value):
            raise TypeError(
                f"{name}: expected a jagged nested tensor, as {self.name} is, got {values.described(value)}; {advice}"
            )
        other = Sequences(name, value)
        if not self._has_same_offsets(other):
            raise ValueError(
                f"{name}: expected the offsets of {self.name}, got others, in shape {other.shape} for {self.name} of "
                f"shape {self.shape}; {advice}"
            )
        return other.values

    def _has_same_offsets(self, other: Sequences) -> bool:
        """Whether another jagged tensor has the same offsets."""
        if self.shape[1] == other.shape[1]:  # torch's symbolic size, which identifies the offsets
            return True
        ours, theirs = self.ends, other.ends
        return should_check_values(ours) and should_check_values(theirs) and torch.equal(ours, theirs)

    def positions(self, of: checks.Target, positions: Any, start: Any, first: int) -> Tensor:
        """The positions of all rows, (1, rows); implicit ones begin at first + start, `first` being the encoding's
        start."""
        rows, of = of.rows, of._replace(shape=self.shape, batch=self.count, rows=self.longest)
        if positions is not None:
            checks.start_beside_positions(start)
            of_rows = checks.positions(self.values_of("positions", positions))
            if of_rows.dim() != 1 or of_rows.shape[0] != rows:
                raise ValueError(
                    f"positions: expected shape {self.shape[:2]}, one for each row of {self.name}, got "
                    f"{tuple(positions.shape)} with {of_rows.shape[0]} rows of values; reshape it"
                )
            checks.same_device("positions", of_rows, of)
            return of_rows.unsqueeze(0)
        checks.refuse_in_context_parallel()
        if isinstance(start, Tensor):
            start, first = checks.start_tensor(start, of, first), 0
        elif not (_is_compiling() and isinstance(start, (int, torch.SymInt))):
            checks.refuse_list(start, of)
            start = values.start(start)
            values.position_range(first + start, of.rows)
        return sequence_positions(self.ends, rows, start + first).unsqueeze(0)

    def check_no_padding_mask(self, mask: Any) -> None:
        """Raises ValueError for a padding_mask."""
        if mask is not None:
            raise ValueError(
                f"padding_mask: expected None for a jagged {self.name}, which has no padding, got "
                f"{values.described(mask)}; leave it out"
            )

    def check_seq_dim(self, seq_dim: Any) -> None:
        """Raises ValueError if `seq_dim` is not the dimension of the sequences."""
        if checks.axis("seq_dim", seq_dim, len(self.shape), self.name) != 1:
            raise ValueError(
                f"seq_dim: expected 1, the dimension of the sequences of {self.name}, got {seq_dim} for shape "
                f"{self.shape}; pass seq_dim=1 (a layer: batch_first=True)"
            )


class _JaggedCall(Sum):
    """A call with a jagged tensor, where each sequence has its own positions."""

    sequences: Sequences

    def set_positions(self, positions: Any, start: Any) -> None:
        self.positions = self.sequences.positions(self.target(), positions, start, self.encoding.start)


class JaggedAdd(_JaggedCall, SequenceAdd):
    """`add` of a jagged tensor: a SequenceAdd on its values."""

    def __init__(self, arguments: AddArguments) -> None:
        self.sequences = of = Sequences("x", arguments.x)
        self.given = arguments
        if not arguments.is_sequence():
            raise ValueError(
                "encoding, grid_shape, extra_tokens: expected no grid and no extra tokens for a jagged x, got "
                f"{values.shown(arguments.encoding)}, {values.shown(arguments.grid_shape)} and "
                f"{values.shown(arguments.extra_tokens)}; call add(x.values(), ...) with positions of its rows"
            )
        of.check_no_padding_mask(arguments.padding_mask)
        rank = len(of.shape)
        if rank < 3:
            raise ValueError(
                "x: expected a jagged tensor of 3 dimensions or more, (batch, sequence, channels), got shape "
                f"{of.shape}; unsqueeze it"
            )
        of.check_seq_dim(arguments.seq_dim)
        channels_at = checks.axis("channel_dim", arguments.channel_dim, rank)
        checks.two_dimensions(1, channels_at, arguments.seq_dim, arguments.channel_dim)
        if channels_at == 0:
            raise ValueError(
                "channel_dim: expected a dimension behind the sequences of a jagged x, got "
                f"{arguments.channel_dim} for shape {of.shape}; pass -1"
            )
        super().__init__(arguments._replace(x=of.values, seq_dim=0, channel_dim=channels_at - 1))

    def result(self) -> Tensor:
        return self.sequences.like(super().result())

    def result_in_place(self) -> Tensor:
        x = self.sequences.jagged
        memory.in_place(x)
        self.check_disjoint(self.x)
        if _is_compiling() or self.needs_grad(self.x):
            return x.copy_(JaggedAdd(self.given._replace(x=x.clone())).result())  # of values that are no view of x
        super().result_in_place()
        return x

    def result_into(self, out: Any) -> Tensor:
        super().result_into(self.sequences.values_of("out", out))
        return out


class JaggedEmbed(_JaggedCall, EmbedCall):
    """`embed` of jagged ids: an EmbedCall on their values."""

    def __init__(self, arguments: EmbedArguments) -> None:
        self.sequences = of = Sequences("ids", arguments.ids)
        strided_tensor("weight", arguments.weight)  # not a DTensor
        of.check_no_padding_mask(arguments.padding_mask)
        of.check_seq_dim(arguments.seq_dim)
        super().__init__(arguments._replace(ids=of.values, seq_dim=0))

    def result(self) -> Tensor:
        return self.sequences.like(super().result())


def encode(positions: Tensor, encoding: Any, dim: Any, dtype: Any, allow_16bit: Any) -> Tensor:
    """`encode` of jagged positions."""
    sequences = Sequences("positions", positions)
    return sequences.like(table.encode(sequences.values, encoding, dim, dtype, allow_16bit))

"""Jagged nested tensors (`layout=torch.jagged`): the same calls on their values, where positions start at 0, or at
`start`, in each sequence.

torch's nested tensors are a prototype. This module uses `values`, `offsets`, `lengths` and `nested_tensor_from_jagged`,
and, without a public equivalent, `_ragged_idx`, `_maybe_min_seqlen` and `_maybe_max_seqlen`, the smallest and largest
length if they have been computed already.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..backend import loader
from ..encodings import resolve
from ..encodings.values import described, shown, strided_tensor
from ..torch_state import should_check_values
from . import add, checks, embed, memory, repetition, table
from .plans import encoding_arguments


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


class Jagged(NamedTuple):
    """The sequences of a jagged tensor as ranges of the rows of its values.

    Attributes:
        values: (rows, ...), the sequences, concatenated.
        ends: (sequences + 1,) int64, torch's offsets.
    """

    name: str
    tensor: Any
    values: Tensor
    ends: Tensor

    def like(self, values: Tensor) -> Tensor:
        """A jagged tensor with other values and the same offsets tensor, so that torch can combine the two."""
        t = self.tensor
        known: dict[str, Any] = {"min_seqlen": t._maybe_min_seqlen, "max_seqlen": t._maybe_max_seqlen}
        wrapped: Tensor = torch.nested.nested_tensor_from_jagged(values, t.offsets(), **known)
        return wrapped

    def values_of(self, name: str, value: Any) -> Tensor:
        """The values of another jagged tensor, which must have the same offsets."""
        advice = f"pass torch.nested.nested_tensor_from_jagged(values, {self.name}.offsets())"
        if not is_jagged(value):
            raise TypeError(
                f"{name}: expected a jagged nested tensor, as {self.name} is, got {described(value)}; {advice}"
            )
        other, shape = _jagged(name, value), tuple(self.tensor.shape)
        is_same = shape[1] == value.shape[1]  # torch's symbolic size, which identifies the offsets
        is_known = is_same or (should_check_values(self.ends) and should_check_values(other.ends))
        if not is_known or not (is_same or torch.equal(self.ends, other.ends)):
            raise ValueError(
                f"{name}: expected the offsets of {self.name}, got others, in shape {tuple(value.shape)} for "
                f"{self.name} of shape {shape}; {advice}"
            )
        return other.values

    def checked(self, arguments: Any, width: int) -> Any:
        """The arguments with the positions of all rows, (rows,), after checks of those that a jagged tensor restricts;
        `width` is the number of channels of the encoding."""
        name, shape = self.name, tuple(self.tensor.shape)
        if arguments.padding_mask is not None:
            raise ValueError(
                f"padding_mask: expected None for a jagged {name}, which has no padding, got "
                f"{described(arguments.padding_mask)}; leave it out"
            )
        if checks.axis("seq_dim", arguments.seq_dim, len(shape), name) != 1:
            raise ValueError(
                f"seq_dim: expected 1, the dimension of the sequences of {name}, got {arguments.seq_dim} for shape "
                f"{shape}; pass seq_dim=1 (a layer: batch_first=True)"
            )
        if arguments.positions is not None:
            positions = self.values_of("positions", arguments.positions)
            if positions.dim() != 1 or positions.shape[0] != self.values.shape[0]:
                raise ValueError(
                    f"positions: expected shape {shape[:2]}, one for each row of {name}, got "
                    f"{tuple(arguments.positions.shape)} with {positions.shape[0]} rows of values; reshape it"
                )
            return arguments._replace(positions=positions, seq_dim=0)
        checks.refuse_in_context_parallel()
        ends, first = self.ends, resolve.encoding(*encoding_arguments(arguments.encoding, width)).start
        count, longest = len(ends) - 1, 1
        if count and should_check_values(ends):
            longest = int(ends.diff().max())
        of = checks.Target(name, shape, ends.device, count, ((longest,),))
        start = checks.starts(arguments.start, (first,), (longest,), False, ends.device, of)
        start = start if isinstance(start, Tensor) else start[0]
        positions = sequence_positions(ends, self.values.shape[0], start + first)
        return arguments._replace(positions=positions, start=0, seq_dim=0)


def _jagged(name: str, tensor: Any) -> Jagged:
    """Checks a jagged tensor."""
    shape = tuple(tensor.shape)
    if tensor._ragged_idx != 1:
        raise ValueError(
            f"{name}: expected sequences of different lengths along dimension 1, (batch, sequence, ...), got dimension "
            f"{tensor._ragged_idx} in shape {shape}; transpose it"
        )
    if tensor.lengths() is not None:
        raise ValueError(
            f"{name}: expected jagged sequences that lie one behind the other, got one with lengths, whose values have "
            f"gaps; pass {name}.contiguous()"
        )
    values = tensor.values()  # takes 20 microseconds
    strided_tensor(name, values)
    return Jagged(name, tensor, values, tensor.offsets().long().contiguous())


class JaggedCall(NamedTuple):
    """A call of `add` or `embed` of a jagged tensor, of whose values `of_values` are the arguments."""

    of: Jagged
    arguments: Any
    of_values: Any

    @property
    def call(self) -> Any:
        """The checked call of the values."""
        a = self.of_values
        return add.check_add(a) if isinstance(a, add.AddArguments) else embed.check_embed(a)

    def result(self) -> Tensor:
        result = None
        if not torch.compiler.is_compiling():
            is_add = isinstance(self.of_values, add.AddArguments)
            result = loader.repeat(repetition.ADD if is_add else repetition.EMBED, self.of_values)
        return self.of.like(self.call.result() if result is None else result)

    def result_in_place(self) -> Tensor:
        x: Tensor = self.of.tensor
        call = self.call
        memory.in_place(x)
        call.check_disjoint(call.x)
        if torch.compiler.is_compiling() or call.sum.needs_grad:
            return x.copy_(check_add(self.arguments._replace(x=x.clone())).result())  # of values that are no view of x
        call.result_in_place()
        return x

    def result_into(self, out: Any) -> Tensor:
        self.call.result_into(self.of.values_of("out", out))
        return out


def check_add(arguments: add.AddArguments) -> JaggedCall:
    """Checks the arguments of `add` of a jagged tensor."""
    of, shape, channel_dim = _jagged("x", arguments.x), tuple(arguments.x.shape), arguments.channel_dim
    if not arguments.is_sequence():
        raise ValueError(
            "encoding, grid_shape, extra_tokens: expected no grid and no extra tokens for a jagged x, got "
            f"{shown(arguments.encoding)}, {shown(arguments.grid_shape)} and {shown(arguments.extra_tokens)}; call "
            "add(x.values(), ...) with positions of its rows"
        )
    if len(shape) < 3:
        raise ValueError(
            "x: expected a jagged tensor of 3 dimensions or more, (batch, sequence, channels), got shape "
            f"{shape}; unsqueeze it"
        )
    channels_at = checks.axis("channel_dim", channel_dim, len(shape))
    if channels_at == 0:
        raise ValueError(
            f"channel_dim: expected a dimension behind the sequences of a jagged x, got {channel_dim} for shape "
            f"{shape}; pass -1"
        )
    if channels_at == 1:
        checks.refuse_same_dimensions(1, channel_dim)
    checks.check_x(of.values)
    checked = of.checked(arguments, operator.index(shape[channels_at]))
    return JaggedCall(of, arguments, checked._replace(x=of.values, channel_dim=channels_at - 1))


def check_embed(arguments: embed.EmbedArguments) -> JaggedCall:
    """Checks the arguments of `embed` of jagged ids."""
    of = _jagged("ids", arguments.ids)
    strided_tensor("weight", arguments.weight)  # not a DTensor
    checked = of.checked(arguments, operator.index(checks.weight(arguments.weight).shape[1]))
    return JaggedCall(of, arguments, checked._replace(ids=of.values))


def encode(arguments: table.EncodeArguments) -> Tensor:
    """`encode` of jagged positions."""
    of = _jagged("positions", arguments.positions)
    return of.like(table.encode(arguments._replace(positions=of.values)))

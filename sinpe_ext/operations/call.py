"""What the calls of `add` and `embed` share after their checks: the layout of x, and the rows of the encoding."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..encodings import resolve, values
from ..reference import philox
from ..reference.tiles import arranged
from ..torch_state import is_functional, is_transformed
from . import checks, dropout, encoded_rows, plans
from .checks import Target
from .dropout import DROPOUT
from .records import AddArguments, Dropout, EmbedArguments, Part

_is_compiling = torch.compiler.is_compiling
_Result = TypeVar("_Result")


def cached_by_value(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorator: cache the results of a function of values that are not tensors, such as an encoding and a dropout
    probability, by equality and type. Not used while torch.compile is tracing."""
    cached = lru_cache(maxsize=256, typed=True)(function)

    @wraps(function)
    def call(*values: Any) -> _Result:
        if _is_compiling():
            return function(*values)
        try:
            return cached(*values)
        except TypeError:  # an unhashable argument, or an error of the function, which it raises again
            return function(*values)

    return call


@cached_by_value
def _checked(given: Any, dim: int, columns: Any, dropout: Any) -> tuple[Any, int]:
    """(encoding, drop_threshold); the first three arguments are those of `resolve.encoding`."""
    return resolve.encoding(given, dim, columns), values.drop_threshold(dropout)


class Form:
    """The layout of a tensor with a sequence, and its conversion to canonical form and back.

    Attributes:
        axes: the dimensions of the sequence and of the channels.
    """

    extra = 0  # see GridForm
    is_evenly_spaced = True

    def __init__(self, axes: tuple[int, int], rank: int) -> None:
        self.axes = axes
        self.is_canonical = axes == (rank - 2, rank - 1)
        self.order = [d for d in range(rank) if d not in axes] + [*axes]

    def canonical(self, t: Tensor) -> Tensor:
        """A tensor of this layout in canonical form, as a view."""
        return t if self.is_canonical else t.permute(*self.order)

    def restored(self, t: Tensor) -> Tensor:
        """The inverse of `canonical`."""
        return t if self.is_canonical else t.permute(*(self.order.index(d) for d in range(len(self.order))))

    def rng_offsets(self, shape: Sequence[int], part: Part | None = None) -> list[int]:
        """Philox counter base and stride of each dimension of the canonical form, so that the mask follows the
        row-major order of `shape`, or of the whole of which `part` is a part; empty if the two orders are the same.

        Never empty in a graph: AOTInductor reads an empty list back as None.
        """
        if part is not None:
            steps = philox.row_major(part.shape)
            first = sum(at * step for at, step in zip(part.first, steps, strict=True))
            return [first, *(steps[d] for d in self.order)]
        if self.is_canonical and not _is_compiling():
            return []
        steps = philox.row_major(shape)
        return [0, *(steps[d] for d in self.order)]


class RowsCall:
    """The arguments of `add` or `embed` after all checks.

    Attributes:
        shape: shape of the result in canonical form, (batch, *middle, sequence, channels) or (sequence, channels).
        is_empty: whether the result has no elements.
        device: device of the result.
        acc: the dtype to which products and the sum are rounded.
        encoding: the encoding.
        given: the caller's arguments for the encoding.
        positions: None, (1 or B, S), or (1 or B, 1) int64 with `are_starts`: the first position of each sample.
        start: int, relative to encoding.start, if positions is None.
        alpha: float or tensor.
        padding_mask: None or (1 or B, S) bool.
        drop_threshold: the dropout probability in units of 1 / 65536.
        seed: int64 tensor, or None if no random numbers are needed.
        rng_offsets: Philox counter base and stride of each dimension of the canonical form; empty: row-major.
        columns: (first channel, number of channels) of a shard that has only some of the encoding's channels.
        row_offset: index of the first row of a shard in the whole.
        whole_rows: number of rows of the whole.
    """

    columns: tuple[int, int] | None = None
    row_offset = 0
    whole_rows: int
    start: Any = 0
    are_starts = False

    is_empty: bool
    shape: torch.Size
    device: torch.device
    acc: torch.dtype
    alpha: float | Tensor
    rng_offsets: list[int]

    def set_rows(self, of: Target, width: int, arguments: AddArguments | EmbedArguments) -> None:
        """Checks and stores the arguments that `add` and `embed` share; `width` is the number of channels, for an
        encoding given by name or not at all."""
        self.is_empty = 0 in self.shape
        self.given: plans.Given = arguments.encoding, width, self.columns
        self.encoding, self.drop_threshold = _checked(*self.given, arguments.dropout)
        # Not cached by `cached_by_value`: 0.0 and -0.0 are equal, but results differ in sign.
        scale, alpha = arguments.scale, arguments.alpha
        self.scale: float = scale if type(scale) is float else values.factor("scale", scale)
        self.alpha = alpha if type(alpha) is float else checks.alpha(alpha, of)
        mask = arguments.padding_mask
        self.padding_mask = None if mask is None else checks.padding_mask(mask, of)
        self._set_positions(of, arguments.positions, arguments.start)
        self._given_seed = None if arguments.seed is None else checks.seed(arguments.seed, of.device)
        self.seed: Tensor | None = None

    def whole_dim(self) -> int:
        """Number of channels of the encoding; the data may have fewer, as a shard."""
        return resolve.encoding(*self.given[:2]).dim if self.columns is not None else self.encoding.dim

    def _set_part(self, part: Part | None, rows_at: int, channels_at: int, shape: Sequence[int]) -> tuple[int, int]:
        """Stores where data of `shape` lies in the whole; returns the numbers of rows and channels of the whole."""
        if part is None:
            self.whole_rows = shape[rows_at]
            return self.whole_rows, operator.index(shape[channels_at])
        self.row_offset, self.whole_rows = part.first[rows_at], part.shape[rows_at]
        width, count = operator.index(part.shape[channels_at]), operator.index(shape[channels_at])
        if width != count:
            first = operator.index(part.first[channels_at])
            self.columns = min(first, width - 1), max(count, 1)  # one channel broadcasts to data without channels
        return self.whole_rows, width

    def _set_positions(self, of: Target, positions: Any, start: Any) -> None:
        """Checks and stores positions, or start if there are none."""
        self.positions: Tensor | None = None
        if positions is not None:
            checks.start_beside_positions(start)
            positions = checks.positions(positions)
            checks.same_device("positions", positions, of)
            self.positions = checks.row_tensor("positions", positions, of)
            return
        checks.refuse_in_context_parallel()
        if isinstance(start, Tensor):
            self.positions = checks.start_tensor(start, of, self.encoding.start + self.row_offset)
            self.are_starts = True
        elif _is_compiling() and isinstance(start, (int, torch.SymInt)):
            self.start = start + self.row_offset  # may be symbolic; the operator checks the range
        else:
            if type(start) is not int or not values.INT64_MIN <= start <= values.INT64_MAX:
                checks.refuse_list(start, of)
                start = values.start(start)
            values.position_range(self.encoding.start + start, self.whole_rows)
            self.start = start + self.row_offset

    def draw(self) -> None:
        """Sets the seed, or draws it; after all checks, so that a call that raises does not advance the generator."""
        if self.is_empty:
            self.drop_threshold = 0
        if 0 < self.drop_threshold < values.DROP_UNIT:
            self.seed = dropout.seed_tensor(self._given_seed, self.device)

    def needs_grad(self, *others: Tensor) -> bool:
        """Whether a gradient of this call is needed."""
        if torch.is_grad_enabled():
            for t in (*others, self.alpha, self.positions):
                if isinstance(t, Tensor) and t.requires_grad:
                    return True
        return False

    def alpha_or_none(self) -> Tensor | None:
        """alpha as an operand: a tensor, or None for 1."""
        if isinstance(self.alpha, Tensor):
            return self.alpha
        return None if self.alpha == 1.0 else dropout.number(self.alpha, torch.float64, self.device)

    def rows(self) -> Tensor:
        """The rows of the encoding in acc, broadcastable to `shape`; differentiable."""
        length, acc, device, positions = self.shape[-2], self.acc, self.device, self.positions
        if positions is not None and self.are_starts:
            positions = positions + torch.arange(length, device=device)
        if _is_compiling():
            if positions is None:
                rows = encoded_rows.graph_table(self.given, length, self.start, acc, device)
            else:
                rows = encoded_rows.graph_encode(self.given, positions, acc)
        elif positions is None:
            rows = encoded_rows.eager_table(self.encoding, length, self.start, acc, device)
        else:
            rows = encoded_rows.eager_encode(positions, self.encoding, acc)
        return arranged(rows, len(self.shape))

    def sum(self, x: Tensor) -> Tensor:
        """scale * x + alpha * PE in acc for x in acc and canonical form, differentiable."""
        rows = self.rows()
        if self.scale != 1.0:
            x = x * self.scale
        if isinstance(self.alpha, Tensor):
            rows = rows * self.alpha.to(self.acc)
        elif self.alpha != 1.0:
            rows = rows * self.alpha
        if self.padding_mask is not None:
            # x + (-0.0) is x for every x; adding +0.0 would turn -0.0 into +0.0. Not torch.where, which would copy the
            # number to the device and wait for it.
            mask = arranged(self.padding_mask.unsqueeze(-1), len(self.shape))
            rows = rows.masked_fill(mask, -0.0)
        return x + rows

    def dropped(self, total: Tensor, rng_offsets: list[int] | None = None) -> Tensor:
        """Dropout of a sum in acc and canonical form, differentiable; under torch.func the mask is computed in torch
        operations."""
        drop_threshold, seed = self.drop_threshold, self.seed
        rng_offsets = self.rng_offsets if rng_offsets is None else rng_offsets
        if not drop_threshold:
            return total
        d = Dropout(total, seed, drop_threshold, 1.0, rng_offsets)
        if _is_compiling() and not is_functional():
            return torch.ops.sinpe_ext.dropout.default(*d)
        if not _is_compiling() and not is_transformed():
            return DROPOUT(*d)
        if _is_compiling():
            ones = torch.ones(total.shape, dtype=total.dtype, device=self.device)
            keep = torch.ops.sinpe_ext.dropout.default(*d._replace(x=ones)) != 0
        else:
            keep = philox.keep(seed, drop_threshold, total.shape, rng_offsets, self.device)
        return (total * philox.kept_scale(drop_threshold)).masked_fill(~keep, 0.0)

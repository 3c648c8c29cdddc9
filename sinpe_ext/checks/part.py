"""`Part`: the offset of a shard in the whole tensor, which determines its positions, channels and dropout mask."""

from __future__ import annotations

from typing import NamedTuple

from ..runtime.parallel import in_context_parallel


class Part(NamedTuple):
    """One shard of a tensor that is sharded along any of its dimensions.

    Attributes:
        shape: shape of the whole.
        first: index in the whole of the first element of the shard, one entry for each dimension.
    """

    shape: tuple[int, ...]
    first: tuple[int, ...]


def refuse_in_context_parallel() -> None:
    """Raises ValueError for implicit positions inside `context_parallel`, which reorders the sequence."""
    if in_context_parallel():
        raise ValueError(
            "positions: expected the positions of these rows inside of context_parallel, which gives every rank other "
            "parts of the sequence, got none; shard torch.arange(length) as one more of its buffers and pass that, or "
            "sinpe_ext.distributed.context_parallel_positions(length, mesh)"
        )

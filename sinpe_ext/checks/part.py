"""`Part`: where a tensor lies in a larger one, whose rows, channels and elements it has to continue."""

from __future__ import annotations

from typing import NamedTuple

from ..runtime.parallel import in_context_parallel


class Part(NamedTuple):
    """One shard of a tensor that has been cut along any of its dimensions.

    Attributes:
        shape: of the whole.   first: place in the whole of the part's first element, an index for each dimension.
    """

    shape: tuple[int, ...]
    first: tuple[int, ...]


def no_context_parallel() -> None:
    """Refuses positions that are counted from the front where the sequence has been reordered."""
    if in_context_parallel():
        raise ValueError(
            "positions: expected the positions of these rows inside of context_parallel, which gives every rank other "
            "parts of the sequence, got none; shard torch.arange(length) as one more of its buffers and pass that, or "
            "sinpe_ext.distributed.context_parallel_positions(length, mesh)"
        )

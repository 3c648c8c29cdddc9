"""`Part`: where a tensor lies in a larger one, whose rows, channels and elements it has to continue."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


class Part(NamedTuple):
    """One shard of a tensor that has been cut along any of its dimensions.

    Attributes:
        shape: of the whole.   first: place in the whole of the part's first element, an index for each dimension.
    """

    shape: tuple[int, ...]
    first: tuple[int, ...]


def is_dtensor(value: Any) -> bool:
    """Whether a value is a DTensor, without the import of torch.distributed where nobody else did."""
    # While another thread imports the module, it is there and has no DTensor yet; nor has anyone made one.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(value, kind)


def in_context_parallel() -> bool:
    """Whether torch.distributed.tensor.experimental.context_parallel is at work: it reorders the sequence of ordinary
    tensors, and has put its own function in the place of scaled_dot_product_attention."""
    torch = sys.modules["torch"]
    attention = torch.nn.functional.scaled_dot_product_attention
    if attention is torch._C._nn.scaled_dot_product_attention:  # the usual answer, in a tenth of a microsecond
        return False
    return (getattr(attention, "__module__", None) or "").startswith("torch.distributed.tensor.experimental")


def no_context_parallel() -> None:
    """Refuses positions that are counted from the front where the sequence has been reordered."""
    if in_context_parallel():
        raise ValueError(
            "positions: expected the positions of these rows inside of context_parallel, which gives every rank other "
            "parts of the sequence, got none; shard torch.arange(length) as one more of its buffers and pass that, or "
            "sinpe_ext.distributed.context_parallel_positions(length, mesh)"
        )

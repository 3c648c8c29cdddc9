"""Positions for the layouts of real batches, to pass as `positions=` or to `encode`."""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import INT64_MAX, dense_tensor, unreadable
from ._checks import length as _length
from .encoding import integer


def packed(cu_seqlens: Tensor, total: int | None = None) -> Tensor:
    """Positions of sequences that lie one behind the other in one dimension: each counts from 0.

    Equivalent to:
        torch.cat([torch.arange(n) for n in cu_seqlens.diff()])

    Args:
        cu_seqlens: (number of sequences + 1,), integers: 0, then where each sequence ends, as in variable-length
            attention. The last one is the number of tokens.
        total: the number of tokens, where it is known: on a device other than the CPU nothing waits for it then. Tokens
            beyond the last end are one more sequence.
    Returns: (total,), int64, on the device of cu_seqlens; of shape (S,) as `add` takes it for x of shape (S, D) or
        (1, S, D).
    Raises: TypeError, ValueError for arguments of the wrong type, shape or value.
    """
    dense_tensor("cu_seqlens", cu_seqlens)
    if cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.dim() != 1 or not cu_seqlens.numel():
        raise TypeError(
            f"cu_seqlens: expected int32 or int64 of shape (sequences + 1,), got {cu_seqlens.dtype} of shape "
            f"{tuple(cu_seqlens.shape)}; pass torch.tensor([0, *lengths]).cumsum(0)"
        )
    ends = cu_seqlens.long()
    if total is None or (ends.device.type == "cpu" and not unreadable(ends)):
        if int(ends[0]) != 0 or bool((ends.diff() < 0).any()):
            raise ValueError(
                f"cu_seqlens: expected 0 and then ends that do not fall, got {ends.tolist()[:8]}; pass "
                "torch.tensor([0, *lengths]).cumsum(0)"
            )
        if total is None:
            total = int(ends[-1])
        elif _length(total, "total") < int(ends[-1]):
            raise ValueError(
                f"total: expected {int(ends[-1])} or more, the last of cu_seqlens, got {total}; leave it unset"
            )
    index = torch.arange(_length(total, "total"), device=ends.device)
    return index - ends[torch.searchsorted(ends, index, right=True) - 1]


def relative(length: int, *, device: torch.device | str | None = None) -> Tensor:
    """The distances length - 1, ..., 1, 0, -1, ..., -(length - 1) of relative attention, in Transformer-XL's order.

    Equivalent to:
        torch.arange(length - 1, -length, -1)

    Args:
        length: of the sequence, 1 or more.
        device: of the result; the default device where None.
    Returns: (2 * length - 1,), int64. `encode` of it is the table of relative attention (ESPnet, Conformer, NeMo), and
        `table(2 * length - 1, encoding, start=1 - length)` the same with its rows in rising order.
    Raises: TypeError, ValueError for a length that is no positive int.
    Source: Dai et al. 2019, "Transformer-XL", section 3.3.
    """
    length = integer("length", length, 1, INT64_MAX // 2, "pass the number of tokens")
    return torch.arange(length - 1, -length, -1, device=device)

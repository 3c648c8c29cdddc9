"""Every operation in every layout and dtype, in the cache and beyond it, against the same in eager PyTorch with a table
that is stored in that layout: to find what no other row measures. One thread, new results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import sinpe_ext as sinpe

from .cases import Calls, P, Place, Row, gradients
from .small import agree

HEAD = 64  # channels of a head
LAYOUTS = "batch_first", "sequence_first", "channels_first", "heads"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
# Large: 32 MiB of bfloat16, which malloc always takes from the system. Less it may keep, or not, for the next call.
SIZES = {"cached": (4, 64, 512), "large": (32, 512, 1024)}
OPERATIONS = "add", "starts", "positions", "mask", "alpha", "dropout", "train", "train_alpha"


def survey(place: Place, layout: str, operation: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> Calls:
    batch, length, dim = shape
    dim = HEAD if layout == "heads" else dim
    x = place.randn(shape, dtype)
    where: dict[str, Any] = {}
    # `arranged`: rows of the encoding, (batch or 1, length, dim), as x has them.
    arranged: Callable[[Tensor], Tensor] = lambda rows: rows  # noqa: E731
    if layout == "sequence_first":
        x, where, arranged = x.transpose(0, 1).contiguous(), {"seq_dim": 0}, lambda rows: rows.transpose(0, 1)
    elif layout == "channels_first":
        x, where = x.transpose(1, 2).contiguous(), {"seq_dim": 2, "channel_dim": 1}
        arranged = lambda rows: rows.transpose(1, 2)  # noqa: E731
    elif layout == "heads":
        x = x.view(batch, length, -1, dim).transpose(1, 2)
        arranged = lambda rows: rows.unsqueeze(1)  # noqa: E731
    pe = sinpe.table(2 * length, dim, dtype=dtype)
    stored, e = arranged(pe[:length].unsqueeze(0)).contiguous(), sinpe.Encoding(dim)
    starts, steps, alpha = torch.arange(batch), torch.arange(length), torch.full((1,), 0.5, dtype=dtype)
    mask = (torch.arange(batch * length) % 8 > 4).view(batch, length)
    masked = arranged(mask.unsqueeze(-1))
    grad = torch.randn_like(x)
    calls: dict[str, tuple[dict[str, Any], Callable[[], Tensor]]] = {
        "add": ({}, lambda: x + stored),
        "starts": ({"start": starts}, lambda: x + arranged(pe[starts.unsqueeze(1) + steps])),
        "positions": ({"positions": steps + 3}, lambda: x + arranged(pe[steps + 3].unsqueeze(0))),
        "mask": ({"padding_mask": mask}, lambda: torch.where(masked, x, x + stored)),
        "alpha": ({"alpha": alpha}, lambda: x + alpha * stored),
        "dropout": ({"dropout": P}, lambda: functional.dropout(x + stored, P)),
    }
    calls |= {"train": calls["add"], "train_alpha": calls["alpha"]}
    options, eager = calls[operation]

    def ours() -> Tensor:
        return sinpe.add(x, e, **options, **where)

    pair: list[Callable[[], Any]] = [ours, eager]
    if operation.startswith("train"):
        wanted = (alpha if operation == "train_alpha" else x).requires_grad_()
        pair = [gradients(call, [wanted], grad) for call in pair]

    def check() -> None:
        if operation.startswith("train"):
            (mine,), (theirs,) = pair[0](), pair[1]()
            size = float(grad.abs().sum()) ** 0.5  # a gradient of alpha is summed in another order
            torch.testing.assert_close(mine.double(), theirs.double(), rtol=0.05, atol=0.05 * size)
        else:
            agree(pair[0](), pair[1](), operation == "dropout")

    return Calls(pair[0], pair[1], check=check, moved=2 * x.nbytes)


SURVEY = tuple(
    Row(
        f"survey_{layout}_{operation}_{name}_{size}",
        f"{operation}, {layout.replace('_', ' ')}, {name}, {size}",
        partial(survey, layout=layout, operation=operation, dtype=dtype, shape=shape),
        "a stored table",
        1.3,
        threads=1,
        grad=operation.startswith("train"),
        slow=True,
    )
    for layout in LAYOUTS
    for operation in OPERATIONS
    for name, dtype in DTYPES.items()
    for size, shape in SIZES.items()
)

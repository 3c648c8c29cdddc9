"""Which call serves the arguments of `add` and of `embed`: one dimension or a grid, a tensor or DTensors."""

from __future__ import annotations

from typing import Any

from . import checks
from .calls.add import AddCall
from .calls.embed import EmbedCall
from .calls.grid import GridCall
from .runtime.parallel import is_dtensor


def add_call(x: Any, encoding: Any, arguments: tuple[Any, ...], grid_shape: Any, extra_tokens: Any) -> Any:
    """The checked call of `add`; `arguments` are those of AddCall from positions on."""
    if is_dtensor(x):
        from ._dtensor_call import ShardedAdd

        return ShardedAdd(x, encoding, arguments, grid_shape, extra_tokens)
    if grid_shape is None and isinstance(extra_tokens, int) and extra_tokens == 0 and not checks.is_grid(encoding):
        return AddCall(x, encoding, *arguments)
    return GridCall(x, encoding, (grid_shape, extra_tokens), *arguments)


def embed_call(ids: Any, weight: Any, encoding: Any, rows: Any, padding: Any, seq_dim: Any) -> Any:
    """The checked call of `embed`; `rows` and `padding` are the arguments of EmbedCall between encoding and seq_dim."""
    if is_dtensor(ids) or is_dtensor(weight):
        from ._dtensor_call import ShardedEmbed

        return ShardedEmbed(ids, weight, encoding, (*rows, seq_dim), padding)
    others: Any = (*rows, *padding, seq_dim)
    return EmbedCall(ids, weight, encoding, *others)

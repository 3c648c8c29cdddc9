"""What `add` and `embed` were given, a record each, handed on whole until the checks have made a call of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import checks


class AddArguments(NamedTuple):
    """Of `add` and `add_`, as the caller gave them: nothing is checked yet. Their meaning: `functional.add`."""

    x: Any
    encoding: Any = None
    positions: Any = None
    start: Any = 0
    scale: Any = 1.0
    alpha: Any = 1.0
    padding_mask: Any = None
    seq_dim: Any = -2
    channel_dim: Any = -1
    dropout: Any = 0.0
    seed: Any = None
    grid_shape: Any = None
    extra_tokens: Any = 0

    def is_sequence(self) -> bool:
        """Whether all of x's rows are those of an encoding of one dimension."""
        extra = self.extra_tokens
        return self.grid_shape is None and isinstance(extra, int) and extra == 0 and not checks.is_grid(self.encoding)


class EmbedArguments(NamedTuple):
    """Of `embed`; see `functional.embed`."""

    ids: Any
    weight: Any
    encoding: Any = None
    positions: Any = None
    start: Any = 0
    scale: Any = 1.0
    alpha: Any = 1.0
    dropout: Any = 0.0
    seed: Any = None
    padding_idx: Any = None
    padding_mask: Any = None
    sparse: Any = False
    encode_padding: Any = True
    seq_dim: Any = -1

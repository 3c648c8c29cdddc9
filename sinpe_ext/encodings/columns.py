"""`Columns`: a range of channels of an encoding, for a tensor whose channels are sharded."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

from .encoding import Encoding


class Columns(Encoding):
    """Channels first .. first + dim - 1 of the encoding `whole`.

    All fields except dim are those of `whole`, so they are not a formula for these channels: the frequencies are taken
    from the plan of `whole`.

    Attributes:
        whole: the encoding of all channels.
        first: index of the first channel in `whole`.
    """

    whole: Encoding
    first: int

    def __new__(cls, *args: Any, **fields: Any) -> Columns:
        return object.__new__(cls)

    def __init__(self, whole: Encoding, first: int, dim: int) -> None:
        put = object.__setattr__
        for field in dataclasses.fields(Encoding):
            put(self, field.name, getattr(whole, field.name))
        put(self, "dim", dim)
        put(self, "whole", whole)
        put(self, "first", first)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Columns) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        """What equality and the hash depend on."""
        return self.whole, self.first, self.dim

    def __reduce__(self) -> tuple[Any, ...]:
        return columns, self._key()

    def __repr__(self) -> str:
        return f"channels {self.first} to {self.first + self.dim - 1} of {self.whole!r}"


@lru_cache(maxsize=256)
def columns(whole: Encoding, first: int, dim: int) -> Encoding:
    """Channels first .. first + dim - 1 of an encoding; the encoding itself if these are all its channels."""
    return whole if dim == whole.dim else Columns(whole, first, dim)

"""`Columns`: some neighbouring channels of an encoding, which is what a shard of the channels has of it."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

from .encoding import Encoding


class Columns(Encoding):
    """Channels first .. first + dim - 1 of `whole`. Every field but dim is that of `whole`, so it is no formula of its
    own: its frequencies are taken from whole's plan, never computed again.

    Attributes:
        whole: the encoding of all channels.   first: the first of these among them.
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
        return self.whole, self.first, self.dim

    def __reduce__(self) -> tuple[Any, ...]:
        return columns, self._key()

    def __repr__(self) -> str:
        return f"channels {self.first} to {self.first + self.dim - 1} of {self.whole!r}"


@lru_cache(maxsize=256)
def columns(whole: Encoding, first: int, dim: int) -> Encoding:
    """Channels first .. first + dim - 1 of an encoding; itself where these are all."""
    return whole if dim == whole.dim else Columns(whole, first, dim)

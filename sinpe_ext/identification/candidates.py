"""Encodings that may be a table: built from a convention and fields, ranked, equal ones put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding, Piece
from .explain import channels_of, wave_of
from .table import Part, Table, Verdict


class Template(NamedTuple):
    """A convention at some dim; `build` overrides fields."""

    name: str
    encoding: Encoding | GridEncoding
    build: Callable[[dict[str, Any]], Encoding | GridEncoding]
    rank: int = 0
    own: tuple[tuple[str, Any], ...] = ()  # arguments of the name itself (axes)


@dataclass
class Candidate:
    """A template with fields, as an encoding.

    sure: its ladder is no chance agreement of round numbers.
    uncertain: where it may be one, how far its base may be off, relative.
    """

    template: Template
    fields: dict[str, Any]
    encoding: Encoding | GridEncoding
    cost: float
    sure: bool = True
    extra: int = 0
    uncertain: float = 0.0

    @property
    def code(self) -> str:
        if self.template.name == "custom":
            return code_of(self.encoding)
        settings = "".join(f", {name}={value!r}" for name, value in {**dict(self.template.own), **self.fields}.items())
        return f'sinpe.convention("{self.template.name}", {self.encoding.dim}{settings})'

    @property
    def borrowed(self) -> bool:
        """A name that stands for a first position, used with another one."""
        return "start" in self.fields and any(axis.start for axis in axes_of(self.template.encoding))


@dataclass
class Identified:
    """A candidate with its verdict, and those that give the same table."""

    candidate: Candidate
    verdict: Verdict
    table: Table
    shape: tuple[int, ...] | None = None
    aliases: list[Candidate] = field(default_factory=list)
    float32_angle: str = ""
    repeated: bool = False  # by the formula of float32_angle, to the last digits
    zero_rows: tuple[int, ...] = ()
    note: str = ""
    offset: int = 0  # rows that were set aside before the first
    zero_columns: tuple[int, ...] = ()
    rows: int = 0  # of the table that was given, where some were set aside
    transposed: bool = False  # the channels came first

    def facts(self) -> dict[str, Any]:
        """The fields of a Match."""
        axes = axes_of(self.candidate.encoding)
        starts = tuple(axis.start for axis in axes)
        return {
            "name": self.candidate.template.name,
            "aliases": tuple(alias.template.name for alias in self.aliases),
            "encoding": self.candidate.encoding,
            "start": starts[0] if len(set(starts)) == 1 else starts,
            "amplitude": axes[0].amplitude,
            "max_error": self.verdict.error,
            "code": self.candidate.code,
            "rows": self.rows or self.table.number,
            "shape": self.shape,
            "extra_tokens": self.candidate.extra + self.offset,
            "zero_rows": self.zero_rows,
            "zero_columns": self.zero_columns,
            "float32_angle": self.float32_angle,
            "alias_codes": tuple(alias.code for alias in self.aliases),
            "note": self.note,
            "transposed": self.transposed,
        }


@dataclass
class Found:
    """What a search came to."""

    fitting: list[Identified] = field(default_factory=list)
    reason: str = ""
    closest: Identified | None = None


def axes_of(encoding: Encoding | GridEncoding) -> tuple[Encoding, ...]:
    return encoding.axes if isinstance(encoding, GridEncoding) else (encoding,)


def pieces_of(encoding: Encoding | GridEncoding) -> tuple[Piece, ...]:
    return encoding.pieces if isinstance(encoding, GridEncoding) else (Piece(0, encoding, 0, 1),)


def code_of(encoding: Encoding | GridEncoding) -> str:
    return (
        repr(encoding)
        .replace("GridEncoding(", "sinpe.Grid(")
        .replace("Encoding(", "sinpe.Encoding(")
        .replace("sinpe.Grid(", "sinpe.GridEncoding(")
    )


def parts_of(encoding: Encoding | GridEncoding) -> list[Part]:
    """Where an encoding's waves stand in a row."""
    parts = []
    for piece in pieces_of(encoding):
        columns = slice(piece.first, piece.first + (piece.encoding.dim - 1) * piece.step + 1, piece.step)
        parts.append(Part(columns, channels_of(piece.encoding), wave_of(piece.encoding), piece.axis))
    return parts


def values_of(candidate: Candidate, places: list[Tensor], rows: Tensor) -> Tensor:
    """An encoding's values in some rows."""
    value = torch.zeros(len(rows), candidate.encoding.dim, dtype=torch.float64)
    for part in parts_of(candidate.encoding):
        value[:, part.columns] = part.wave.at(places[part.axis][rows].double(), part.channels)
    return value

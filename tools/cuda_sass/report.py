"""Tables of the counts and of the estimates for GPUs, and the list of exceeded budgets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import page_parts
import torch

from .cards import CARDS, COPY, Card
from .cases import Case

if TYPE_CHECKING:
    from .measure import Figures  # needs the packages that read machine code

_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "float64"}
BUDGETED = 90  # the architecture of the budgets
SINGLE = 89  # the architecture of GPUs with slow float64
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cuda.md"


@dataclass(frozen=True)
class Row:
    case: Case
    dtype: torch.dtype
    architecture: int
    figures: Figures

    @property
    def card(self) -> Card:
        """The first GPU of this architecture."""
        return next(card for card in CARDS if card.architecture == self.architecture)

    @property
    def title(self) -> str:
        return f"{self.case.name}, {_NAMES[self.dtype]}" if "float64" not in self.case.name else self.case.name


def line(row: Row) -> str:
    """A row as one line, for progress output."""
    v = row.figures.values
    return (
        f"sm_{row.architecture:<3d} {row.title:58s} {v['instructions']:8.1f} per {row.figures.call.unit} "
        f"({' + '.join(f'{n:.0f}' for n in row.figures.phases)}): "
        f"fp64 {v['fp64']:.1f}, ALU {v['alu']:.1f}, memory {v['memory']:.1f}; {row.figures.work.registers} registers, "
        f"{v['in flight']:.0f} B in flight, loads {v['ahead']:.0f} ahead, {v['sectors']:.2f} of sectors"
    )


def _waves(row: Row) -> float:
    return row.figures.work.waves(row.card)


def _times(row: Row, other: Row) -> float:
    """The largest ratio of the times of two rows, over the GPUs of their architecture."""
    cards = [card for card in CARDS if card.architecture == row.architecture]
    return max(row.figures.predicted(card).seconds / other.figures.predicted(card).seconds for card in cards)


@dataclass(frozen=True)
class Missed:
    """An exceeded budget."""

    row: Row
    name: str
    value: float
    limit: float

    def __str__(self) -> str:
        sign = ">=" if _is_least(self.name) else "<="
        return f"{self.name} {self.value:.1f}, budget {sign} {self.limit:g}"


def _is_least(name: str) -> bool:
    return name in ("ahead", "waves")


def missed(row: Row, rows: list[Row]) -> list[Missed]:
    """The exceeded budgets of a row: those for sm_90, and the limit of float64 instructions in single arithmetic."""
    if row.architecture == SINGLE and row.case.fp64 is not None and row.dtype != torch.float64:
        value = row.figures.values["fp64"]
        return [Missed(row, "fp64", value, row.case.fp64)] if value > row.case.fp64 else []
    if row.architecture != BUDGETED:
        return []
    values = {**row.figures.values, "waves": _waves(row)}
    if row.case.beside:
        for other in rows:
            if (other.case.name, other.dtype, other.architecture) == (row.case.beside, row.dtype, BUDGETED):
                values["times " + row.case.beside] = _times(row, other)

    def holds(name: str, limits: tuple[float, float]) -> bool:
        limit = limits[row.dtype != torch.float32]
        return values[name] >= limit if _is_least(name) else values[name] <= limit

    return [
        Missed(row, name, values[name], limits[row.dtype != torch.float32])
        for name, limits in row.case.budgets.items()
        if name in values and not holds(name, limits)  # missing for a case that was not selected
    ]


def _fraction(row: Row, card: Card) -> str:
    call = row.figures.call
    predicted = row.figures.predicted(card)
    if call.floor == "kernel":
        return f"{1e6 * predicted.seconds:.1f} us"
    fraction = call.moved / (card.bandwidth * 1e12 * COPY) / predicted.seconds
    cell = f"{100 * min(1.0, fraction):.0f} %, {predicted.by.removeprefix('pipe ')}"
    return cell if fraction > 0.1 else f"{cell}: {1e3 * predicted.seconds:.1f} ms"


def all_missed(rows: list[Row]) -> list[Missed]:
    return [one for row in rows for one in missed(row, rows)]


def tables(rows: list[Row]) -> list[str]:
    """Markdown tables of the counts for sm_90 and of the estimates for GPUs."""
    text: list[str] = []
    counted = [row for row in rows if row.architecture == BUDGETED]
    if counted:
        counts = ("instructions", "FP64", "ALU", "FMA", "memory", "other")
        head = ("sm_90", "per", *counts, "registers", "in flight", "waves", "budget")
        text += [_table_line(head), "|---|---|" + "---:|" * (len(head) - 2)]
        for row in counted:
            v, work = row.figures.values, row.figures.work
            numbers = [v[name] for name in ("instructions", "fp64", "alu", "fma", "memory", "other")]
            cells = [row.title, row.figures.call.unit, *(f"{n:.1f}" if n < 100 else f"{n:.0f}" for n in numbers)]
            cells += [str(work.registers), f"{v['in flight']:.0f} B", f"{_waves(row):.1f}"]
            over = [str(one) for one in missed(row, rows)]
            text.append(_table_line([*cells, "; ".join(over) or ("met" if row.case.budgets else "")]))
        text.append("")
    cards = [card for card in CARDS if any(row.architecture == card.architecture for row in rows)]
    text += [_table_line(("estimate, and what bounds it", *(card.name for card in cards)))]
    text += ["|---" * (len(cards) + 1) + "|"]
    for title in dict.fromkeys(row.title for row in rows):
        by = {row.architecture: row for row in rows if row.title == title}
        cells = [_fraction(by[card.architecture], card) if card.architecture in by else "" for card in cards]
        text.append(_table_line([title, *cells]))
    return [*text, ""]


def by_architecture(rows: list[Row]) -> list[str]:
    """A Markdown table of the instructions per unit, by architecture."""
    names = [f"sm_{a}" for a in sorted({row.architecture for row in rows})]
    text = [_table_line(("instructions per unit", *names)), "|---|" + "---:|" * len(names)]
    for title in dict.fromkeys(row.title for row in rows):
        by_name = {f"sm_{row.architecture}": row for row in rows if row.title == title}
        cells = [f"{by_name[n].figures.values['instructions']:.0f}" if n in by_name else "" for n in names]
        text.append(_table_line([title, *cells]))
    return [*text, ""]


def exact_table(rows: list[tuple[str, str, int, int, float]]) -> list[str]:
    """A Markdown table of how often exact arithmetic is needed, counted on whole cases: the executed blocks are too few
    to show it."""
    if not rows:
        return []
    text = [
        "| recomputed exactly | arithmetic | values | of | adds |",
        "|---|---|---:|---:|---:|",
    ]
    for name, arithmetic, units, careful, each in rows:
        adds = f"{careful * each * 32 / units:.2f} instructions a pair"
        text.append(f"| {name} | {arithmetic} | {careful:,} values | {units:,} | {adds} |")
    return [*text, ""]


def _table_line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def write(text: str, page: Path = PAGE) -> None:
    """Writes the tables between the marks in docs/cuda.md."""
    page.write_text(page_parts.replace(page.read_text(), {"make check-cuda ARGS=--write": f"\n{text}"}))

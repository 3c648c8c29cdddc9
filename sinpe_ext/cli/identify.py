"""`python -m sinpe_ext identify FILE`: finds positional-encoding tables in a checkpoint and names their convention."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint_files import Entry, IdentifyError, SkipError, entries, first_line, printable

if TYPE_CHECKING:
    from ..identification import Match, Matches

__all__ = ["IdentifyError", "main", "options"]

NEAREST_KEYS, COMPARED_KEYS = 8, 10000
NAMED = 5  # names listed, of skipped tensors and of tensors that have the shape of a table but are not one
REASONS = 5
MOST_AXES = 5
# Largest number of elements that is examined without --key: 65536 rows of 1024 channels take 3 s on one core (20 s if
# they are smooth and match no convention) and 2 GiB. A larger table whose first rows are not sinusoids is rejected in
# milliseconds; otherwise --key is needed.
LARGEST = 2**26
LONGEST_AXIS = 2**23  # the time grows with the number of rows, even for few channels
SECONDS = 60.0  # for all tensors of a file together
FLOATING = ("float64", "float32", "float16", "bfloat16")


def options(command: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    command.add_argument(
        "file", metavar="FILE", help="a checkpoint or an array: .pt, .pth, .bin, .ckpt, .safetensors, .npy or .npz"
    )
    command.add_argument(
        "--shape", metavar="N", type=int, nargs="+", help="lengths of a flattened grid: H W, or T H W (default: found)"
    )
    command.add_argument(
        "--key",
        metavar="NAME",
        help="only the tensor of this name, or those whose names end with it; without limits of size and time",
    )
    command.add_argument("--json", action="store_true", help="print JSON")


@dataclasses.dataclass
class _Report:
    """The results for the tensors of a file. Each tensor is in one of `results`, `others` and `skipped`."""

    results: list[tuple[Entry, Matches]] = dataclasses.field(default_factory=list)
    others: dict[str, int] = dataclasses.field(default_factory=dict)  # reason -> number of tensors that are no table
    skipped: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # name and reason
    missed: list[tuple[bool, str]] = dataclasses.field(default_factory=list)  # `others` shaped like a table


def main(arguments: argparse.Namespace) -> int:
    """Runs the subcommand. Returns 0 if a table was found, otherwise 1. Raises IdentifyError for a bad file or key."""
    from ..identification import lengths_of

    try:
        lengths_of(arguments.shape)
    except ValueError as error:
        raise IdentifyError(f"--{error}") from None
    path = Path(arguments.file)
    with entries(path) as tensors:
        chosen = list(tensors) if arguments.key is None else _chosen(list(tensors), arguments.key)
        report = _look(path, chosen, arguments.shape, everything=arguments.key is None)
    if arguments.json:
        _say(json.dumps(_as_json(path, report), indent=2).split("\n"))
    else:
        _say(_lines(path, report))
    return 0 if any(matches for _, matches in report.results) else 1


def _look(path: Path, chosen: list[Entry], shape: list[int] | None, *, everything: bool) -> _Report:
    """Examines each tensor. An error in one does not affect the others; with a key it raises IdentifyError."""
    report = _Report()
    known: dict[Any, Matches] = {}
    ends = time.monotonic() + SECONDS
    for entry in chosen:
        name = entry.name or path.name
        try:
            if entry.skipped:
                raise SkipError(entry.skipped)
            if everything and entry.dtype.startswith("float") and entry.dtype not in FLOATING:
                raise SkipError(f"of type {entry.dtype}")
            if everything and not _may_be_table(entry):
                reason = "of another shape or type"
                report.others[reason] = report.others.get(reason, 0) + 1
                continue
            if everything and time.monotonic() > ends:
                raise SkipError(f"not reached in {SECONDS:g} s (--key NAME looks at one)")
            matches = known.get(entry.same) if entry.same else None
            if matches is None:
                matches = _identified(entry, shape, everything=everything)
        except IdentifyError:
            raise
        except Exception as error:  # reading a damaged tensor may raise anything
            why = first_line(error) if isinstance(error, SkipError) else f"{type(error).__name__}: {first_line(error)}"
            if not everything:
                raise IdentifyError(f"{name}: expected a tensor to look at, got one that is {why}") from None
            report.skipped.append((entry.name, why))
            continue
        if entry.same:
            known[entry.same] = matches
        if matches or matches.closest or not everything:
            report.results.append((entry, matches))
        else:
            report.others[matches.reason] = report.others.get(matches.reason, 0) + 1
            report.missed.append(("not sinusoidal" in matches.reason, name))
    return report


def _identified(entry: Entry, shape: list[int] | None, *, everything: bool) -> Matches:
    """The matches of one tensor. Raises SkipError for one that is too large."""
    from ..identification import Matches, identify
    from ..identification.stored_table import LARGEST as LARGEST_ASKED
    from ..identification.stored_table import NO_SINUSOIDS, begins_with_sinusoids

    tensor = entry.load()
    elements, longest = (LARGEST, LONGEST_AXIS) if everything else (LARGEST_ASKED, LARGEST_ASKED)
    if _may_be_table(entry) and (math.prod(entry.shape) > elements or max(entry.shape) > longest):
        if not begins_with_sinusoids(tensor):
            return Matches(reason=NO_SINUSOIDS)
        if everything:
            raise SkipError(f"larger than {LARGEST} elements or {LONGEST_AXIS} rows (--key NAME looks at one)")
        raise SkipError(f"larger than {elements} elements")
    try:
        return identify(tensor, shape=shape)
    except (TypeError, ValueError) as error:
        if not everything:
            raise IdentifyError(str(error)) from None
        return identify(tensor)


def _say(lines: list[str]) -> None:
    """Prints lines, with control characters as backslash sequences."""
    for line in lines:
        print(printable(line))
    sys.stdout.flush()  # here, where the caller handles BrokenPipeError


def _lines(path: Path, report: _Report) -> list[str]:
    """The report as lines of text."""
    lines = []
    for entry, matches in report.results:
        lines.append(f"{entry.name or path.name} {tuple(entry.shape)} {entry.dtype}")
        for line in str(matches).split("\n"):
            indent = "    " + " " * (len(line) - len(line.lstrip()))
            lines += textwrap.wrap(line.strip(), 120, initial_indent=indent, subsequent_indent=indent + "  ",
                                   break_long_words=False, break_on_hyphens=False)  # fmt: skip
    others = report.others
    number = sum(others.values())
    if number:
        most = max(others, key=lambda reason: others[reason])
        rest = f"{others[most]} of them: {most}" if others[most] < number else most
        which = "other tensor" if report.results else "tensor"
        names = _named(_near(report)) if number > 1 or report.results else ""  # the reason for one alone is shown
        lines.append(f"{number} {which}{'s are' if number > 1 else ' is'} no table ({rest}){names}")
    if report.skipped:
        lines.append(_skipped_line(report.skipped, path))
    return lines or [f"{path.name}: no tensors"]


def _skipped_line(skipped: list[tuple[str, str]], path: Path) -> str:
    """A line on the skipped tensors: how many, why, and the names of some."""
    reasons = Counter(reason for _, reason in skipped)
    shown = [f"{reason} ({number})" for reason, number in reasons.most_common(REASONS)]
    if len(reasons) > REASONS:
        shown.append(f"for {len(reasons) - REASONS} other reasons")
    names = [name or path.name for name, _ in skipped[:NAMED]]
    more = f" and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
    which = "tensor was" if len(skipped) == 1 else "tensors were"
    return f"{len(skipped)} {which} skipped: {', '.join(shown)}: {', '.join(names)}{more}"


def _near(report: _Report) -> list[str]:
    """Names of tensors that have the shape of a table and are none, the most likely first."""
    return [name for _, name in sorted(report.missed, key=lambda item: item[0])]


def _named(near: list[str]) -> str:
    """The part of a line that names tensors with the shape of a table, and the option that explains each."""
    if not near:
        return ""
    more = f" and {len(near) - NAMED} more" if len(near) > NAMED else ""
    return f"; of the shape of one: {', '.join(near[:NAMED])}{more} (--key NAME says why each is none)"


def _as_json(path: Path, report: _Report) -> dict[str, Any]:
    """The report as a dict for --json."""
    return {
        "file": str(path),
        "tensors": [
            {
                "key": entry.name,
                "shape": list(entry.shape),
                "dtype": entry.dtype,
                "matches": [_match_json(match) for match in matches],
                "reason": matches.reason,
                "closest": _match_json(matches.closest) if matches.closest else None,
            }
            for entry, matches in report.results
        ],
        "others": report.others,
        "others_shaped_like_tables": _near(report),
        "skipped": [{"key": name, "reason": reason} for name, reason in report.skipped],
    }


def _match_json(match: Match) -> dict[str, Any]:
    """The fields of a match for --json, without the encoding, which is not JSON."""
    return {field.name: getattr(match, field.name) for field in dataclasses.fields(match) if field.name != "encoding"}


def _chosen(tensors: list[Entry], key: str) -> list[Entry]:
    """The tensors with the name --key, otherwise those whose names end with it. Raises IdentifyError without any."""
    exact = [entry for entry in tensors if key in (entry.name, printable(entry.name))]
    chosen = exact or [entry for entry in tensors if entry.name.endswith(key) or printable(entry.name).endswith(key)]
    if not chosen:
        import difflib

        names = [entry.name for entry in tensors[:COMPARED_KEYS]]
        near = difflib.get_close_matches(key, names, n=NEAREST_KEYS, cutoff=0.3) or names[:NEAREST_KEYS]
        raise IdentifyError(
            f"--key: expected the name of a tensor in the file, got {key!r}; pass one of {', '.join(near)}"
        )
    return chosen


def _may_be_table(entry: Entry) -> bool:
    """Whether a tensor has the dtype and shape of a table: floating point, and at least two axes longer than 1."""
    shape = entry.shape
    return entry.dtype in FLOATING and 2 <= len(shape) <= MOST_AXES and sum(length > 1 for length in shape) >= 2

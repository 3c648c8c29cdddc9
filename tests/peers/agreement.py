"""Compares a library's table with ours, and records the result.

A library that computes angles in float32 has an error that grows with the position. Two comparisons: our exact encoding
against the library's table, within that error, and the float32-compatible mode against the library's bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

import sinpe_ext as sinpe

LENGTH = 4097  # positions 0 to 4096

# Error of an angle p * w computed in float32, w <= 1. The exponent x = -log(w) has up to three roundings, 3 |x| 2^-24
# in all, which is a relative error of w; exp or pow adds 2^-23, the product with p 2^-24. The sum, p * w * (3 |x| + 3)
# * 2^-24, is largest at w = 1: 3 p 2^-24. A division adds one more rounding: 4.
ANGLE = 2.0**-22
# sin or cos of an angle, rounded to float32, by a library function within one ULP: values up to 1.
VALUE = 2.0**-23


@dataclass
class Agreement:
    """One line of the report, over all tables compared under its name."""

    entries: int = 0
    exact: float = 0.0  # largest |library - exact|
    equal: int = 0  # entries of the mode that equal the library's bits
    difference: float = 0.0  # largest |library - mode|
    ulp: float = 0.0  # the same in ULP of the largest float32 angle of its row


RECORD: dict[tuple[str, str, str, str], Agreement] = {}  # by library, function, convention, mode


def compare(
    library: str,
    what: str,
    theirs: Tensor,
    encoding: Any,
    at: Any,
    *,
    convention: str,
    positions: Tensor | float,
    mode: str = "exact",
    same_bits: bool = True,
    factor: float = 1.0,
    rounded: Tensor | None = None,
    **arguments: Any,
) -> None:
    """Checks both comparisons and records them.

    theirs: the library's float32 values.
    encoding, at, arguments: ours, at positions, or for a length or shape the table.
    convention: its name in the report.
    positions: broadcasts to the shape of theirs; the largest angle, with which the library's error grows; 0 for a
    library that computes in float64.
    mode, rounded: the angle whose bits are those of the library, and the positions rounded as it does.
    same_bits: False if the library's order of operations is not imitated; then the mode only has to be as close as the
    exact encoding.
    factor: scales the library's values, and so their rounding error.
    """
    call = sinpe.encode if isinstance(at, Tensor) else sinpe.table
    exact = call(at, encoding, dtype=torch.float64, **arguments)
    ours = exact.float()
    if mode != "exact":
        change = encoding.with_axes if isinstance(encoding, sinpe.GridEncoding) else encoding.replace
        ours = call(at if rounded is None else rounded, change(angle=mode), **arguments)
    theirs = theirs.detach().contiguous()
    assert theirs.shape == exact.shape and theirs.dtype == torch.float32
    angles = torch.as_tensor(positions, dtype=torch.float64).abs().expand(exact.shape)
    bound = (angles * ANGLE + VALUE) * factor
    error = (theirs.double() - exact).abs()
    equal = ours.view(torch.int32) == theirs.view(torch.int32)
    difference = (ours.double() - theirs.double()).abs()
    ulp = torch.ldexp(torch.ones_like(angles), torch.frexp(angles.clamp_min(2.0**-100)).exponent - 24) * factor
    library = f"{library} {version(library)}"

    line = RECORD.setdefault((library, what, convention, mode), Agreement())
    line.entries += theirs.numel()
    line.exact = max(line.exact, float(error.max()))
    line.equal += int(equal.sum())
    line.difference = max(line.difference, float(difference.max()))
    line.ulp = max(line.ulp, float((difference / ulp).masked_fill(difference == 0, 0).max()))

    worst = float((error / bound).max())
    assert worst <= 1, f"{what}: {worst:.3g} times the error of float32 angles away from {convention}"
    if same_bits:
        wrong = ~equal & (ours != theirs)  # 0.0 and -0.0 are equal
        assert not wrong.any(), f"{what}: {int(wrong.sum())} of {wrong.numel()} entries of {mode} have other bits"
    assert (difference <= 2 * bound).all(), f"{what}: {mode} differs by up to {float(difference.max()):.3g}"


def markdown() -> str:
    """The record as a Markdown table; functions of a library with equal results share a row."""
    heads = ["library", "function", "convention", "entries", "exact, largest difference"]
    heads += ["mode", "equal bits", "largest difference", "in ULP of the angle"]
    alike: dict[tuple[str, ...], list[tuple[str, int]]] = {}  # functions and entries of each result
    for (library, what, convention, mode), line in RECORD.items():
        share = "all" if line.equal == line.entries else f"{100 * line.equal / line.entries:.2f} %"
        result = f"{line.exact:.2g}", mode, share, f"{line.difference:.2g}", f"{line.ulp:.2g}"
        alike.setdefault((library, convention, *result), []).append((what, line.entries))
    rows = [heads, ["---"] * len(heads)]
    for (library, convention, *rest), found in alike.items():
        what, entries = ", ".join(name for name, _ in found), sum(count for _, count in found)
        rows.append([library, what, convention, str(entries), *rest])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

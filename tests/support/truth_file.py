"""The input of tests/cpp/truth.h: an encoding's plan, and its exact frequencies, computed with mpmath only.

python tests/support/truth_file.py writes tests/cpp/paper512.truth, for C++ tests without Python.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import mpmath
import ulp

from sinpe_ext import Encoding
from sinpe_ext.encodings.plan import plan

PAPER512 = Path(__file__).resolve().parent.parent / "cpp" / "paper512.truth"
BITS = 256  # of a turn, per frequency
JUDGE = 2.0**-100  # relative, largest error of the reference values of tests/cpp/truth.h against mpmath
PER_LINE = 24


def text(encoding: Encoding) -> str:
    """Sections "name count" with as many hexadecimal 64-bit words."""
    assert encoding.amplitude == 1 and encoding.angle == "exact" and encoding.start == 0
    frequencies: list[int] = []
    channels: list[int] = []  # frequency and kind (0 sin, 1 cos) of each
    with mpmath.workprec(ulp.PRECISION + 64):
        formula = list(ulp._formula(encoding))
    for kind, frequency in formula:
        bits = _fraction(frequency, encoding.unit == "radian")
        # A frequency that the same kind already has is added again.
        same = [k for k, known in enumerate(frequencies) if known == bits and (k, kind) not in _pairs(channels)]
        if not same:
            frequencies.append(bits)
        channels += [same[0] if same else len(frequencies) - 1, kind]
    words = [bits >> shift & 2**64 - 1 for bits in frequencies for shift in (192, 128, 64, 0)]
    lines = [f"# Written by tests/support/truth_file.py: {encoding!r}"]
    for name, section in (
        ("plan", [word & 2**64 - 1 for word in plan(encoding).packed]),
        ("frequencies", words),
        ("channels", channels),
        ("circle", list(_circle())),
    ):
        lines.append(f"{name} {len(section)}")
        lines += [" ".join(f"{w:x}" for w in section[k : k + PER_LINE]) for k in range(0, len(section), PER_LINE)]
    return "\n".join(lines) + "\n"


def _pairs(channels: list[int]) -> set[tuple[int, int]]:
    return set(zip(channels[0::2], channels[1::2], strict=True))


def _fraction(frequency: mpmath.mpf, radians: bool) -> int:
    """In turns, times 2**256; whole turns are dropped, as positions are integers."""
    with mpmath.workprec(ulp.PRECISION + 64):
        turns = frequency / (2 * mpmath.pi) if radians else frequency / 2
        return int(mpmath.nint(mpmath.ldexp(turns, BITS))) % 2**BITS


def _circle() -> Iterator[int]:
    """sin and cos of 0, 1, .. 32 256ths of a turn, each as two float64."""
    with mpmath.workprec(ulp.PRECISION):
        for k in range(33):
            half_turns = mpmath.mpf(k) / 128
            for value in (mpmath.sinpi(half_turns), mpmath.cospi(half_turns)):
                high = float(value)
                yield from _bits((high, float(value - high)))


def _bits(values: Iterable[float]) -> tuple[int, ...]:
    packed = [struct.pack("<d", value) for value in values]
    return tuple(int.from_bytes(one, "little") for one in packed)


def judge_error(program: Path, truth: Path, encoding: Encoding, entries: list[tuple[int, int]]) -> float:
    """The largest relative error of tests/cpp/judge.cpp against mpmath, at entries (position, channel)."""
    lines = "".join(f"{position} {channel}\n" for position, channel in entries)
    done = subprocess.run(
        [str(program), str(truth)], input=lines, stdout=subprocess.PIPE, text=True, check=True, timeout=600
    )
    said = [line.split() for line in done.stdout.splitlines()]
    assert [(int(p), int(c)) for p, c, _, _ in said] == entries
    formula, worst = ulp.truth(encoding), 0.0
    for position, channel, high, low in said:
        want = formula.entry(int(position), int(channel))
        with mpmath.workprec(ulp.PRECISION):
            got = mpmath.mpf(float.fromhex(high)) + float.fromhex(low)
            error = abs(got - want) / abs(want) if want else (mpmath.inf if got else mpmath.mpf(0))
        worst = max(worst, float(error))
    return worst


if __name__ == "__main__":
    PAPER512.write_text(text(Encoding(512)), encoding="ascii")

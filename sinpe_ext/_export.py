"""A plan as C source, so that a C or C++ program needs no Python at run time."""

from __future__ import annotations

import re

from . import _frequency
from ._plan import plan
from .encoding import Encoding, Number

_INT64_MIN = -(2**63)
# Identifiers that a header cannot define: keywords of C and C++, and names of the headers that it includes.
_TAKEN = frozenset(
    (
        "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const "
        "consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do "
        "double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable "
        "namespace new noexcept not not_eq nullptr operator or or_eq private protected public register "
        "reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch "
        "template this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void "
        "volatile wchar_t while xor xor_eq NULL int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t "
        "main "
    ).split()
)

_PER_LINE = 4


def export_header(encoding: Encoding, name: str) -> str:
    """A self-contained C99 / C++17 header with the plan of an encoding, for `sinpe_table` and its siblings.

    Args:
        encoding: what to export; angle must be "exact".
        name: C identifier of the array; <name>_words and <name>_dim come with it.

    Returns: the text of the header.

    Raises:
        TypeError: not an Encoding, or a name that is no string.
        ValueError: a name that C cannot use, or an angle that the C interface does not compute.
    """
    if not isinstance(encoding, Encoding):
        raise TypeError(f"encoding: expected Encoding, got {type(encoding).__name__}; pass convention(name, dim)")
    if not isinstance(name, str):
        raise TypeError(f"name: expected str, got {type(name).__name__}; pass a C identifier such as paper6")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or "__" in name:
        raise ValueError(f'name: expected a C identifier, got "{name}"; pass letters, digits and single underscores')
    if name in _TAKEN:
        raise ValueError(f'name: expected a C identifier of your own, got "{name}", which C or C++ uses; pass another')
    if encoding.angle != "exact":
        raise ValueError(
            f'encoding: expected angle="exact", got "{encoding.angle}"; the C interface computes exact angles only'
        )
    words = plan(encoding).words
    rows = [
        "    " + ", ".join(_literal(word) for word in words[index : index + _PER_LINE]) + ","
        for index in range(0, len(words), _PER_LINE)
    ]
    guard = f"SINPE_PLAN_{name}_H"  # as written: names may differ in case only
    return "\n".join(
        [
            "/* Written by `python -m sinpe_ext export`; change the encoding and export again.",
            " *",
            f" * {encoding!r}",
            *(f" * {line}" for line in _formula(encoding)),
            " *",
            f" * Use: sinpe_table({name}, {name}_words, ...) and the other functions of sinpe/sinpe.h.",
            " */",
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            "#include <stdint.h>",
            "",
            f"enum {{ {name}_words = {len(words)}, {name}_dim = {encoding.dim} }};",
            "",
            f"static const int64_t {name}[] = {{",
            *rows,
            "};",
            "",
            f"#endif /* {guard} */",
            "",
        ]
    )


def _literal(word: int) -> str:
    # -9223372036854775808 is minus applied to a number that no signed type holds.
    return "(-9223372036854775807 - 1)" if word == _INT64_MIN else str(word)


def _formula(encoding: Encoding) -> list[str]:
    """The formula with this encoding's numbers, as the lines of a comment."""
    angle = {"radian": "position * w", "half_turn": "pi * position * w", "turn": "2 * pi * position * w"}[encoding.unit]
    scale, shift = _number(encoding.position_scale), _number(encoding.shift)
    lines = [f"value = {_number(encoding.amplitude)} * sin or cos of ({angle}), layout {encoding.layout}"]
    if encoding.frequencies is not None:
        return [*lines, f"w = {scale} * the frequencies given"]
    half = _number(_frequency.shape(encoding).exponent_dim / 2)
    exponent = f"-{_number(encoding.exponent_scale)} * i / ({half} - {shift})"
    lines.append(f"w(i) = {scale} * {_number(encoding.base)} ^ ({exponent}), pairs i = 0, 1, 2, ...")
    if encoding.cos_frequency == "own":
        lines.append("cos of pair i: w(i + 1/2)")
    return lines


def _number(value: Number) -> str:
    return repr(float(value)).removesuffix(".0")

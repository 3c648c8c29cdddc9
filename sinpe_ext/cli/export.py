"""A plan as C source, so that a C or C++ program needs no Python at run time."""

from __future__ import annotations

import re

from ..encodings import frequency
from ..encodings.encoding import Encoding, Number
from ..encodings.plan import plan

_INT64_MIN = -(2**63)
# C99 tells macros apart by their first 63 characters, and the include guard puts SINPE_PLAN_ before a name.
_LONGEST = 52
# What cannot be defined where no header but stdint.h is included, and why: the first pattern that a whole name matches.
_TAKEN = {
    "a keyword of C or C++": (
        "alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept auto bitand bitor bool break case "
        "catch char char16_t char32_t char8_t class co_await co_return co_yield compl concept const const_cast "
        "consteval constexpr constinit continue contract_assert decltype default delete do double dynamic_cast else "
        "enum explicit export extern false float for fortran friend goto if inline int long mutable namespace new "
        "noexcept not not_eq nullptr operator or or_eq private protected public reflexpr register reinterpret_cast "
        "requires restrict return short signed sizeof static static_assert static_cast struct switch synchronized "
        "template this thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned using "
        "virtual void volatile wchar_t while xor xor_eq"
    ),
    "a macro of some compiler": (
        "AVR BFIN EMSCRIPTEN LANGUAGE_C MSDOS NeXT PPC R3000 R4000 SPIR SPIR32 SPIR64 SVR3 SVR4 WIN32 WIN64 WINNT "
        "arm avr bfin bsdi cdecl far hp9000s300 hp9000s700 hp9000s800 hppa host_mips hpux i186 i286 i386 i486 "
        "i586 i686 interface linux m68k m88k mips msdos near nios2 ns32000 pascal powerpc pyr semi sequent "
        "sgi sparc sun tahoe tm32 u370 ultrix unix vax vxworks mc680[0-9]0 m680[0-9]0"
    ),
    "a macro of C's own headers": (
        "EOF I INFINITY NAN NDEBUG NULL complex errno imaginary noreturn stderr stdin stdout "
        "(INT|UINT|PTRDIFF|SIG_ATOMIC|SIZE|WCHAR|WINT)[A-Z0-9_]*_(MAX|MIN|WIDTH|C)"
    ),
    "the ending that POSIX and stdint.h keep for types": ".*_t",
    "a name that C++ keeps to itself": "main posix std[0-9]*",
    "a name of CUDA C++": (
        "blockDim blockIdx dim3 gridDim threadIdx warpSize (u?(char|short|int|long|longlong)|float|double)[1-4]"
    ),
    "a name of this library's C interface": "(sinpe|SINPE)(_.*)?",
    "the ending of what belongs to another exported header": ".*_(words|dim)",
}

_PER_LINE = 4


def export_header(encoding: Encoding, name: str) -> str:
    """A self-contained C99 / C++17 header with the plan of an encoding, for `sinpe_table` and its siblings.

    Args:
        encoding: what to export; angle must be "exact".
        name: C identifier of the array, of at most 52 characters; <name>_words and <name>_dim come with it.

    Returns: the text of the header.

    Raises:
        TypeError: not an Encoding, or a name that is no string.
        ValueError: a name that C cannot use, or an angle that the C interface does not compute.
    """
    if not isinstance(encoding, Encoding):
        raise TypeError(f"encoding: expected Encoding, got {type(encoding).__name__}; pass convention(name, dim)")
    if not isinstance(name, str):
        raise TypeError(f"name: expected str, got {type(name).__name__}; pass a C identifier such as paper6")
    refused = _why_not(name)
    if refused:
        shown = repr(name) if len(name) <= _LONGEST else f"{name[:_LONGEST]!r}..."
        raise ValueError(
            f"name: expected a C identifier of your own, got {shown}, {refused}; pass another, such as my_encoding"
        )
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


def _why_not(name: str) -> str:
    """Why a header cannot define this name in every C and C++ program; empty if it can."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or "__" in name:
        return "which is not made of a letter, then letters, digits and single underscores"
    if len(name) > _LONGEST:
        return f"which has {len(name)} characters and not at most {_LONGEST}"
    for reason, patterns in _TAKEN.items():
        if re.fullmatch(patterns.replace(" ", "|"), name):
            return reason
    return ""


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
    half = _number(frequency.shape(encoding).exponent_dim / 2)
    exponent = f"-{_number(encoding.exponent_scale)} * i / ({half} - {shift})"
    lines.append(f"w(i) = {scale} * {_number(encoding.base)} ^ ({exponent}), pairs i = 0, 1, 2, ...")
    if encoding.cos_frequency == "own":
        lines.append("cos of pair i: w(i + 1/2)")
    return lines


def _number(value: Number) -> str:
    return repr(float(value)).removesuffix(".0")

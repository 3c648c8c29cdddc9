"""`python -m sinpe_ext export`: the plan of an encoding as a C header, for C and C++ programs without Python."""

from __future__ import annotations

import re

from ..encodings import frequency
from ..encodings.encoding import Encoding, Number
from ..encodings.plan import plan

_INT64_MIN = -(2**63)
# In C99 the first 63 characters of a macro are significant, and the include guard has the prefix SINPE_PLAN_.
_LONGEST = 52
# Reason -> patterns of names that a header which includes only stdint.h cannot define in every C and C++ program.
_RESERVED = {
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
    """Returns a self-contained C99 / C++17 header with the plan of an encoding, for the functions of sinpe/sinpe.h.

    Args:
        encoding: the encoding to export; its angle must be "exact".
        name: C identifier of the array, at most 52 characters; the header also defines <name>_words and <name>_dim.

    Returns:
        the text of the header.

    Raises:
        TypeError: not an Encoding, or a name that is not a string.
        ValueError: a name that cannot be used in C, or an angle that the C interface does not support.
    """
    if not isinstance(encoding, Encoding):
        raise TypeError(f"encoding: expected Encoding, got {type(encoding).__name__}; pass convention(name, dim)")
    if not isinstance(name, str):
        raise TypeError(f"name: expected str, got {type(name).__name__}; pass a C identifier such as paper6")
    refused = _reserved_reason(name)
    if refused:
        shown = repr(name) if len(name) <= _LONGEST else f"{name[:_LONGEST]!r}..."
        raise ValueError(
            f"name: expected a C identifier of your own, got {shown}, {refused}; pass another, such as my_encoding"
        )
    if encoding.angle != "exact":
        raise ValueError(
            f'encoding: expected angle="exact", got "{encoding.angle}"; the C interface computes exact angles only'
        )
    words = plan(encoding).packed
    rows = [
        "    " + ", ".join(_literal(word) for word in words[index : index + _PER_LINE]) + ","
        for index in range(0, len(words), _PER_LINE)
    ]
    guard = f"SINPE_PLAN_{name}_H"  # not in upper case, because names may differ in case only
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


def _reserved_reason(name: str) -> str:
    """Why a header cannot define this name in every C and C++ program; "" if it can."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or "__" in name:
        return "which is not made of a letter, then letters, digits and single underscores"
    if len(name) > _LONGEST:
        return f"which has {len(name)} characters and not at most {_LONGEST}"
    for reason, patterns in _RESERVED.items():
        if re.fullmatch(patterns.replace(" ", "|"), name):
            return reason
    return ""


def _literal(word: int) -> str:
    """An int64 as a C literal."""
    # In C, -9223372036854775808 is a minus applied to a number that does not fit into a signed type.
    return "(-9223372036854775807 - 1)" if word == _INT64_MIN else str(word)


def _formula(encoding: Encoding) -> list[str]:
    """The formula of the channels with the numbers of this encoding, as lines of a comment."""
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
    """A number as text, without a trailing .0."""
    return repr(float(value)).removesuffix(".0")

"""Names of exported headers: a name that cannot be defined in C or C++ is rejected, all others compile."""

from __future__ import annotations

import os
import random
import re
import shutil
import string
from pathlib import Path

import pytest
from children import execute

import sinpe_ext as sinpe
from sinpe_ext import __main__ as cli
from sinpe_ext.cli.export import export_header

COMPILERS = {"c": os.environ.get("CC", "cc"), "c++": os.environ.get("CXX", "c++")}
STANDARDS = [("c", "c99"), ("c", "gnu17"), ("c", "gnu2x"), ("c++", "c++11"), ("c++", "gnu++20"), ("c++", "gnu++2b")]
PAPER = sinpe.convention("paper", 6)

ERRORS = {
    "no identifier": ["", "1x", "a b", "a-b", "a\n", "a.b", "é6", "π", "ｐａｐｅｒ", "a$", 'a"', "*/", "\ud800"],
    "reserved": ["_a", "__a", "a__b", "_Bool", "_A", "a__", "__LINE__", "_Atomic"],
    "too long": ["a" * 53, "a" * 10**6],
    "keyword": ["int", "restrict", "typeof", "typeof_unqual", "asm", "constexpr", "nullptr", "thread_local", "fortran"],
    "C++ keyword": ["class", "co_await", "char8_t", "requires", "contract_assert", "synchronized", "new"],
    "alternative token": ["and", "and_eq", "bitand", "bitor", "compl", "not", "not_eq", "or", "or_eq", "xor", "xor_eq"],
    "predefined macro": [
        "linux",
        "unix",
        "i386",
        "vax",
        "sparc",
        "mips",
        "sun",
        "arm",
        "mc68020",
        "WIN32",
        "EMSCRIPTEN",
    ],
    "macro": ["INT64_MAX", "UINT_LEAST8_MAX", "INT32_C", "WINT_WIDTH", "SIZE_MAX", "NULL", "stdin", "errno", "I"],
    "type": ["int64_t", "uint_fast8_t", "size_t", "intptr_t", "max_align_t", "my_t"],
    "C++": ["main", "std", "std2", "posix"],
    "CUDA": ["threadIdx", "dim3", "float4", "uchar1", "longlong2"],
    "library": ["sinpe", "sinpe_add", "sinpe_table", "sinpe_", "SINPE_API", "SINPE_SINPE_H", "SINPE_PLAN_a_H"],
    "another header's": ["paper6_words", "paper6_dim"],
}

# Accepted names that resemble rejected ones: functions, macros with arguments, parts and spellings.
ACCEPTED = """
    a A z9 Int INT int_ ints integer Main MAIN mains main1 Class klass classes New renew Linux LINUX linux6 linux_
    unix1 andy band oracle order xnor notes bits bitor_ compl6 char8 char_8_ int64 int64_max Int64_Max MAX MIN WIDTH
    INT64 INT_ MAX_INT64 words dim words_ dim_ Words NAME_WORDS DIM my_words_ my_dims t t_ T_T a_T x_tt type typed
    register_ autos default1 std_ stdx STD posixly threadidx grid float5 float0 float16x4 double44 uint charm short8
    longlong sinpes SINPEX Sinpe xsinpe_a sinp sinpe2 paper6 t2t512 own_index64 detr2d8 nulls Null nil null nan inf i
    J pi PI e E6 EPERM_ sin cos tan exp log pow gamma y0 j1 index time clock printf malloc free exit abort read write
    open close signal assert offsetof va_arg setjmp isnan signbit abs div labs rand qsort atoi strlen memcpy strcpy
    tolower isalpha wctob import module export_ final override pre post defined once pragma include ifdef error line
    warning elif endif virtual_ union6 struct_ table tables plan plans guard H endif_ int8 uint8 u8 U8 u8R LR uR L u U
    R string wstring vector array map set list pair abi cxx gnu gcc clang msvc asm_ goto6 inline6 volatile_ signed6
    unsigned7 bool_ true_ falsehood not6 or6 and6 xor6 eq and_or delete6 try_ catch_ throw_ this_ using_ typename6
    concept6 module6 yield await
""".split()


def export_error(name: str) -> str:
    with pytest.raises(ValueError) as caught:
        export_header(PAPER, name)
    return str(caught.value)


@pytest.mark.parametrize("kind", ERRORS)
def test_names_that_cannot_be_defined_are_rejected(kind: str) -> None:
    for name in ERRORS[kind]:
        message = export_error(name)
        assert message.startswith(f"name: expected a C identifier of your own, got {name[:52]!r}"), message
        assert message.endswith("; pass another, such as my_encoding") and len(message) < 250


def test_command_line_rejects_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("linux", "", "a\nb"):
        assert cli.main(["export", "paper", "6", "--name", name, "-o", "-"]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and len(printed.err.splitlines()) == 1
        assert printed.err.startswith("python -m sinpe_ext export: name: expected a C identifier of your own, got ")


def standard_option(language: str, standard: str) -> str:
    """The compiler option for a standard, or a skip with the reason."""
    compiler = shutil.which(COMPILERS[language])
    if compiler is None:
        pytest.skip(f"no {language} compiler to compile headers")
    option = f"-std={standard}"
    if execute([compiler, option, "-x", language, "-E", "-"], status=None).returncode:
        pytest.skip(f"{compiler} does not support {option}")
    return option


def macros(language: str, standard: str, source: str = "") -> set[str]:
    command = [COMPILERS[language], standard_option(language, standard), "-x", language, "-dM", "-E", "-"]
    done = execute(command, input=source)
    return set(re.findall(r"^#define (\w+)", done.stdout, flags=re.MULTILINE))


@pytest.mark.parametrize(("language", "standard"), STANDARDS)
def test_every_macro_of_compiler_and_included_header_is_rejected(language: str, standard: str) -> None:
    (included,) = re.findall(r"#include .*", export_header(PAPER, "paper6"))
    names = macros(language, standard) | macros(language, standard, included)
    assert {"INT64_MAX", "UINT_FAST8_MAX", "__STDC_VERSION__" if language == "c" else "__cplusplus"} <= names
    for name in names:
        export_error(name)


def random_names(count: int) -> list[str]:
    choose = random.Random(9)
    rest = string.ascii_letters + string.digits + "_"
    names: list[str] = []
    while len(names) < count:
        name = choose.choice(string.ascii_letters) + "".join(choose.choices(rest, k=choose.randint(0, 51)))
        if not re.search("__|_(t|words|dim)$", name):
            names.append(name)
    return names


def test_names_of_conventions_are_accepted() -> None:
    for name in sinpe.conventions():
        export_header(PAPER, f"{name}512")


@pytest.mark.parametrize(("language", "standard"), STANDARDS)
def test_all_other_names_compile(language: str, standard: str, tmp_path: Path) -> None:
    """All headers in one program, each included twice, with warnings as errors."""
    option = standard_option(language, standard)
    # The longest names, which differ only in the last character.
    names = dict.fromkeys([*ACCEPTED, *random_names(300), "b" * 51 + "x", "b" * 51 + "y"])
    lines, sums = [], []
    for number, name in enumerate(names):
        (tmp_path / f"{number}.h").write_text(export_header(PAPER, name))
        lines += [f'#include "{number}.h"'] * 2
        sums.append(f"  sum += {name}[{name}_words - 1] - {name}_dim;")
    program = [*lines, "int main(void) {", "  int64_t sum = 0;", *sums, "  return sum != 0;", "}", ""]
    path = tmp_path / "program.c"
    path.write_text("\n".join(program))
    flags = [option, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", language]
    execute([COMPILERS[language], *flags, path])
    assert len(names) > 450

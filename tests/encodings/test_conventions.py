"""Conventions by name (values: test_convention_formulas.py), and plans exported as C headers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch
from children import execute
from widths import every_width, names_at

import sinpe_ext
from sinpe_ext.cli.export import export_header
from sinpe_ext.encodings import catalogue
from sinpe_ext.encodings.catalogue import CATALOGUE, GRIDS, NAMES, convention, conventions
from sinpe_ext.encodings.encoding import Encoding
from sinpe_ext.encodings.grid import GridEncoding
from sinpe_ext.encodings.plan import plan
from sinpe_ext.encodings.resolve import name_of


def test_names_for_type_checkers() -> None:
    assert get_args(catalogue._RowName) == tuple(CATALOGUE) and get_args(catalogue._GridName) == tuple(GRIDS)


def test_conventions_lists_every_name() -> None:
    listed = conventions()
    assert tuple(listed) == NAMES == (*CATALOGUE, *GRIDS)
    assert all("\n" not in line and "; used by " in line for line in listed.values())


def test_spellings_and_fields() -> None:
    for spelling in ("own_index", "own-index", "OWN_INDEX", "Own-Index"):
        assert convention(spelling, 8) == Encoding(8, cos_frequency="own")
    assert convention("fairseq", 8, start=5) == convention("t2t", 8, start=5)
    assert convention("unit", 8, amplitude=1) == Encoding(8)
    assert convention("t2t", 8, base=500, odd="raise").base == 500.0


ERRORS = [
    (("papper", 8), {}, ValueError, 'got "papper"; pass one of paper, paper_concat, own_index'),
    ((3, 8), {}, TypeError, "name: expected the name of a convention, got int"),
    (("unit", 0), {}, ValueError, "dim: expected an int in"),
    (("unit", "8"), {}, TypeError, "dim: expected int, got str"),
    (("t2t", 7), {"odd": "raise"}, ValueError, "dim: expected an even number"),
    (("ddpm", 8), {"flip_sin_to_cos": True}, TypeError, "expected a field of Encoding, which are dim"),
]


@pytest.mark.parametrize(("arguments", "fields", "error", "message"), ERRORS)
def test_errors(arguments: tuple, fields: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        convention(*arguments, **fields)
    assert type(caught.value) is error and message in str(caught.value)


EXPORTED = {
    "paper6": convention("paper", 6),
    "smallest_word": Encoding(2, frequencies=(0.5,), unit="turn"),  # its fraction is 2**127: INT64_MIN as a word
    "given": Encoding(4, frequencies=(-1e-60, 3.5), cos_frequency="shared", amplitude=-0.25, start=-(2**63)),
    "no_frequency": Encoding(1, odd="pad"),
    "wide": convention("flux", 130, cos_frequency="own"),
}
COMPILERS = [
    ("cc", ["-x", "c", "-std=c99"]),
    ("c++", ["-x", "c++", "-std=c++17"]),
]
PROGRAM = """
#include <stdio.h>
{includes}
int main(void) {{
  int i;
  {prints}
  return 0;
}}
"""


@pytest.mark.parametrize(("compiler", "language"), COMPILERS, ids=["c99", "c++17"])
def test_exported_header_compiles_and_equals_the_plan(compiler: str, language: list[str], tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on PATH")
    for name, encoding in EXPORTED.items():
        (tmp_path / f"{name}.h").write_text(export_header(encoding, name))
    includes = "\n".join(f'#include "{name}.h"' for name in EXPORTED)
    loop = 'for (i = 0; i < {0}_words; ++i) printf("%lld ", (long long){0}[i]);\n  printf("%d\\n", {0}_dim);'
    program = PROGRAM.format(includes=includes, prints="\n  ".join(loop.format(name) for name in EXPORTED))
    (tmp_path / "main.source").write_text(program)
    warnings = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
    command = [compiler, *language, *warnings, str(tmp_path / "main.source"), "-o", str(tmp_path / "main")]
    execute(command)
    printed = execute([tmp_path / "main"]).stdout
    for line, encoding in zip(printed.splitlines(), EXPORTED.values(), strict=True):
        assert [int(word) for word in line.split()] == [*plan(encoding).packed, encoding.dim]


def test_exported_header_names_the_encoding() -> None:
    text = export_header(convention("doubled_index", 6, exponent_dim=2), "plan")
    assert " * Encoding(6, cos_frequency='own', exponent_scale=2.0, exponent_dim=2.0)\n" in text
    for arguments, error, message in (
        (("paper", "plan"), TypeError, "encoding: expected Encoding, got str"),
        ((Encoding(4), 5), TypeError, "name: expected str, got int"),
        ((Encoding(4, angle="float32_exp"), "plan"), ValueError, 'encoding: expected angle="exact"'),
    ):
        with pytest.raises(error, match=message):
            export_header(*arguments)


NAMES_OF = {
    'sinpe.convention("paper", 8)': Encoding(8),
    'sinpe.convention("t2t", 8, start=3)': Encoding(8, layout="sin_cos", shift=1, start=3),
    'sinpe.convention("own_index", 7, base=500.0)': convention("own_index", 7, base=500),
    'sinpe.convention("unit", 8)': convention("unit", 8),
    "sinpe.convention(\"paper\", 7, odd='pad')": Encoding(7, odd="pad"),
    'sinpe.convention("hf2d", 8, start=1)': convention("hf2d", 8, start=1),
    'sinpe.convention("mae2d", 8, base=(100.0, 10.0))': convention("mae2d", 8, base=(100, 10)),
    'sinpe.convention("nerf", 12, axes=3)': convention("nerf", 12, axes=3),
    "sinpe.GridEncoding((sinpe.Encoding(2), sinpe.Encoding(4)))": GridEncoding((Encoding(2), Encoding(4))),
    "sinpe.GridEncoding((sinpe.Encoding(2, frequencies=(1.0,)), sinpe.Encoding(2)))": GridEncoding(
        (Encoding(2, frequencies=(1,)), Encoding(2))
    ),
}


@pytest.mark.parametrize(("code", "encoding"), NAMES_OF.items())
def test_name_of(code: str, encoding: Encoding | GridEncoding) -> None:
    assert name_of(encoding) == code
    assert_same_table(eval(code, {"sinpe": sinpe_ext}), encoding)


def assert_same_table(*encodings: Encoding | GridEncoding) -> None:
    rows = [sinpe_ext.table((3,) * e.ndim if isinstance(e, GridEncoding) else 3, e) for e in encodings]
    assert torch.equal(*rows) and float(rows[0].abs().max()) <= 1.0


@every_width
def test_every_convention_at_every_width(width: int) -> None:
    """Its table is finite and its code makes it, or its error names `dim`; of names for one encoding, the first."""
    for name in NAMES:
        if name not in names_at(width):
            with pytest.raises(ValueError, match="^dim[,:].* expected "):
                convention(name, width)
            continue
        encoding = convention(name, width)
        assert encoding.dim == width and name_of(encoding).count(",") == 1
        assert_same_table(eval(name_of(encoding), {"sinpe": sinpe_ext}), encoding)

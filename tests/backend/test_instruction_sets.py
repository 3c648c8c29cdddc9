"""Kernels for newer instruction sets share no symbol with other code: a linker could select theirs for old CPUs."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest
from children import execute

from sinpe_ext.backend import sources

ROOT = Path(__file__).parents[2]


@pytest.mark.builds
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only x86-64 has these levels")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm, of binutils, is not installed")
@pytest.mark.parametrize("level", ["v3", "v4"])
def test_no_symbol_of_a_newer_instruction_set_can_be_merged(level: str, tmp_path: Path) -> None:
    try:
        compiler, _ = sources.find_compiler()
    except sources.BuildUnavailable as error:
        pytest.skip(f"no compiler: {error.reason}")
    made = tmp_path / "rows.o"
    folders = [flag for folder in sources.include_directories(ROOT / "csrc") for flag in ("-I", folder)]
    source = str(ROOT / "csrc" / "cpu" / f"rows_{level}.cpp")
    command = [compiler, "-std=c++17", "-O1", "-fPIC", *folders, "-c", source, "-o", str(made)]
    execute(command)
    table = execute(["nm", "-C", made]).stdout
    assert " t sinpe::isa_" in table, table  # the kernels exist, as local symbols
    weak = [line for line in table.splitlines() if line[17:18] in "WVu"]
    assert not weak, "\n".join(weak)

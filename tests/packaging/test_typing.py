"""The type annotations: a small program against the installed wheel, under `mypy --strict`."""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

import pytest
from build_support import build_by, copy_project, wheel_of
from children import REPOSITORY, execute, library_environment

PROGRAM = REPOSITORY / "tests" / "support" / "typed_program.py"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the pure wheel, and the packages of this one."""
    folder = tmp_path_factory.mktemp("typing")
    out = folder / "out"
    done = build_by("build_wheel", copy_project(folder / "sinpe"), out, SINPE_EXT_BUILD="none")
    _, archive, _ = wheel_of(done, out)
    execute([sys.executable, "-m", "venv", "--without-pip", folder / "env"])
    python = folder / "env" / "bin" / "python"
    site = Path(execute([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip())
    archive.extractall(site)
    (site / "zz_base.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


@pytest.mark.builds
def test_program_passes_mypy_strict(installed, tmp_path):
    """mypy rejects the marked lines and no others."""
    pytest.importorskip("mypy", reason="mypy is not installed: pip install mypy")
    text = PROGRAM.read_text(encoding="utf-8")
    (tmp_path / PROGRAM.name).write_text(text, encoding="utf-8")  # away from the package's source
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--config-file="]
    command += ["--python-executable", str(installed), PROGRAM.name]
    done = execute(command, cwd=tmp_path, env=library_environment(PYTHONPATH=None), status=None)
    refused = dict(re.findall(r"^\w+\.py:(\d+): error: .*(\[[\w-]+\])$", done.stdout, re.MULTILINE))
    marked = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = re.search(r"# error: (\[[\w-]+\])$", line)
        if match:
            marked[str(number)] = match[1]
    assert refused == marked, done.stdout + done.stderr
    assert len(marked) == 8 and "Found 8 errors in 1 file" in done.stdout


@pytest.mark.builds
def test_program_runs(installed, tmp_path):
    done = execute([installed, PROGRAM], cwd=tmp_path, env=library_environment("eager", PYTHONPATH=None))
    assert done.stdout.startswith("21 32 (2, 3, 8) ")

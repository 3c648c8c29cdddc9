"""Contents of wheels and source distribution; the version is defined once."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import wheel_contents
from build_support import build_by, copy_project, wheel_of
from children import REPOSITORY, environment, execute

import sinpe_ext
from sinpe_ext._version import __version__

INFO = f"sinpe_ext-{__version__}.dist-info"
EPOCH = {"SINPE_EXT_BUILD": "none", "SOURCE_DATE_EPOCH": "1700000000"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_project(tmp_path_factory.mktemp("project") / "sinpe")


@pytest.fixture(scope="module")
def wheel(project: Path) -> Path:
    out = project.parent / "out"
    return wheel_of(build_by("build_wheel", project, out, **EPOCH), out)[0]


@pytest.fixture(scope="module")
def sdist(project: Path) -> Path:
    out = project.parent / "sdist"
    done = build_by("build_sdist", project, out, **EPOCH)
    assert done.returncode == 0, done.stdout
    (archive,) = out.iterdir()
    return archive


# contents


def test_contents_of_wheel_and_sdist(wheel, sdist):
    assert wheel_contents.problems(wheel) == []
    assert (wheel.name, sdist.name) == (f"sinpe_ext-{__version__}-py3-none-any.whl", f"sinpe_ext-{__version__}.tar.gz")


def test_wheel_of_the_sdist_equals_the_wheel(wheel, sdist, tmp_path):
    """Builds are reproducible."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = tmp_path.iterdir()
    again = wheel_of(build_by("build_wheel", unpacked, tmp_path / "out", **EPOCH), tmp_path / "out")[0]
    assert again.read_bytes() == wheel.read_bytes()


Change = Callable[[dict[str, bytes]], None]
LIBRARY = b'{"libraries": {"cpu": {"file": "_C_cpu.abi3.so", "sources": "0"}}}'
SPOILED: dict[str, tuple[str, Change]] = {
    "no py.typed": ("sinpe_ext/py.typed is missing", lambda c: c.pop("sinpe_ext/py.typed")),
    "no kernel": ("_csrc/cpu/add.cpp is missing", lambda c: c.pop("sinpe_ext/_csrc/cpu/add.cpp")),
    "tests": (
        "tests/functional/test_add.py does not belong there",
        lambda c: c.update({"tests/functional/test_add.py": b""}),
    ),
    "leftovers": ("add_call.pyc does not belong", lambda c: c.update({"sinpe_ext/_add_call.pyc": b""})),
    "a stray library": ("py3-none-any with _C_cpu.abi3.so", lambda c: c.update({"sinpe_ext/_C_cpu.abi3.so": b"x"})),
    "a library that is named alone": ("disagree about _C_cpu", lambda c: c.update({"sinpe_ext/_build.json": LIBRARY})),
    "a library of other sources": (
        "not of the sources beside it",
        lambda c: c.update({"sinpe_ext/_build.json": LIBRARY}),
    ),
    "no reason": ("gives no reason", lambda c: c.update({"sinpe_ext/_build.json": b'{"libraries": {}}'})),
    "a folder of the machine": (
        f"METADATA names {REPOSITORY}",
        lambda c: c.update({f"{INFO}/METADATA": c[f"{INFO}/METADATA"] + f"see {REPOSITORY}/x".encode()}),
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_invalid_wheel_is_rejected(case, wheel, tmp_path):
    words, change = SPOILED[case]
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    change(content)
    path = tmp_path / wheel.name
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    assert [problem for problem in wheel_contents.problems(path) if words in problem], wheel_contents.problems(path)


@pytest.mark.builds
def test_installed_wheel(wheel, tmp_path):
    """tools/wheel_smoke.py with the installed torch: all operations, the published SHA-256, no compiler."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path),
        str(wheel),
    ]
    execute(command)
    places = os.pathsep.join([str(tmp_path), sysconfig.get_path("purelib")])
    settings = environment(PYTHONPATH=places, PATH=str(tmp_path / "none"), SINPE_EXT_JIT="0")
    smoke = [sys.executable, "-S", str(REPOSITORY / "tools" / "wheel_smoke.py")]  # without the editable installation
    done = execute(smoke, cwd=tmp_path, env=settings)
    assert "eager: installed without compiled libraries" in done.stdout and "as it should be" in done.stdout, (
        done.stdout
    )
    path = tmp_path / "sinpe_ext" / "functional.py"
    path.write_text(path.read_text().replace("def add_(", "def add__("))
    execute(smoke, cwd=tmp_path, env=settings, status=1)


def test_old_setuptools_is_rejected(project, tmp_path):
    """Its own error about pyproject.toml does not name the cause."""
    code = "import setuptools; setuptools.__version__ = '65.5.0'\n"
    code += f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    command = [sys.executable, "-c", code]
    done = execute(command, cwd=project, env=environment(), status=1)
    assert "setuptools 65.5.0 is older than 77; run `pip install -U setuptools`" in done.stderr


# version


def test_version_is_defined_once(wheel):
    """In sinpe_ext/_version.py only, among all files that are built or installed."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)  # as CMakeLists.txt expects
    assert sinpe_ext.__version__ == sinpe_ext.backend_info().version == __version__
    with zipfile.ZipFile(wheel) as archive:
        assert f"\nVersion: {__version__}\n" in archive.read(f"{INFO}/METADATA").decode()
    assert 'version = { attr = "sinpe_ext._version.__version__" }' in (REPOSITORY / "pyproject.toml").read_text()
    assert "file(STRINGS sinpe_ext/_version.py" in (REPOSITORY / "CMakeLists.txt").read_text()
    files = [REPOSITORY / name for name in ("pyproject.toml", "setup.py", "CMakeLists.txt", "Makefile")]
    files += [path for area in ("csrc", "cmake", "sinpe_ext") for path in (REPOSITORY / area).rglob("*.*")]
    literal = re.compile(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])")
    kinds = (".py", ".toml", ".txt", ".cmake", ".in", ".h", ".cpp", ".cu", ".inc", "")
    named = [path.name for path in files if path.suffix in kinds and literal.search(path.read_text(encoding="utf-8"))]
    assert named == ["_version.py"]


def test_changelog_has_the_version():
    headings = re.findall(r"^## (\S+),", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == __version__

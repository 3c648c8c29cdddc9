"""Installations: contents of wheels and the source distribution, what setup.py builds, types, the version."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import wheel_contents
from build_support import cuda_torch, needs_compiler, needs_nvcc, write_nvcc, write_script, write_small_sources
from children import REPOSITORY, environment, execute, forked, library_environment

import sinpe_ext
from sinpe_ext._version import __version__
from sinpe_ext.backend import loader, sources
from sinpe_ext.backend.sources import BuildUnavailable

INFO = f"sinpe_ext-{__version__}.dist-info"
EPOCH = {"SINPE_EXT_BUILD": "none", "SOURCE_DATE_EPOCH": "1700000000"}
BUILT_BY_SETUP = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "*.so", "_build.json", "__pycache__", "results"
)


def build(hook: str, project: Path, out: Path, status: int = 0, before: str = "", **env: str | None) -> str:
    """Calls a build hook as pip does without isolation, and without its start-up time; returns the output."""
    shutil.rmtree(project / "build", ignore_errors=True)
    out.mkdir(exist_ok=True)
    code = f"{before}\nfrom setuptools import build_meta; build_meta.{hook}({str(out)!r})"
    settings = {"CUDA_HOME": "/nonexistent", "PYTHONPATH": None, **env}
    return "".join(forked(code, environment(**settings), cwd=project, status=status))


def manifest_of(out: Path) -> tuple[dict, zipfile.ZipFile]:
    """The _build.json of the wheel that was built, and the wheel."""
    (wheel,) = out.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    return json.loads(archive.read(f"sinpe_ext/{sources.MANIFEST}")), archive


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, so that builds do not change the working tree."""
    return shutil.copytree(REPOSITORY, tmp_path_factory.mktemp("project") / "sinpe", ignore=BUILT_BY_SETUP)


@pytest.fixture(scope="module")
def wheel(project: Path) -> Path:
    """Without libraries."""
    out = project.parent / "out"
    build("build_wheel", project, out, **EPOCH)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with small sources, which compile in seconds, and without _core."""
    copy = tmp_path_factory.mktemp("small") / "sinpe"
    shutil.copytree(REPOSITORY / "sinpe_ext", copy / "sinpe_ext", ignore=BUILT_BY_SETUP)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    write_small_sources(copy / "csrc")
    return copy


# contents


def test_contents_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """With the sources for the JIT."""
    assert wheel_contents.problems(wheel) == [] and wheel.name == f"sinpe_ext-{__version__}-py3-none-any.whl"
    manifest, archive = manifest_of(wheel.parent)
    assert "SINPE_EXT_BUILD=none" in manifest["reason"]
    archive.extractall(tmp_path / "site")
    root = sources.source_root(tmp_path / "site" / "sinpe_ext")
    assert root == tmp_path / "site" / "sinpe_ext" / "_csrc"
    for target in ("cpu", "core", "cuda"):
        assert sources.source_hash(target, root) == sources.source_hash(target, REPOSITORY / "csrc")
    with pytest.raises(BuildUnavailable, match="SINPE_EXT_BUILD=none"):
        loader._load_prebuilt("cpu", tmp_path / "site" / "sinpe_ext")


@pytest.mark.builds
def test_contents_of_the_sdist(wheel: Path, project: Path, tmp_path: Path) -> None:
    """Its wheel has the same bytes."""
    build("build_sdist", project, tmp_path / "sdist", **EPOCH)
    (sdist,) = (tmp_path / "sdist").iterdir()
    assert sdist.name == f"sinpe_ext-{__version__}.tar.gz"
    with tarfile.open(sdist) as content:
        content.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    unpacked = tmp_path / f"sinpe_ext-{__version__}"
    names = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")}
    csrc = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "csrc").rglob("*") if path.is_file()}
    assert csrc | {"CMakeLists.txt", "Makefile", "cmake/sinpeConfig.cmake.in", "tests/conftest.py"} <= names
    build("build_wheel", unpacked, tmp_path / "again", **EPOCH)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


LIBRARY = b'{"libraries": {"cpu": {"file": "_C_cpu.abi3.so", "sources": "0"}}}'
# words of the problem: a file of the wheel, and its content; None: missing
SPOILED: dict[str, tuple[str, bytes | None]] = {
    "sinpe_ext/py.typed is missing": ("sinpe_ext/py.typed", None),
    "tests/a/test_add.py does not belong there": ("tests/a/test_add.py", b""),
    "py3-none-any with _C_cpu.abi3.so": ("sinpe_ext/_C_cpu.abi3.so", b"x"),
    "disagree about _C_cpu": ("sinpe_ext/_build.json", LIBRARY),
    "gives no reason": ("sinpe_ext/_build.json", b'{"libraries": {}}'),
    f"METADATA names {REPOSITORY}": (f"{INFO}/METADATA", f"see {REPOSITORY}/x".encode()),
}


def test_invalid_wheel_is_rejected(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    for words, (name, data) in SPOILED.items():
        with zipfile.ZipFile(tmp_path / wheel.name, "w") as archive:
            for other, kept in {**content, name: data}.items():
                if kept is not None:
                    archive.writestr(other, kept)
        problems = wheel_contents.problems(tmp_path / wheel.name)
        assert [problem for problem in problems if words in problem], (words, problems)


# what is built


FAILING = 'case "$*" in *" -c "*) seq -f "fault %g" 1 41; exit 1;; esac; exec c++ "$@"'


@needs_compiler
@pytest.mark.parametrize(
    ("env", "before", "status", "words"),
    [
        ({"PATH": "{tmp}/empty"}, "", 0, "no C++ compiler was found"),
        ({"PATH": "{tmp}/empty", "SINPE_EXT_BUILD": "cpu"}, "", 1, "but _C_cpu cannot be built: no C++ compiler"),
        ({"CXX": "{tmp}/failing"}, "", 0, "the build failed"),
        ({"SINPE_EXT_BUILD": "fast"}, "", 1, "SINPE_EXT_BUILD: expected auto, cpu, cuda or none, got 'fast'"),
        ({}, "import setuptools; setuptools.__version__ = '65.5.0'", 1, "65.5.0 is older than 77; run `pip install -U"),
        ({}, cuda_torch("13.0"), 1, "is of CUDA 12.8.61, and torch is built for CUDA 13.0"),
        ({"TORCH_CUDA_ARCH_LIST": ""}, cuda_torch(), 1, "TORCH_CUDA_ARCH_LIST names none to compile for"),
        ({"CUDA_HOME": "/nonexistent"}, cuda_torch(), 1, "nvcc was not found (looked in CUDA_HOME=/nonexistent)"),
    ],
)
def test_install_that_cannot_build(
    env: dict, before: str, status: int, words: str, small: Path, tmp_path: Path
) -> None:
    """Pure Python with the reason, or an error if the library was demanded."""
    (tmp_path / "empty").mkdir()
    write_script(tmp_path / "failing", FAILING)
    write_nvcc(tmp_path / "bin" / "nvcc")
    demanded = {"SINPE_EXT_BUILD": "cuda"} if before.startswith("import os") else {}
    settings = {"CXX": None, "CUDA_HOME": str(tmp_path), "TORCH_CUDA_ARCH_LIST": "8.0", **demanded, **env}
    settings = {name: value and value.format(tmp=tmp_path) for name, value in settings.items()}
    output = build("build_wheel", small, tmp_path / "out", status, before, **settings)
    if status:
        assert words in output, output
        return
    manifest, archive = manifest_of(tmp_path / "out")
    assert words in manifest["reason"] and words in manifest["core_reason"] and manifest["libraries"] == {}
    assert not [name for name in archive.namelist() if name.endswith(".so")]
    assert "sinpe_ext: _C_cpu is not built" in output and ("CXX" not in env or "fault 41" in output)


@pytest.mark.builds
@needs_compiler
@pytest.mark.parametrize(
    ("mode", "before", "status", "words"),
    [
        ("auto", "import torch; torch.version.cuda = torch.version.hip = None", 0, "is a CPU build"),
        ("cuda", "import torch; torch.version.cuda = torch.version.hip = None", 1, "_C_cuda cannot be built: torch"),
        ("auto", cuda_torch(), 0, "the build failed"),
        ("cuda", cuda_torch(), 1, "SINPE_EXT_BUILD=cuda, but _C_cuda cannot be built: the build failed"),
        ("cpu", cuda_torch(), 0, "not built at install time (SINPE_EXT_BUILD=cpu)"),
    ],
)
def test_install_without_cuda(mode: str, before: str, status: int, words: str, small: Path, tmp_path: Path) -> None:
    """The CPU library is built nevertheless, unless CUDA was demanded."""
    write_nvcc(tmp_path / "bin" / "nvcc", 'seq -f "fault %g" 1 40; exit 1')
    settings = {"CUDA_HOME": str(tmp_path), "TORCH_CUDA_ARCH_LIST": "8.0", "SINPE_EXT_BUILD": mode}
    output = build("build_wheel", small, tmp_path / "out", status, before, **settings)
    if status:
        assert words in output
        return
    manifest, archive = manifest_of(tmp_path / "out")
    assert set(manifest["libraries"]) == {"cpu"} and words in manifest["cuda_reason"] and "reason" not in manifest
    assert "sinpe_ext/_csrc/cuda/number.cu" in archive.namelist()  # for the JIT


@pytest.mark.builds
@needs_compiler
@needs_nvcc
def test_install_with_nvcc(small: Path, tmp_path: Path) -> None:
    """The library loads without a device."""
    env = {"SINPE_EXT_BUILD": "cuda", "TORCH_CUDA_ARCH_LIST": "9.0 12.0+PTX", "CUDA_HOME": None}
    build("build_wheel", small, tmp_path / "out", **env)
    manifest, archive = manifest_of(tmp_path / "out")
    built = manifest["libraries"]["cuda"]
    assert built["architectures"] == "9.0 12.0+PTX"
    assert built["sources"] == sources.source_hash("cuda", small / "csrc")
    archive.extractall(tmp_path / "site")
    path = tmp_path / "site" / "sinpe_ext" / built["file"]
    code = f"import torch, sinpe_ext.functional; torch.ops.load_library({str(path)!r})\n"
    code += "assert torch._C._dispatch_has_kernel_for_dispatch_key('sinpe_ext::table', 'CUDA')\n"
    forked(code + "assert not torch.cuda.is_initialized()", environment())


@pytest.mark.builds
@needs_compiler
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake was not found: pip install cmake")
def test_example_builds_with_the_installed_cmake_package(project: Path, tmp_path: Path) -> None:
    """find_package(sinpe) from an install prefix; the program prints a known table without Python."""
    from sinpe_ext.cli.export import export_header

    header = REPOSITORY / "examples" / "cpp" / "paper6.h"
    assert header.read_text() == export_header(sinpe_ext.convention("paper", 6), "paper6")
    options = ["-DSINPE_BUILD_TESTS=OFF", "-DSINPE_BUILD_EXAMPLES=OFF", f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'prefix'}"]
    execute(["cmake", "-S", project, "-B", tmp_path / "build", *options])
    execute(["cmake", "--build", tmp_path / "build", "--parallel", "2", "--target", "install"])
    example = ["-S", project / "examples" / "cpp", "-B", tmp_path / "example"]
    execute(["cmake", *example, f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}"])
    execute(["cmake", "--build", tmp_path / "example"])
    rows = [line.split(",") for line in execute([tmp_path / "example" / "print_table"]).stdout.splitlines()]
    assert len(rows) == 10 and all(len(row) == 6 for row in rows)
    assert [*map(float, rows[1])] == [0.8415, 0.5403, 0.0464, 0.9989, 0.0022, 1.0]
    assert [*map(float, rows[9])] == [0.4121, -0.9111, 0.4057, 0.9140, 0.0194, 0.9998]
    assert f'"{__version__}"' in (tmp_path / "build" / "sinpeConfigVersion.cmake").read_text()


# the installed wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the pure wheel, and the packages of this one."""
    folder = tmp_path_factory.mktemp("typing")
    execute([sys.executable, "-m", "venv", "--without-pip", folder / "env"])
    python = folder / "env" / "bin" / "python"
    site = Path(execute([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip())
    zipfile.ZipFile(wheel).extractall(site)
    (site / "zz_base.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


@pytest.mark.builds
def test_types(installed: Path, tmp_path: Path) -> None:
    """`mypy --strict` rejects the marked lines of the program and no others; the program runs."""
    pytest.importorskip("mypy", reason="mypy is not installed: pip install mypy")
    program = shutil.copy(Path(__file__).with_name("typed_program.py"), tmp_path)  # away from the package's source
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--config-file="]
    command += ["--python-executable", str(installed), "typed_program.py"]
    done = execute(command, cwd=tmp_path, env=library_environment(PYTHONPATH=None), status=None)
    refused = dict(re.findall(r"^\w+\.py:(\d+): error: .*(\[[\w-]+\])$", done.stdout, re.MULTILINE))
    lines = enumerate(Path(program).read_text(encoding="utf-8").splitlines(), 1)
    marked = {str(number): m[1] for number, line in lines if (m := re.search(r"# error: (\[[\w-]+\])$", line))}
    assert refused == marked and len(marked) == 8, done.stdout + done.stderr
    done = execute([installed, program], cwd=tmp_path, env=library_environment("eager", PYTHONPATH=None))
    assert done.stdout.startswith("16 (2, 3, 8) 32 sinpe.convention")


@pytest.mark.builds
def test_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """tools/wheel_smoke.py with the installed torch: all operations, the published SHA-256, no compiler."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    places = os.pathsep.join([str(tmp_path), sysconfig.get_path("purelib")])
    settings = environment(PYTHONPATH=places, PATH=str(tmp_path / "none"), SINPE_EXT_JIT="0")
    smoke = [sys.executable, "-S", str(REPOSITORY / "tools" / "wheel_smoke.py")]  # without the editable installation
    said = execute(smoke, cwd=tmp_path, env=settings).stdout
    assert "eager: installed without compiled libraries" in said and "as it should be" in said, said
    path = tmp_path / "sinpe_ext" / "functional.py"
    path.write_text(path.read_text().replace("def add_(", "def add__("))
    execute(smoke, cwd=tmp_path, env=settings, status=1)


def test_version_is_defined_once(wheel: Path) -> None:
    """In sinpe_ext/_version.py only, among all files that are built or installed; the changelog begins with it."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)  # as CMakeLists.txt expects
    assert sinpe_ext.__version__ == __version__
    with zipfile.ZipFile(wheel) as archive:
        assert f"\nVersion: {__version__}\n" in archive.read(f"{INFO}/METADATA").decode()
    files = [REPOSITORY / name for name in ("pyproject.toml", "setup.py", "CMakeLists.txt", "Makefile")]
    files += [path for area in ("csrc", "cmake", "sinpe_ext") for path in (REPOSITORY / area).rglob("*.*")]
    literal = re.compile(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])")
    kinds = (".py", ".toml", ".txt", ".cmake", ".in", ".h", ".cpp", ".cu", ".inc", "")
    named = [path.name for path in files if path.suffix in kinds and literal.search(path.read_text(encoding="utf-8"))]
    assert named == ["_version.py"]
    headings = re.findall(r"^## (\S+),", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == __version__

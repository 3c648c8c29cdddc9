"""Inputs of a build, the key that distinguishes builds, and the results of an install."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from pathlib import Path

import pytest
from build_support import build_by, copy_project, needs_compiler, wheel_of, write_script, write_small_sources
from children import REPOSITORY, execute

from sinpe_ext._version import __version__
from sinpe_ext.backend import compilation, loader
from sinpe_ext.backend.compilation import BuildUnavailable

GCC = compilation.Compiler(("/usr/bin/g++",), "/usr/bin/g++-12", "g++ 12.2.0")
TORCH = {"torch": "2.13.0+cpu", "torch_git": "cf30153c", "cuda": "None"}


# inputs of a build


def test_target_version_is_2_11():
    assert compilation.torch_target_version() == 0x020B000000000000
    assert "-DTORCH_TARGET_VERSION=0x020b000000000000" in compilation.compile_flags("cpu")


@pytest.mark.bad_input(27, "compiled", "CUDA")
@pytest.mark.parametrize("target", ["cpu", "core", "cuda", "emulated"])
def test_flags_do_not_change_rounding_or_require_new_cpus(target):
    flags = compilation.compile_flags(target)
    assert "-ffp-contract=off" in flags
    assert [f for f in flags if f.startswith("-std")] == (["-std=c++17"] if target == "core" else [])  # torch's own
    assert not [f for f in flags if f.startswith(("-march", "-ffast-math", "-Ofast", "-funsafe"))]


def test_sanitizers_are_for_tests_only(monkeypatch):
    monkeypatch.delenv("SINPE_EXT_SANITIZE", raising=False)  # set by nox -s asan
    plain = {
        target: (compilation.compile_flags(target), compilation.link_flags(target))
        for target in ("cpu", "core", "emulated")
    }
    assert not [f for flags in plain.values() for part in flags for f in part if "sanitize" in f]
    monkeypatch.setenv("SINPE_EXT_SANITIZE", "1")
    for target in plain:  # runs in nox -s asan
        for flags in (compilation.compile_flags(target), compilation.link_flags(target)):
            assert {"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"} <= set(flags)


@pytest.mark.parametrize(
    "text, expected",
    [("2.13.0+cpu", (2, 13)), ("2.6", (2, 6)), ("2.14.0a0+gitabc", (2, 14)), ("3.0.0.dev2027", (3, 0))],
)
def test_parse_torch_version(text, expected):
    assert compilation.parse_version(text) == expected


def test_sources_of_the_libraries():
    root = REPOSITORY / "csrc"
    cpu = {path.relative_to(root).as_posix() for path in compilation.sources("cpu", root)}
    core = {path.relative_to(root).as_posix() for path in compilation.sources("core", root)}
    assert {path.split("/")[0] for path in cpu} == {"cpu", "torch"}
    assert {path.split("/")[0] for path in core} == {"cpu", "pybind"}
    assert "cpu/parallel_standalone.cpp" in core - cpu


@pytest.mark.parametrize(
    "ingredient", ["torch", "torch_git", "cuda", "compiler", "version", "options", "sources", "target"]
)
def test_key_changes_with_each_ingredient(ingredient, tmp_path):
    root = write_small_sources(tmp_path)
    before = compilation.build_key(compilation.build_facts("cpu", root, GCC, TORCH))
    assert before == compilation.build_key(compilation.build_facts("cpu", root, GCC, dict(TORCH)))
    assert re.fullmatch("[0-9a-f]{16}", before)
    target, compiler, torch = "cpu", GCC, dict(TORCH)
    if ingredient in torch:
        torch[ingredient] += "x"
    elif ingredient == "compiler":
        compiler = compilation.Compiler(GCC.command, "/usr/bin/g++-13", GCC.version)
    elif ingredient == "version":
        compiler = compilation.Compiler(GCC.command, GCC.path, "g++ 12.3.0")
    elif ingredient == "options":
        compiler = compilation.Compiler((*GCC.command, "-m32"), GCC.path, GCC.version)
    elif ingredient == "sources":
        (root / "core" / "number.h").write_text("int sinpe_number();  // a header alone\n")
    else:
        target = "core"
    assert compilation.build_key(compilation.build_facts(target, root, compiler, torch)) != before


@pytest.mark.parametrize("what", ["flags", "python", "machine"])
def test_key_changes_with_flags_python_and_platform(what, tmp_path, monkeypatch):
    root = write_small_sources(tmp_path)
    before = compilation.build_facts("cpu", root, GCC, TORCH)
    if what == "flags":
        monkeypatch.setattr(compilation, "compile_flags", lambda target: ["-O2"])
    elif what == "python":
        monkeypatch.setattr(compilation.sysconfig, "get_config_var", lambda name: "cpython-399-other")
    else:
        monkeypatch.setattr(compilation.platform, "machine", lambda: "riscv64")
    after = compilation.build_facts("cpu", root, GCC, TORCH)
    assert [name for name in before if before[name] != after[name]] == [what]
    assert compilation.build_key(after) != compilation.build_key(before)


def test_source_hash_ignores_what_is_not_compiled_in(tmp_path):
    root = write_small_sources(tmp_path)
    before = compilation.source_hash("cpu", root)
    (root / "cpu" / "notes.txt").write_text("x")
    (root / "pybind").mkdir()
    (root / "pybind" / "core.cpp").write_text("x")
    assert compilation.source_hash("cpu", root) == before
    (root / "cpu" / "rows.inc").write_text("x")
    assert compilation.source_hash("cpu", root) != before


def test_compiler_command_with_options_and_missing_compilers(tmp_path):
    fake = write_script(tmp_path / "g++", 'echo "fake g++ 1.0"')
    compiler = compilation.find_compiler({"PATH": str(tmp_path)})
    assert compiler == compilation.Compiler((str(fake),), os.path.realpath(fake), "fake g++ 1.0")
    compiler = compilation.find_compiler({"PATH": str(tmp_path), "CXX": "g++ -m64"})
    assert compiler.command == (str(fake), "-m64")
    with pytest.raises(BuildUnavailable, match="no C.. compiler was found"):
        compilation.find_compiler({"PATH": str(tmp_path / "none")})
    with pytest.raises(BuildUnavailable, match="CXX=icpc was not found"):
        compilation.find_compiler({"PATH": str(tmp_path), "CXX": "icpc"})


def test_build_environment_is_restored(monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "3")
    monkeypatch.delenv("CXX", raising=False)
    before = dict(os.environ)
    with pytest.raises(ZeroDivisionError), compilation.build_environment(None, "/usr/bin/g++"):
        assert os.environ["MAX_JOBS"] == "3" and os.environ["CXX"] == "/usr/bin/g++"
        raise ZeroDivisionError
    assert dict(os.environ) == before
    monkeypatch.delenv("MAX_JOBS")
    with compilation.build_environment(None):
        assert int(os.environ["MAX_JOBS"]) >= 1
    assert "MAX_JOBS" not in os.environ


def test_relative_compiler_path_is_made_absolute(tmp_path, monkeypatch):
    write_script(tmp_path / "my-g++", "echo my g++ 1.0")
    monkeypatch.chdir(tmp_path)
    assert compilation.find_compiler({"CXX": "./my-g++", "PATH": ""}).command == (str(tmp_path / "my-g++"),)
    assert compilation.find_compiler({"CXX": "./my-g++ -O1", "PATH": ""}).command == (str(tmp_path / "my-g++"), "-O1")


def test_damaged_json_is_treated_as_absent(tmp_path):
    path = tmp_path / "done.json"
    assert compilation.read_json(path) == {}
    for text in ("", "{", "[1]", "\xff"):
        path.write_text(text, encoding="latin-1")
        assert compilation.read_json(path) == {}
    compilation.write_json(path, {"a": 1})
    assert compilation.read_json(path) == {"a": 1} and [p.name for p in tmp_path.iterdir()] == ["done.json"]


@pytest.mark.bad_input(26, "compiled", "eager")
@pytest.mark.parametrize(
    "manifest, reason",
    [
        (None, "nothing was built at install time"),
        ({"reason": "no compiler, that day"}, "no compiler, that day"),
        ({"libraries": {"cpu": {"file": "gone.so", "sources": "0"}}}, "does not exist"),
        ({"libraries": {"cpu": {"file": "old.so", "sources": "0"}}}, "older than the sources"),
        ({"libraries": {"cpu": {"file": "old.so", "sources": "now", "torch": "9.9"}}}, "built for torch 9.9"),
    ],
)
def test_unusable_prebuilt_library(manifest, reason, tmp_path):
    package = tmp_path / "sinpe_ext"
    package.mkdir()
    root = write_small_sources(tmp_path / "csrc")
    (package / "old.so").write_bytes(b"not a library")
    if manifest is not None:
        text = json.dumps(manifest).replace('"now"', f'"{compilation.source_hash("cpu", root)}"')
        (package / compilation.MANIFEST).write_text(text)
    with pytest.raises(BuildUnavailable, match=reason):
        loader._load_prebuilt("cpu", package)


@pytest.mark.bad_input(27, "compiled", "NumPy")
def test_dynamic_dependencies_of_built_libraries():
    manifest = compilation.read_json(REPOSITORY / "sinpe_ext" / compilation.MANIFEST)
    libraries = manifest.get("libraries", {})
    if not libraries:
        pytest.skip("nothing was built at install time")
    every = {"cpu": (b"libtorch_python", b"libgomp"), "core": (b"libtorch", b"libgomp"), "cuda": (b"libcudart.so",)}
    for target, forbidden in every.items():
        if target == "cuda" and target not in libraries:
            continue
        content = (REPOSITORY / "sinpe_ext" / libraries[target]["file"]).read_bytes()
        assert not [name for name in forbidden if name in content], target


# install


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_project(tmp_path_factory.mktemp("project") / "sinpe")


def test_wheel_without_libraries_contains_the_jit_sources(project, tmp_path):
    done = build_by("build_wheel", project, tmp_path / "out", SINPE_EXT_BUILD="none")
    wheel, archive, manifest = wheel_of(done, tmp_path / "out")
    assert wheel.name == f"sinpe_ext-{__version__}-py3-none-any.whl"
    assert "SINPE_EXT_BUILD=none" in manifest["reason"]
    names = set(archive.namelist())
    assert "sinpe_ext/py.typed" in names and not [name for name in names if name.startswith("tests")]

    archive.extractall(tmp_path / "site")
    root = compilation.source_root(tmp_path / "site" / "sinpe_ext")
    assert root == tmp_path / "site" / "sinpe_ext" / "_csrc"
    for target in ("cpu", "core", "cuda"):
        assert compilation.source_hash(target, root) == compilation.source_hash(target, REPOSITORY / "csrc")
    with pytest.raises(BuildUnavailable, match="SINPE_EXT_BUILD=none"):
        loader._load_prebuilt("cpu", tmp_path / "site" / "sinpe_ext")


def test_install_without_compiler_succeeds_with_a_warning(project, tmp_path):
    (tmp_path / "empty").mkdir()
    env = {"PATH": str(tmp_path / "empty"), "CXX": None}
    done = build_by("build_wheel", project, tmp_path / "out", **env)
    _, _, manifest = wheel_of(done, tmp_path / "out")
    assert "no C++ compiler was found" in manifest["reason"] and manifest["libraries"] == {}
    assert "WARNING: _C_cpu is not built" in done.stdout
    done = build_by("build_wheel", project, tmp_path / "demanded", **env, SINPE_EXT_BUILD="cpu")
    assert done.returncode != 0 and "SINPE_EXT_BUILD=cpu, but _C_cpu cannot be built: no C++ compiler" in done.stdout


@needs_compiler
def test_install_with_failing_compiler_reports_its_last_lines(project, tmp_path):
    script = 'case "$*" in *" -c "*) echo "fault 41"; exit 1;; esac; exec c++ "$@"'
    compiler = write_script(tmp_path / "failing-g++", script)
    done = build_by("build_wheel", project, tmp_path / "out", CXX=str(compiler))
    _, archive, manifest = wheel_of(done, tmp_path / "out")
    assert "the build failed" in manifest["reason"] and "fault 41" in manifest["reason"]
    assert "fault 41" in manifest["core_reason"]
    assert not [name for name in archive.namelist() if name.endswith(".so")]


def test_unknown_build_mode_is_rejected(project, tmp_path):
    done = build_by("build_wheel", project, tmp_path / "out", SINPE_EXT_BUILD="fast")
    assert done.returncode != 0 and "expected auto, cpu, cuda or none, got 'fast'" in done.stdout


def test_sdist_is_complete(project, tmp_path):
    done = build_by("build_sdist", project, tmp_path / "out", SINPE_EXT_BUILD="none")
    assert done.returncode == 0, done.stdout
    (archive,) = (tmp_path / "out").glob("*.tar.gz")
    with tarfile.open(archive) as content:
        names = {name.split("/", 1)[1] for name in content.getnames() if "/" in name}
    sources = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "csrc").rglob("*") if path.is_file()}
    assert sources <= names
    assert {"CMakeLists.txt", "Makefile", "cmake/sinpeConfig.cmake.in", "tests/conftest.py"} <= names


# CMake


def test_example_plan_equals_exported_header():
    from sinpe_ext import convention
    from sinpe_ext.cli.export import export_header

    assert (REPOSITORY / "examples" / "cpp" / "paper6.h").read_text() == export_header(convention("paper", 6), "paper6")


@pytest.mark.builds
@needs_compiler
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake was not found: pip install cmake")
def test_example_builds_with_the_installed_cmake_package(project, tmp_path):
    """find_package(sinpe) from an install prefix; the program prints a known table without Python."""

    def cmake(*arguments: object) -> None:
        execute(["cmake", *arguments])

    options = ["-DSINPE_BUILD_TESTS=OFF", "-DSINPE_BUILD_EXAMPLES=OFF", f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'prefix'}"]
    cmake("-S", project, "-B", tmp_path / "build", *options)
    cmake("--build", tmp_path / "build", "--parallel", "2", "--target", "install")
    example = tmp_path / "example"
    cmake("-S", project / "examples" / "cpp", "-B", example, f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    cmake("--build", example)
    printed = execute([example / "print_table"]).stdout
    rows = [[float(value) for value in line.split(",")] for line in printed.splitlines()]
    assert len(rows) == 10 and all(len(row) == 6 for row in rows)
    assert rows[1] == [0.8415, 0.5403, 0.0464, 0.9989, 0.0022, 1.0]
    assert rows[9] == [0.4121, -0.9111, 0.4057, 0.9140, 0.0194, 0.9998]
    assert f'"{__version__}"' in (tmp_path / "build" / "sinpeConfigVersion.cmake").read_text()

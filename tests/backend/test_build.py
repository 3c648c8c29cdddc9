"""Inputs of a build, the key that distinguishes builds, and the results of an install."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from build_support import build_by, copy_project, needs_compiler, wheel_of, write_script, write_small_sources
from children import REPOSITORY, execute

from sinpe_ext._version import __version__
from sinpe_ext.backend import jit, loader, sources
from sinpe_ext.backend.sources import BuildUnavailable

# inputs of a build


def test_target_version_is_2_11():
    assert "-DTORCH_TARGET_VERSION=0x020b000000000000" in sources.compile_flags("cpu")


@pytest.mark.bad_input(27, "compiled", "CUDA")
@pytest.mark.parametrize("target", ["cpu", "core", "cuda"])
def test_flags_do_not_change_rounding_or_require_new_cpus(target):
    flags = sources.compile_flags(target)
    assert "-ffp-contract=off" in flags
    assert [f for f in flags if f.startswith("-std")] == (["-std=c++17"] if target == "core" else [])  # torch's own
    assert not [f for f in flags if f.startswith(("-march", "-ffast-math", "-Ofast", "-funsafe"))]


def test_flags_of_nvcc_do_not_change_rounding():
    flags = " ".join(sources.nvcc_flags())
    assert "-fmad=false" in flags and "fast_math" not in flags and "-ffp-contract=off" in flags


def test_sanitizers_are_for_tests_only(monkeypatch):
    monkeypatch.delenv("SINPE_EXT_SANITIZE", raising=False)  # set by nox -s asan
    plain = {target: (sources.compile_flags(target), sources.link_flags(target)) for target in ("cpu", "core")}
    assert not [f for flags in plain.values() for part in flags for f in part if "sanitize" in f]
    monkeypatch.setenv("SINPE_EXT_SANITIZE", "1")
    for target in plain:  # runs in nox -s asan
        for flags in (sources.compile_flags(target), sources.link_flags(target)):
            assert {"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"} <= set(flags)


@pytest.mark.parametrize(
    "version, is_refused",
    [("2.13.0+cpu", False), ("2.6", True), ("2.14.0a0+gitabc", False), ("2.11.0", False), ("3.0.0.dev2027", False)],
)
def test_versions_of_torch(version, is_refused, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "__version__", version)
    if is_refused:
        with pytest.raises(BuildUnavailable, match="is older than 2.11"):
            sources.check_torch("cpu")
    else:
        sources.check_torch("cpu")


def test_sources_of_the_libraries():
    root = REPOSITORY / "csrc"
    cpu = {path.relative_to(root).as_posix() for path in sources.sources("cpu", root)}
    core = {path.relative_to(root).as_posix() for path in sources.sources("core", root)}
    assert {path.split("/")[0] for path in cpu} == {"cpu", "torch"}
    assert {path.split("/")[0] for path in core} == {"cpu", "pybind"}
    assert "cpu/parallel_standalone.cpp" in core - cpu


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_file_names_are_unique(target):
    """torch names object files by them; .cpp and .cu may have the same."""
    names = [path.name for path in sources.sources(target, REPOSITORY / "csrc")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("what", ["torch", "torch_git", "cuda", "flags", "python", "machine", "sources", "target"])
def test_key_changes_with_each_ingredient(what, tmp_path, monkeypatch):
    import torch

    root = write_small_sources(tmp_path)
    before = sources.build_facts("cpu", root)
    assert before == sources.build_facts("cpu", root)
    if what == "torch":
        monkeypatch.setattr(torch, "__version__", "2.99.0")
    elif what == "torch_git":
        monkeypatch.setattr(torch.version, "git_version", "abc")
    elif what == "cuda":
        monkeypatch.setattr(torch.version, "cuda", "99.0")
    elif what == "flags":
        monkeypatch.setattr(sources, "compile_flags", lambda target: ["-O2"])
    elif what == "python":
        monkeypatch.setattr(sources.sysconfig, "get_config_var", lambda name: "cpython-399-other")
    elif what == "machine":
        monkeypatch.setattr(sources.platform, "machine", lambda: "riscv64")
    elif what == "sources":
        (root / "core" / "number.h").write_text("int sinpe_number();  // a header alone\n")
    after = sources.build_facts("core" if what == "target" else "cpu", root)
    if what != "target":
        assert [name for name in before if before[name] != after[name]] == [what]
    assert jit._hash(after) != jit._hash(before)


def test_source_hash_ignores_what_is_not_compiled_in(tmp_path):
    root = write_small_sources(tmp_path)
    before = sources.source_hash("cpu", root)
    (root / "cpu" / "notes.txt").write_text("x")
    (root / "pybind").mkdir()
    (root / "pybind" / "core.cpp").write_text("x")
    assert sources.source_hash("cpu", root) == before
    (root / "cpu" / "rows.inc").write_text("x")
    assert sources.source_hash("cpu", root) != before


def test_compiler_is_found_by_cxx_and_path(tmp_path, monkeypatch):
    fake = write_script(tmp_path / "c++", 'echo "fake g++ 1.0"')
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sources.find_compiler() == (str(fake), "fake g++ 1.0")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(BuildUnavailable, match="no C.. compiler was found .looked for CXX and c...") as caught:
        sources.find_compiler()
    assert "install g++" in caught.value.todo
    monkeypatch.setenv("CXX", str(fake))
    assert sources.find_compiler() == (str(fake), "fake g++ 1.0")
    monkeypatch.setenv("CXX", f"{fake} -m64")
    with pytest.raises(BuildUnavailable, match="no C.. compiler was found .CXX=.* -m64.") as caught:
        sources.find_compiler()
    assert "the command of one" in caught.value.todo


def test_damaged_json_is_treated_as_absent(tmp_path):
    path = tmp_path / "build.json"
    assert sources.read_json(path) == {}
    for text in ("", "{", "[1]", "\xff"):
        path.write_text(text, encoding="latin-1")
        assert sources.read_json(path) == {}
    sources.write_json(path, {"a": 1})
    assert sources.read_json(path) == {"a": 1}


@pytest.mark.bad_input(26, "compiled", "eager")
@pytest.mark.parametrize(
    "manifest, reason",
    [
        (None, "nothing was built at install time"),
        ({"reason": "no compiler, that day"}, "no compiler, that day"),
        ({"libraries": {"cpu": {"file": "gone.so", "sources": "0"}}}, "does not exist"),
        ({"libraries": {"cpu": {"file": "old.so", "sources": "0"}}}, "built from other sources"),
        ({"libraries": {"cpu": {"file": "old.so", "sources": "now", "torch": "9.9"}}}, "built for torch 9.9"),
    ],
)
def test_unusable_prebuilt_library(manifest, reason, tmp_path):
    package = tmp_path / "sinpe_ext"
    package.mkdir()
    root = write_small_sources(tmp_path / "csrc")
    (package / "old.so").write_bytes(b"not a library")
    if manifest is not None:
        text = json.dumps(manifest).replace('"now"', f'"{sources.source_hash("cpu", root)}"')
        (package / sources.MANIFEST).write_text(text)
    with pytest.raises(BuildUnavailable, match=reason):
        loader._load_prebuilt("cpu", package)


@pytest.mark.bad_input(27, "compiled", "NumPy")
def test_dynamic_dependencies_of_built_libraries():
    manifest = sources.read_json(REPOSITORY / "sinpe_ext" / sources.MANIFEST)
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
    root = sources.source_root(tmp_path / "site" / "sinpe_ext")
    assert root == tmp_path / "site" / "sinpe_ext" / "_csrc"
    for target in ("cpu", "core", "cuda"):
        assert sources.source_hash(target, root) == sources.source_hash(target, REPOSITORY / "csrc")
    with pytest.raises(BuildUnavailable, match="SINPE_EXT_BUILD=none"):
        loader._load_prebuilt("cpu", tmp_path / "site" / "sinpe_ext")


def test_install_without_compiler_succeeds_with_a_warning(project, tmp_path):
    (tmp_path / "empty").mkdir()
    env = {"PATH": str(tmp_path / "empty"), "CXX": None}
    done = build_by("build_wheel", project, tmp_path / "out", **env)
    _, _, manifest = wheel_of(done, tmp_path / "out")
    assert "no C++ compiler was found" in manifest["reason"] and manifest["libraries"] == {}
    assert "sinpe_ext: _C_cpu is not built" in done.stdout
    done = build_by("build_wheel", project, tmp_path / "demanded", **env, SINPE_EXT_BUILD="cpu")
    assert done.returncode != 0 and "SINPE_EXT_BUILD=cpu, but _C_cpu cannot be built: no C++ compiler" in done.stdout


@needs_compiler
def test_install_with_failing_compiler_is_pure_python_with_the_reason(project, tmp_path):
    script = 'case "$*" in *" -c "*) echo "fault 41"; exit 1;; esac; exec c++ "$@"'
    compiler = write_script(tmp_path / "failing-g++", script)
    done = build_by("build_wheel", project, tmp_path / "out", CXX=str(compiler))
    _, archive, manifest = wheel_of(done, tmp_path / "out")
    assert "the build failed" in manifest["reason"] and "the build failed" in manifest["core_reason"]
    assert manifest["libraries"] == {} and "fault 41" in done.stdout
    assert not [name for name in archive.namelist() if name.endswith(".so")]
    done = build_by("build_wheel", project, tmp_path / "demanded", CXX=str(compiler), SINPE_EXT_BUILD="cpu")
    assert done.returncode != 0 and "SINPE_EXT_BUILD=cpu, but _C_cpu cannot be built: the build failed" in done.stdout


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

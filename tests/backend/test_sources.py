"""What builds are made of: sources, flags, compilers, architectures, and the facts that distinguish builds."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest
import torch
from build_support import write_nvcc, write_script, write_small_sources
from children import REPOSITORY, execute

from sinpe_ext.backend import jit, sources
from sinpe_ext.backend.sources import BuildUnavailable

CSRC = REPOSITORY / "csrc"
TARGETS = ("cpu", "core", "cuda")


@pytest.mark.bad_input(27, "compiled", "CUDA")
def test_flags() -> None:
    """They do not change rounding, need no new CPU, and compile for the ABI of torch 2.11."""
    for target in TARGETS:
        flags = sources.compile_flags(target)
        assert {"-ffp-contract=off", "-fno-fast-math"} <= set(flags)
        assert [f for f in flags if f.startswith("-std")] == (["-std=c++17"] if target == "core" else [])  # torch's own
        assert not [f for f in flags if f.startswith(("-march", "-ffast-math", "-Ofast", "-funsafe"))]
        assert ("-DTORCH_TARGET_VERSION=0x020b000000000000" in flags) == (target != "core")
    flags = " ".join(sources.nvcc_flags())
    assert "-fmad=false" in flags and "fast_math" not in flags and "-ffp-contract=off" in flags


def test_sanitizers_are_for_tests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sanitizers = {"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"}
    for value in ("", "0", "1"):  # set by nox -s asan
        monkeypatch.setenv("SINPE_EXT_SANITIZE", value)
        for target in TARGETS:
            for flags in (sources.compile_flags(target), sources.link_flags(target)):
                assert sanitizers & set(flags) == (sanitizers if value == "1" and target != "cuda" else set())


def test_versions_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.13.0+cpu", "2.14.0a0+gitabc", "2.11.0", "3.0"):
        monkeypatch.setattr(torch, "__version__", version)
        sources.check_torch("cpu")
    for version in ("2.10.1", "2.6"):
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(BuildUnavailable, match="is older than 2.11"):
            sources.check_torch("cpu")


def test_sources_of_the_libraries() -> None:
    """torch names object files by the names of files, which are unique therefore; .cpp and .cu may have the same."""
    names = {t: [path.relative_to(CSRC).as_posix() for path in sources.sources(t, CSRC)] for t in TARGETS}
    assert {name.split("/")[0] for name in names["cpu"]} == {"cpu", "torch"}
    assert {name.split("/")[0] for name in names["core"]} == {"cpu", "pybind"}
    assert "cpu/parallel_standalone.cpp" in set(names["core"]) - set(names["cpu"])
    assert not [name for name in names["cuda"] if not name.startswith(("cuda/", "torch/cuda_"))]
    assert not [name for name in names["cpu"] if "cuda_" in name or name.endswith(".cu")]
    for target in ("cpu", "cuda"):
        files = [path.name for path in sources.sources(target, CSRC)]
        assert len(files) == len(set(files))


LIBRARIES = {
    "cuda/number.cu": "cuda",
    "cuda/launch.h": "cuda",
    "torch/cuda_number.h": "cuda",
    "torch/table.cpp": "cpu",
    "torch/tensors.h": "cpu cuda",
    "core/number.h": "cpu core cuda",
    "include/sinpe/sinpe.h": "cpu core cuda",
    "cpu/rows.inc": "cpu core",
    "cpu/notes.txt": "",
    "pybind/core.cpp": "core",
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_changed_file_changes_the_libraries_that_contain_it(name: str, tmp_path: Path) -> None:
    root = write_small_sources(tmp_path)
    before = {target: sources.source_hash(target, root) for target in TARGETS}
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("// changed\n")
    changed = [target for target in TARGETS if sources.source_hash(target, root) != before[target]]
    assert " ".join(changed) == LIBRARIES[name]


CHANGES = {
    "torch": (torch, "__version__", "2.99.0"),
    "torch_git": (torch.version, "git_version", "abc"),
    "cuda": (torch.version, "cuda", "99.0"),
    "flags": (sources, "compile_flags", lambda target: ["-O2"]),
    "python": (sources.sysconfig, "get_config_var", lambda name: "cpython-399-other"),
    "machine": (sources.platform, "machine", lambda: "riscv64"),
    "cuda_flags": (sources, "nvcc_flags", lambda: ["-O2"]),
    "architectures": (sources, "architectures", lambda: "9.0"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_key_changes_with_each_ingredient(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_small_sources(tmp_path)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    before = sources.build_facts("cuda", root)
    monkeypatch.setattr(*CHANGES[what])
    after = sources.build_facts("cuda", root)
    assert [name for name in before if before[name] != after[name]] == [what]
    assert jit._hash(after) != jit._hash(before)


def test_compiler_is_found_by_cxx_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = write_script(tmp_path / "c++", 'echo "fake g++ 1.0"; echo more')
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sources.find_compiler() == (str(fake), "fake g++ 1.0")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setenv("CXX", str(fake))
    assert sources.find_compiler() == (str(fake), "fake g++ 1.0")
    monkeypatch.setenv("CXX", f"{fake} -m64")
    with pytest.raises(BuildUnavailable, match="no C.. compiler was found .CXX=.* -m64.") as caught:
        sources.find_compiler()
    assert "the command of one" in caught.value.todo


def test_nvcc_tells_the_folder_of_the_cuda_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is a script outside of its toolkit."""
    nvcc = write_nvcc(tmp_path / "bin" / "nvcc")
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(sources, "find_nvcc", lambda: (str(nvcc), "12.8.61"))
    assert sources.cuda_library_flags() == [f"-L{tmp_path / 'lib'}"]


def test_devices_supported_by_a_build() -> None:
    for architectures, supported, unsupported in (
        ("8.0", [(8, 0), (8, 9)], [(9, 0)]),
        ("8.6", [], [(8, 0)]),
        ("8.0+PTX", [(9, 0)], []),
        ("9.0+PTX", [], [(8, 9)]),
        ("9.0a", [(9, 0)], []),
        ("9.0a+PTX", [], [(10, 0)]),
        ("10.0f", [(10, 3)], []),
        ("10.0f+PTX", [], [(12, 0)]),
        ("7.5 9.0", [], [(8, 0)]),
        ("", [], [(8, 0)]),
        ("Ampere", [(8, 0)], []),
    ):
        for device in supported + unsupported:
            assert sources.has_code_for(architectures, device) is (device in supported), (architectures, device)


def test_architectures_are_of_the_list_otherwise_of_the_devices(monkeypatch) -> None:
    monkeypatch.setattr(sources, "device_capabilities", lambda: [(8, 0), (9, 0)])
    for listed, expected in (("8.0;9.0+PTX", "8.0 9.0+PTX"), (" 7.5  8.6 ;", "7.5 8.6"), ("", "8.0 9.0")):
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
        assert sources.architectures() == expected


def test_damaged_json_is_treated_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "build.json"
    assert sources.read_json(path) == {}
    for text in ("", "{", "[1]", "\xff"):
        path.write_text(text, encoding="latin-1")
        assert sources.read_json(path) == {}
    sources.write_json(path, {"a": 1})
    assert sources.read_json(path) == {"a": 1}


@pytest.mark.builds
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only x86-64 has these levels")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm, of binutils, is not installed")
@pytest.mark.parametrize("level", ["v3", "v4"])
def test_no_symbol_of_a_newer_instruction_set_can_be_merged(level: str, tmp_path: Path) -> None:
    """A linker could select the code of a newer instruction set for old CPUs."""
    try:
        compiler, _ = sources.find_compiler()
    except BuildUnavailable as error:
        pytest.skip(f"no compiler: {error.reason}")
    folders = [flag for folder in sources.include_directories(CSRC) for flag in ("-I", folder)]
    source = CSRC / "cpu" / f"rows_{level}.cpp"
    execute([compiler, "-std=c++17", "-O1", "-fPIC", *folders, "-c", source, "-o", tmp_path / "rows.o"])
    table = execute(["nm", "-C", tmp_path / "rows.o"]).stdout
    assert " t sinpe::isa_" in table, table  # the kernels exist, as local symbols
    weak = [line for line in table.splitlines() if line[17:18] in "WVu"]
    assert not weak, "\n".join(weak)

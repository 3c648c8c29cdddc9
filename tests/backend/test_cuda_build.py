"""The build of the CUDA library: sources, nvcc, on first use and at install, and failures. No test needs a device;
those that compile need nvcc and a CUDA build of torch, and use a small replacement for the sources.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from build_support import PREAMBLE, needs_compiler, needs_nvcc, write_nvcc, write_small_sources
from children import REPOSITORY, environment, execute, forked

from sinpe_ext.backend import loader, sources
from sinpe_ext.backend.sources import BuildUnavailable

# sources


def test_sources_of_the_cuda_library():
    root = REPOSITORY / "csrc"
    names = [path.relative_to(root).as_posix() for path in sources.sources("cuda", root)]
    assert not [name for name in names if not name.startswith(("cuda/", "torch/cuda_"))]
    assert not [path for path in sources.sources("cpu", root) if path.name.startswith("cuda_") or path.suffix == ".cu"]


@pytest.mark.parametrize(
    "name, changed",
    [
        ("cuda/number.cu", {"cuda"}),
        ("cuda/launch.h", {"cuda"}),
        ("torch/cuda_ops.cpp", {"cuda"}),
        ("torch/cuda_number.h", {"cuda"}),
        ("cpu/table.cpp", {"cpu", "core"}),
        ("torch/table.cpp", {"cpu"}),
        ("torch/tensors.h", {"cpu", "cuda"}),
        ("core/number.h", {"cpu", "core", "cuda"}),
        ("include/sinpe/sinpe.h", {"cpu", "core", "cuda"}),
        ("pybind/core.cpp", {"core"}),
    ],
)
def test_changed_file_changes_the_libraries_that_contain_it(name, changed, tmp_path):
    root = write_small_sources(tmp_path)
    targets = ("cpu", "core", "cuda")
    before = {target: sources.source_hash(target, root) for target in targets}
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("// changed\n")
    assert {target for target in targets if sources.source_hash(target, root) != before[target]} == changed


# the backend and its reasons

REPORT = """
import json, torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    answers = [loader.compiled("cuda") for _ in range(3)]
backend = loader.resolve("cuda")
key = {"compiled": answers, "reason": backend.reason, "todo": backend.todo, "how": backend.how, "build": backend.build}
print(json.dumps({**key, "library": backend.library, "warnings": [str(w.message) for w in caught],
                  "text": str(sinpe_ext.backend_info()), "started": torch.cuda.is_initialized()}))
"""


@pytest.fixture(scope="module")
def small_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_sources(tmp_path_factory.mktemp("small"))


@pytest.fixture
def env(small_sources: Path, tmp_path: Path) -> dict[str, str]:
    fresh = {"SMALL_SOURCES": str(small_sources), "SINPE_EXT_CACHE_DIR": str(tmp_path / "cache")}
    return environment(**fresh, CUDA_HOME=str(tmp_path / "cuda"))


def report(env: dict[str, str], before: str = "") -> dict:
    out, err = forked(PREAMBLE + before + REPORT, env)
    return {**json.loads(out.splitlines()[-1]), "stderr": err}


def eager_report(env: dict[str, str], before: str = "", warnings: int = 0) -> dict:
    result = report(env, before)
    assert result["compiled"] == [False] * 3 and len(result["warnings"]) == warnings and not result["started"], result
    assert "cuda: eager (" in result["text"]
    return result


def cuda_torch(version: str = "12.8") -> str:
    """Declares torch to be a CUDA build; torch reads CUDA_HOME only in one."""
    code = f"import os, torch; torch.version.cuda = {version!r}; torch.version.hip = None\n"
    code += "torch.cuda.is_available, torch.cuda.device_count = (lambda: False), (lambda: 0)\n"
    return code + "from torch.utils import cpp_extension; cpp_extension.CUDA_HOME = os.environ['CUDA_HOME']\n"


@pytest.mark.builds
def test_cpu_build_of_torch(env):
    result = eager_report(env, 'import torch; torch.version.cuda = None; torch.__version__ = "2.13.0+cpu"\n')
    assert result["reason"] == "torch 2.13.0+cpu is a CPU build" and "CUDA build of torch" in result["todo"]


@pytest.mark.builds
def test_rocm_build_of_torch(env):
    result = eager_report(env, 'import torch; torch.version.hip = "7.0"; torch.__version__ = "2.13.0+rocm7.0"\n')
    assert result["reason"] == "torch 2.13.0+rocm7.0 is a ROCm build, for which there are no kernels"


@pytest.mark.builds
def test_no_device_and_no_list(env):
    for listed in ({}, {"TORCH_CUDA_ARCH_LIST": " ; ,"}):  # an empty list counts as none
        result = eager_report({**env, **listed}, cuda_torch())
        assert "no CUDA device is visible" in result["reason"] and "TORCH_CUDA_ARCH_LIST" in result["todo"]


def test_jit_disabled(env):
    result = eager_report({**env, "SINPE_EXT_JIT": "0", "TORCH_CUDA_ARCH_LIST": "8.0"}, cuda_torch())
    assert "SINPE_EXT_JIT=0" in result["reason"]


@pytest.mark.builds
@needs_compiler
def test_nvcc_of_another_major_version(env, tmp_path):
    write_nvcc(tmp_path / "cuda" / "bin" / "nvcc", version="13.0.88")
    result = eager_report({**env, "TORCH_CUDA_ARCH_LIST": "8.0"}, cuda_torch())
    assert "is of CUDA 13.0.88, and torch is built for CUDA 12.8" in result["reason"] and "12.x" in result["todo"]


@needs_compiler
def test_no_nvcc(env):
    result = eager_report({**env, "TORCH_CUDA_ARCH_LIST": "8.0"}, cuda_torch())
    assert "nvcc was not found (looked in CUDA_HOME=" in result["reason"]
    assert result["todo"] == "install the CUDA toolkit 12.x or set CUDA_HOME to one"


def test_nvcc_tells_the_folder_of_the_cuda_runtime(monkeypatch, tmp_path):
    """Also if it is a script outside of its toolkit."""
    nvcc = write_nvcc(tmp_path / "bin" / "nvcc")
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(sources, "find_nvcc", lambda: (str(nvcc), "12.8.61"))
    assert sources.cuda_library_flags() == [f"-L{tmp_path / 'lib'}"]


@needs_compiler
def test_invalid_architecture_list_warns(env, tmp_path):
    write_nvcc(tmp_path / "cuda" / "bin" / "nvcc")
    result = eager_report({**env, "TORCH_CUDA_ARCH_LIST": "sm_80"}, cuda_torch(), warnings=1)
    assert "Unknown CUDA arch (sm_80)" in result["reason"] and "(sm_80)" in result["warnings"][0]


@needs_compiler
def test_failing_nvcc_warns_once_with_its_last_lines(env, tmp_path):
    write_nvcc(tmp_path / "cuda" / "bin" / "nvcc", 'seq -f "fault %g" 1 40; exit 1')
    env = {**env, "TORCH_CUDA_ARCH_LIST": "8.0"}
    result = eager_report(env, cuda_torch(), warnings=1)
    assert "the build failed" in result["reason"] and "fault 40" in result["reason"]
    assert "fault 2\n" not in result["reason"] and "fault 40" in result["warnings"][0]
    assert result["stderr"].count("compiling the cuda kernels once") == 1 and " failed in " in result["stderr"]
    assert not list((tmp_path / "cache").glob("*.build-*"))


@pytest.mark.parametrize(
    "change, reason",
    [
        ({}, None),
        ({"cuda": "13.0"}, "the prebuilt library is of CUDA 13.0, and torch of CUDA 12.8"),
        ({"architectures": "9.0"}, "no code for a device of compute capability 8.6, but for 9.0"),
        ({"sources": "0"}, "built from other sources"),
    ],
)
def test_prebuilt_library_is_used_only_if_it_fits_the_devices(change, reason, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    package = tmp_path / "sinpe_ext"
    package.mkdir()
    root = write_small_sources(tmp_path / "csrc")
    (package / "_C_cuda.so").write_bytes(b"")
    built = {"file": "_C_cuda.so", "sources": sources.source_hash("cuda", root), "cuda": "12.8", "torch": "2.13.0"}
    built |= {"architectures": "8.0 9.0+PTX", "nvcc_version": "12.8.61", "compiler_version": "g++", **change}
    (package / sources.MANIFEST).write_text(json.dumps({"libraries": {"cuda": built}}))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr("sinpe_ext.backend.sources.device_capabilities", lambda: [(8, 6), (9, 0)])
    monkeypatch.setattr(loader, "_load_library", lambda path, device: None)
    if reason:
        with pytest.raises(BuildUnavailable, match=reason):
            loader._load_prebuilt("cuda", package)
        return
    backend = loader._load_prebuilt("cuda", package)
    assert backend.backend == "compiled" and backend.how == "prebuilt"


def test_reason_from_the_install_is_reported(tmp_path):
    (tmp_path / sources.MANIFEST).write_text(json.dumps({"libraries": {}, "cuda_reason": "no nvcc, that day"}))
    with pytest.raises(BuildUnavailable, match="no nvcc, that day"):
        loader._load_prebuilt("cuda", tmp_path)


@pytest.mark.parametrize(
    "architectures, device, expected",
    [
        ("8.0", (8, 0), True),
        ("8.0", (8, 9), True),
        ("8.6", (8, 0), False),
        ("8.0", (9, 0), False),
        ("8.0+PTX", (9, 0), True),
        ("9.0+PTX", (8, 9), False),
        ("9.0a", (9, 0), True),
        ("9.0a+PTX", (10, 0), False),
        ("10.0f", (10, 3), True),
        ("10.0f+PTX", (12, 0), False),
        ("7.5 9.0", (8, 0), False),
        ("", (8, 0), False),
        ("Ampere", (8, 0), True),
    ],
)
def test_devices_supported_by_a_build(architectures, device, expected):
    assert sources.has_code_for(architectures, device) is expected


@pytest.mark.parametrize(
    "listed, devices, expected",
    [
        ("8.0;9.0+PTX", [(8, 6)], "8.0 9.0+PTX"),
        (" 7.5  8.6 ;", [], "7.5 8.6"),
        ("", [(8, 0), (9, 0)], "8.0 9.0"),
        (" ; ,", [], None),
    ],
)
def test_architectures_are_of_the_list_otherwise_of_the_devices(listed, devices, expected, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    monkeypatch.setattr(sources, "device_capabilities", lambda: devices)
    if expected:
        assert sources.architectures() == expected
        return
    with pytest.raises(BuildUnavailable, match="no CUDA device is visible"):
        sources.architectures()


# built, and loaded without a device

REGISTERED = """
import torch
from sinpe_ext import functional
torch.ops.load_library({library!r})
has = torch._C._dispatch_has_kernel_for_dispatch_key
assert has("sinpe_ext::table", "CUDA") and has("sinpe_ext::encode", "CUDA")
assert not torch.cuda.is_initialized()
"""


@pytest.mark.builds
@needs_compiler
@needs_nvcc
def test_library_compiled_on_first_use_loads_without_a_device(env, tmp_path):
    """The next process does not compile, and a third has no compiler."""
    env = {**env, "TORCH_CUDA_ARCH_LIST": "9.0", "CUDA_HOME": os.path.dirname(os.path.dirname(sources.find_nvcc()[0]))}
    first = report(env)
    assert first["compiled"] == [True] * 3 and first["how"] == "jit" and not first["started"], first
    version = sources.find_nvcc()[1]
    assert first["build"]["architectures"] == "9.0" and first["build"]["nvcc_version"] == version
    assert f"nvcc {version} for torch" in first["text"] and "architectures 9.0" in first["text"]
    library = Path(first["library"])
    assert sorted(path.name for path in library.parent.iterdir()) == ["build.json", "sinpe_ext_cuda.so"]
    forked(REGISTERED.format(library=str(library)), env)
    again = report(env)
    assert again["library"] == first["library"] and "compiling" not in again["stderr"]
    bare = report({**env, "CXX": "/nonexistent/c++"})
    assert bare["library"] == first["library"] and "compiling" not in bare["stderr"]
    other = report({**env, "TORCH_CUDA_ARCH_LIST": "9.0+PTX", "SINPE_EXT_JIT": "0"})
    assert other["compiled"] == [False] * 3


# install


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with small sources, which compile in seconds, and without _core."""
    copy = tmp_path_factory.mktemp("project") / "sinpe"
    ignored = shutil.ignore_patterns("*.so", "_build.json", "__pycache__")
    shutil.copytree(REPOSITORY / "sinpe_ext", copy / "sinpe_ext", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    write_small_sources(copy / "csrc")
    return copy


Install = tuple[int, str, dict, "zipfile.ZipFile | None"]


def install(project: Path, out: Path, declared: str, **env: str | None) -> Install:
    """(exit status, output, _build.json, wheel) of an install after running the code `declared`."""
    shutil.rmtree(project / "build", ignore_errors=True)
    out.mkdir()
    code = f"{declared}\nfrom setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    settings = {"TORCH_CUDA_ARCH_LIST": "8.0", "PYTHONPATH": None, **env}
    command = [sys.executable, "-c", code]
    done = execute(command, cwd=project, env=environment(**settings), merged=True, status=None)
    wheels = list(out.glob("*.whl"))
    archive = zipfile.ZipFile(wheels[0]) if wheels else None
    return done.returncode, done.stdout, json.loads(archive.read("sinpe_ext/_build.json")) if archive else {}, archive


CPU_TORCH = "import torch; torch.version.cuda, torch.version.hip = None, None\n"


@pytest.mark.builds
@needs_compiler
def test_install_with_a_cpu_build_of_torch(project, tmp_path):
    """Only the CPU libraries are compiled, and the reason is recorded."""
    status, output, manifest, archive = install(project, tmp_path / "auto", CPU_TORCH)
    assert status == 0, output
    assert set(manifest["libraries"]) == {"cpu"} and "is a CPU build" in manifest["cuda_reason"]
    assert "sinpe_ext/_csrc/cuda/number.cu" in archive.namelist()  # for the JIT
    status, output, _, _ = install(project, tmp_path / "demanded", CPU_TORCH, SINPE_EXT_BUILD="cuda")
    assert status != 0 and "SINPE_EXT_BUILD=cuda, but _C_cuda cannot be built: torch" in output


@pytest.mark.builds
@needs_compiler
def test_failing_nvcc_does_not_prevent_the_cpu_library(project, tmp_path):
    home = {"CUDA_HOME": str(tmp_path / "cuda")}
    write_nvcc(tmp_path / "cuda" / "bin" / "nvcc", 'seq -f "fault %g" 1 40; exit 1')
    status, output, manifest, _ = install(project, tmp_path / "auto", cuda_torch(), **home)
    assert status == 0, output
    assert set(manifest["libraries"]) == {"cpu"} and "reason" not in manifest
    assert "the build failed" in manifest["cuda_reason"] and "fault 40" in output
    status, output, _, _ = install(project, tmp_path / "demanded", cuda_torch(), SINPE_EXT_BUILD="cuda", **home)
    assert status != 0 and "SINPE_EXT_BUILD=cuda, but _C_cuda cannot be built: the build failed" in output


@needs_compiler
@pytest.mark.parametrize(
    "cuda, settings, reason",
    [
        ("13.0", {}, "is of CUDA 12.8.61, and torch is built for CUDA 13.0"),
        ("12.8", {"TORCH_CUDA_ARCH_LIST": None}, "TORCH_CUDA_ARCH_LIST names none to compile for"),
        ("12.8", {"CUDA_HOME": "/nonexistent"}, "nvcc was not found (looked in CUDA_HOME=/nonexistent)"),
    ],
)
def test_required_cuda_build_that_cannot_start(cuda, settings, reason, project, tmp_path):
    write_nvcc(tmp_path / "cuda" / "bin" / "nvcc")
    settings = {"CUDA_HOME": str(tmp_path / "cuda"), "SINPE_EXT_BUILD": "cuda", **settings}
    status, output, _, _ = install(project, tmp_path / "out", cuda_torch(cuda), **settings)
    assert status != 0 and reason in output


@pytest.mark.builds
@needs_compiler
def test_cpu_build_omits_cuda(project, tmp_path):
    write_nvcc(tmp_path / "cuda" / "bin" / "nvcc", "exit 7")
    settings = {"SINPE_EXT_BUILD": "cpu", "CUDA_HOME": str(tmp_path / "cuda")}
    status, output, manifest, _ = install(project, tmp_path / "out", cuda_torch(), **settings)
    assert status == 0 and set(manifest["libraries"]) == {"cpu"}, output
    assert manifest["cuda_reason"] == "not built at install time (SINPE_EXT_BUILD=cpu)"


@pytest.mark.builds
@needs_compiler
@needs_nvcc
def test_install_with_nvcc_builds_a_library_that_loads_without_a_device(project, tmp_path):
    settings = {"SINPE_EXT_BUILD": "cuda", "TORCH_CUDA_ARCH_LIST": "9.0 12.0+PTX"}
    status, output, manifest, archive = install(project, tmp_path / "out", "", **settings)
    assert status == 0, output
    built = manifest["libraries"]["cuda"]
    assert built["architectures"] == "9.0 12.0+PTX"
    assert built["sources"] == sources.source_hash("cuda", project / "csrc")
    archive.extractall(tmp_path / "site")
    library = tmp_path / "site" / "sinpe_ext" / built["file"]
    forked(REGISTERED.format(library=str(library)), environment())

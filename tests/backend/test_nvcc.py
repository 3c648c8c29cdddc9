"""nvcc: which one, for which architectures, and its output. No test needs nvcc or a device."""

from __future__ import annotations

from pathlib import Path

import pytest
from build_support import write_nvcc, write_script

from sinpe_ext.backend import cuda_compiler
from sinpe_ext.backend.compilation import BuildUnavailable

SUPPORTED = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0))
NVCC = cuda_compiler.Nvcc("/usr/local/cuda/bin/nvcc", "13.0.88", SUPPORTED)
CUDA_11 = cuda_compiler.Nvcc(
    "/usr/local/cuda/bin/nvcc", "11.8.89", ((7, 0), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0))
)


# architectures


@pytest.mark.parametrize(
    "text, expected",
    [
        ("8.0", "8.0"),
        ("8.0;9.0+PTX", "8.0 9.0+PTX"),
        ("9.0, 8.0", "8.0 9.0"),
        (" 7.5  8.6 ;", "7.5 8.6"),
        ("9.0a", "9.0a"),
        ("10.0;8.0;10.3;9.0", "8.0 9.0 10.0 10.3"),
        ("10.0f+PTX", "10.0f+PTX"),
        ("8.0 8.0", "8.0"),
        ("Ampere", "8.0 8.6+PTX"),
        ("Turing;Hopper", "7.5+PTX 9.0+PTX"),
    ],
)
def test_architecture_list_in_torch_notation(text, expected):
    assert cuda_compiler.cuda_architectures(NVCC, [(8, 9)], {"TORCH_CUDA_ARCH_LIST": text}) == tuple(expected.split())


@pytest.mark.parametrize("text", ["sm_80", "80", "8", "8.0+ptx", "native", "Ampere+X", "8.0;fast", "-1.0", "8.0 +PTX"])
def test_invalid_architecture_list(text):
    with pytest.raises(BuildUnavailable, match='TORCH_CUDA_ARCH_LIST: expected compute capabilities such as "8.0;9.0'):
        cuda_compiler.cuda_architectures(NVCC, (), {"TORCH_CUDA_ARCH_LIST": text})


def test_architecture_unknown_to_nvcc():
    with pytest.raises(BuildUnavailable, match="nvcc 13.0.88 does not compile for 7.0, but for 7.5 8.0 ") as error:
        cuda_compiler.cuda_architectures(NVCC, (), {"TORCH_CUDA_ARCH_LIST": "7.0;8.0"})
    assert error.value.failed


def test_default_without_device_and_list():
    assert cuda_compiler.cuda_architectures(NVCC, (), {}) == ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0+PTX")
    assert cuda_compiler.cuda_architectures(CUDA_11, (), {}) == ("7.5", "8.0", "8.6", "8.9", "9.0+PTX")
    assert cuda_compiler.cuda_architectures(None, (), {"TORCH_CUDA_ARCH_LIST": " ; "})[-1] == "12.0+PTX"
    newer = cuda_compiler.Nvcc("nvcc", "20.0.1", ((13, 0), (14, 0)))
    assert cuda_compiler.cuda_architectures(newer, (), {}) == ("13.0+PTX",)


@pytest.mark.parametrize(
    "devices, nvcc, expected",
    [
        ([(9, 0)], NVCC, "9.0"),
        ([(9, 0), (8, 0), (9, 0)], NVCC, "8.0 9.0"),
        ([(12, 1)], NVCC, "12.0"),  # unknown to this nvcc: code for an older minor version runs on it
        ([(12, 0)], CUDA_11, "9.0+PTX"),  # not even its major version
        ([(12, 0)], None, "12.0"),
    ],
)
def test_architectures_of_the_devices(devices, nvcc, expected):
    assert cuda_compiler.cuda_architectures(nvcc, devices, {}) == tuple(expected.split())
    for device in devices:
        assert cuda_compiler.serves(expected.split(), device)


def test_device_too_old_for_nvcc():
    with pytest.raises(BuildUnavailable, match="nvcc 13.0.88 does not compile for a device of compute capability 6.1"):
        cuda_compiler.cuda_architectures(NVCC, [(6, 1)], {})


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
    ],
)
def test_devices_supported_by_a_build(architectures, device, expected):
    assert cuda_compiler.serves(architectures.split(), device) is expected


def test_flags_of_an_architecture_list():
    assert cuda_compiler.gencode_flags(["8.0", "9.0a", "12.0+PTX"]) == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_120,code=sm_120",
        "-gencode=arch=compute_120,code=compute_120",
    ]
    flags = " ".join(cuda_compiler.compile_flags())
    assert "-fmad=false" in flags and "fast_math" not in flags and "-ffp-contract=off" in flags


# nvcc


def test_nvcc_from_settings_then_from_path(tmp_path):
    names = ("chosen", "home/bin", "path/bin", "other/bin")
    chosen, home, path, other = (tmp_path / name / "nvcc" for name in names)
    for script in (chosen, home, path, other):
        script.parent.mkdir(parents=True)
        write_nvcc(script)
    env = {"CUDACXX": str(chosen), "CUDA_HOME": str(home.parent.parent), "CUDA_PATH": str(other.parent.parent)}
    env["PATH"] = f"{path.parent}:/usr/bin:/bin"
    for name, expected in (("CUDACXX", chosen), ("CUDA_HOME", home), ("CUDA_PATH", other), ("PATH", path)):
        assert cuda_compiler.find_nvcc("12.6", env) == cuda_compiler.Nvcc(str(expected), "12.8.61", SUPPORTED[:6])
        del env[name]


def test_nvcc_missing_at_the_configured_path(tmp_path):
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH"):
        with pytest.raises(BuildUnavailable, match=f"{name}={tmp_path}/none") as error:
            cuda_compiler.find_nvcc("12.6", {name: f"{tmp_path}/none", "PATH": ""})
        assert name in error.value.todo


def test_no_nvcc(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_compiler.shutil, "which", lambda name, path=None: None)
    with pytest.raises(BuildUnavailable, match="nvcc was not found") as error:
        cuda_compiler.find_nvcc("12.6", {"PATH": ""})
    assert error.value.todo == "install the CUDA toolkit 12.x or set CUDA_HOME to one" and not error.value.failed


@pytest.mark.parametrize("version, torch_cuda, fits", [("12.0.1", "12.9", True), ("13.0.88", "12.6", False)])
def test_nvcc_and_torch_of_different_major_versions(version, torch_cuda, fits, tmp_path):
    nvcc = write_nvcc(tmp_path / "nvcc", version=version)
    if fits:
        assert cuda_compiler.find_nvcc(torch_cuda, {"CUDACXX": str(nvcc)}).release == (12, 0)
        return
    with pytest.raises(BuildUnavailable, match="is of CUDA 13.0.88, and torch is built for CUDA 12.6") as error:
        cuda_compiler.find_nvcc(torch_cuda, {"CUDACXX": str(nvcc)})
    assert "12.x" in error.value.todo


def test_nvcc_without_version_output(tmp_path):
    mute = write_script(tmp_path / "nvcc", 'echo "licence expired"')
    with pytest.raises(BuildUnavailable, match="does not name a version: 'licence expired'"):
        cuda_compiler.find_nvcc("12.6", {"CUDACXX": str(mute)})
    broken = tmp_path / "broken"
    broken.write_text("#!/nonexistent\n")
    broken.chmod(0o755)
    with pytest.raises(BuildUnavailable, match="does not run"):
        cuda_compiler.find_nvcc("12.6", {"CUDACXX": str(broken)})


def test_missing_runtime_library_is_named(tmp_path):
    nvcc = write_nvcc(tmp_path / "nvcc")
    assert f"-L{tmp_path}/lib" in cuda_compiler.link_flags(cuda_compiler.Nvcc(str(nvcc), "12.8.61", ()), [Path("a.o")])
    (tmp_path / "lib" / "libcudart_static.a").unlink()
    with pytest.raises(BuildUnavailable, match="libcudart_static.a of .* was not found"):
        cuda_compiler.link_flags(cuda_compiler.Nvcc(str(nvcc), "12.8.61", ()), [])

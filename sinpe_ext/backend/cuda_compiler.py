"""nvcc: finding it, checking it against torch, the architectures to compile for, and compiling the kernels.

nvcc is called directly, and torch's builder compiles the C++ around the kernels: torch's CUDA builder would link
libcudart.so and libtorch_cuda.so, and would guess the architectures and the toolkit. ``setup.py`` and the JIT share
this file; like ``backend/compilation.py`` it can be imported without torch and the package.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .compilation import BuildUnavailable, Compiler, default_jobs, include_directories, sources

# If there is neither a list nor a visible device: every architecture since 2018 that torch is built for, and PTX for
# later ones.
DEFAULT_ARCHITECTURES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
_SETTING = "TORCH_CUDA_ARCH_LIST"
_NAMES = {  # names that torch accepts in that list; a name comes before those that are its prefixes
    "Volta+Tegra": "7.2",
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere+Tegra": "8.7",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell+Tegra": "11.0",
    "Blackwell": "10.0;10.3;12.0;12.1+PTX",
}
_INSTALL = "install the CUDA toolkit {wanted} or set CUDA_HOME to one"


@dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler."""

    path: str
    version: str  # 13.0.88
    supported: tuple[tuple[int, int], ...]  # compute capabilities, ascending

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor) of the version."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def no_cuda_torch(version: str, cuda: str | None, hip: str | None) -> BuildUnavailable | None:
    """Why this torch (torch.__version__, torch.version.cuda, torch.version.hip) cannot use CUDA kernels, or None."""
    if hip:
        return BuildUnavailable(f"torch {version} is a ROCm build, for which there are no kernels")
    if not cuda:
        return BuildUnavailable(f"torch {version} is a CPU build", "install a CUDA build of torch")
    return None


# ------------------------------------------------------------------------------------------------------ finding nvcc


def find_nvcc(torch_cuda: str | None, environ: Mapping[str, str] | None = None) -> Nvcc:
    """Finds nvcc by CUDACXX, CUDA_HOME or CUDA_PATH, on the PATH, or in /usr/local/cuda. Raises BuildUnavailable.

    Its CUDA major version must be that of torch, because two major versions of the CUDA runtime in one process may need
    different drivers.

    Args:
        torch_cuda: torch.version.cuda; None: any version is accepted.
        environ: the environment variables; None: os.environ.
    """
    environ = os.environ if environ is None else environ
    wanted = torch_cuda.split(".")[0] if torch_cuda else "12"
    path = _nvcc_path(environ, wanted)
    version = _nvcc_version(path)
    if torch_cuda and version.split(".")[0] != wanted:
        raise BuildUnavailable(
            f"nvcc {path} is of CUDA {version}, and torch is built for CUDA {torch_cuda}",
            _INSTALL.format(wanted=f"{wanted}.x"),
        )
    return Nvcc(path, version, _supported(path))


def _nvcc_path(environ: Mapping[str, str], wanted: str) -> str:
    """The path of nvcc. Raises BuildUnavailable."""
    search = environ.get("PATH")
    chosen = environ.get("CUDACXX", "").strip()
    if chosen:
        path = shutil.which(chosen, path=search)
        if path is None:
            raise BuildUnavailable(f"nvcc CUDACXX={chosen} was not found", "set CUDACXX to nvcc or unset it")
        return path
    for name in ("CUDA_HOME", "CUDA_PATH"):
        home = environ.get(name, "").strip()
        if home:
            path = shutil.which("nvcc", path=os.path.join(home, "bin"))
            if path is None:
                raise BuildUnavailable(
                    f"there is no bin/nvcc in {name}={home}", f"set {name} to a CUDA toolkit {wanted}.x or unset it"
                )
            return path
    path = shutil.which("nvcc", path=search) or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if path is None:
        raise BuildUnavailable(
            "nvcc was not found (looked for CUDACXX, CUDA_HOME, CUDA_PATH, the PATH, /usr/local/cuda)",
            _INSTALL.format(wanted=f"{wanted}.x"),
        )
    return path


def _nvcc_version(path: str) -> str:
    """The version that an nvcc prints, such as 13.0.88. Raises BuildUnavailable."""
    output = _output([path, "--version"])
    match = re.search(r"\bV(\d+\.\d+\.\d+)", output)
    if match is None:
        raise BuildUnavailable(f"{path} --version does not name a version: {output.strip()[:200]!r}", "reinstall CUDA")
    return match.group(1)


def _supported(path: str) -> tuple[tuple[int, int], ...]:
    """The compute capabilities that an nvcc compiles for, ascending."""
    archs = {divmod(int(number), 10) for number in re.findall(r"compute_(\d+)\b", _output([path, "--list-gpu-arch"]))}
    if not archs:
        raise BuildUnavailable(f"{path} --list-gpu-arch lists nothing", "install CUDA 11.5 or newer")
    return tuple(sorted(archs))


def _output(command: Sequence[str]) -> str:
    """What a command prints. Raises BuildUnavailable if it cannot be run."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, errors="replace", text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildUnavailable(f"{command[0]} does not run: {error}", "reinstall the CUDA toolkit") from error
    return done.stdout


# ----------------------------------------------------------------------------------------------------- architectures


def device_capabilities() -> list[tuple[int, int]]:
    """The compute capabilities of the visible CUDA devices; none if a device cannot be used. Initializes CUDA only if
    there is a device."""
    import torch

    if not torch.cuda.is_available():
        return []
    try:
        return [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    except RuntimeError:  # such as a device in a state of error: no reason to end an installation
        return []


def cuda_architectures(
    nvcc: Nvcc | None, devices: Iterable[tuple[int, int]] = (), environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The architectures to compile for, in the format of TORCH_CUDA_ARCH_LIST ("8.0", "9.0a", "12.0+PTX"), ascending.

    They are those of TORCH_CUDA_ARCH_LIST if it is set, otherwise those of the devices (compute capabilities), without
    devices the default list as far as this nvcc supports it. With nvcc=None they are not checked against an nvcc.
    """
    environ = os.environ if environ is None else environ
    chosen = environ.get(_SETTING, "").strip(" ,;")
    if chosen:
        return _ordered(_chosen_architecture(item, nvcc) for item in _items(chosen))
    capabilities = sorted(set(devices))
    if capabilities:
        return _ordered(_for_device(capability, nvcc) for capability in capabilities)
    known = [name for name in DEFAULT_ARCHITECTURES if nvcc is None or capability_of(name) in nvcc.supported]
    if not known:  # an nvcc that supports only newer ones: its oldest, whose PTX runs on all newer devices
        assert nvcc is not None
        known = ["{}.{}".format(*nvcc.supported[0])]
    return (*known[:-1], f"{known[-1]}+PTX")


def _items(text: str) -> list[str]:
    """The items of TORCH_CUDA_ARCH_LIST, with names replaced by numbers."""
    for name, numbers in _NAMES.items():
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w+])", numbers, text)
    return [item for item in re.split(r"[\s,;]+", text) if item]


def _chosen_architecture(item: str, nvcc: Nvcc | None) -> str:
    """Checks one item of TORCH_CUDA_ARCH_LIST and returns it. Raises BuildUnavailable."""
    if re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", item) is None:
        raise BuildUnavailable(
            f'{_SETTING}: expected compute capabilities such as "8.0;9.0+PTX", got {item!r}',
            f"set {_SETTING} to such a list or unset it",
            failed=True,
        )
    if nvcc is not None and capability_of(item) not in nvcc.supported:
        known = " ".join("{}.{}".format(*capability) for capability in nvcc.supported)
        raise BuildUnavailable(
            f"{_SETTING}: nvcc {nvcc.version} does not compile for {item}, but for {known}",
            f"set {_SETTING} to some of these or install another CUDA toolkit",
            failed=True,
        )
    return item


def _for_device(capability: tuple[int, int], nvcc: Nvcc | None) -> str:
    """The architecture of a device, or the newest older one that this nvcc supports, as PTX if the major differs."""
    older = [known for known in nvcc.supported if known <= capability] if nvcc else [capability]
    if not older:
        assert nvcc is not None
        raise BuildUnavailable(
            "nvcc {} does not compile for a device of compute capability {}.{}".format(nvcc.version, *capability),
            "install an older CUDA toolkit, with a torch built for it",
        )
    name = "{}.{}".format(*older[-1])
    return name if older[-1][0] == capability[0] else f"{name}+PTX"


def _ordered(items: Iterable[str]) -> tuple[str, ...]:
    """Architectures without duplicates, ascending."""
    return tuple(sorted(set(items), key=lambda item: (capability_of(item), item)))


def capability_of(architecture: str) -> tuple[int, int]:
    """The compute capability of an architecture, (9, 0) for "9.0a+PTX"."""
    major, minor = re.sub(r"[af]?(\+PTX)?$", "", architecture).split(".")
    return int(major), int(minor)


def serves(architectures: Iterable[str], device: tuple[int, int]) -> bool:
    """Whether code for these architectures runs on a device of this compute capability.

    It does if one has the same major and no higher minor version, or is older and PTX.
    """
    for name in architectures:
        capability = capability_of(name)
        plain, ptx = name.removesuffix("+PTX"), name.endswith("+PTX")
        if plain.endswith("a"):  # architecture-specific code, PTX included, runs on this compute capability only
            fits = capability == device
        else:
            fits = capability <= device and (capability[0] == device[0] or (ptx and not plain.endswith("f")))
        if fits:
            return True
    return False


def gencode_flags(architectures: Iterable[str]) -> list[str]:
    """The flags of nvcc for these architectures."""
    flags = []
    for name in architectures:
        number = name.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if name.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


# --------------------------------------------------------------------------------------------------------- compiling


def compile_flags() -> list[str]:
    """The flags of nvcc. No fast math and no contraction: the kernels call fma explicitly.

    The C++ standard need not be that of torch, because the kernels include no torch header.
    """
    host = "-fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden,-ffp-contract=off,-fno-fast-math"
    return ["-std=c++17", "-O3", "-fmad=false", "-Xcompiler", host]


def cuda_facts(nvcc: Nvcc | None, architectures: Iterable[str]) -> dict[str, str]:
    """What the CUDA kernels depend on in addition to compilation.build_facts."""
    return {
        "nvcc": os.path.realpath(nvcc.path) if nvcc else "",
        "nvcc_version": nvcc.version if nvcc else "",
        "cuda_flags": shlex.join(compile_flags()),
        "architectures": " ".join(architectures),
    }


def link_flags(nvcc: Nvcc, objects: Iterable[Path]) -> list[str]:
    """The object files of the kernels and the static CUDA runtime, whose symbols are hidden from those of torch."""
    runtime = ["-lcudart_static", "-ldl", "-lrt", "-lpthread", "-Wl,--exclude-libs,ALL"]
    return [*map(str, objects), f"-L{_runtime_directory(nvcc)}", *runtime]


def _runtime_directory(nvcc: Nvcc) -> str:
    """The directory of libcudart_static.a. nvcc itself is asked, as nvcc on the PATH may be a script outside of its
    toolkit. Raises BuildUnavailable."""
    output = _output([nvcc.path, "--dryrun", "-E", "-x", "cu", os.devnull])
    folders = [folder for line in output.splitlines() for folder in re.findall(r'"-L([^"]+)"', line)]
    for folder in folders:
        if os.path.isfile(os.path.join(folder, "libcudart_static.a")):
            return os.path.normpath(folder)
    raise BuildUnavailable(
        f"the CUDA runtime library libcudart_static.a of {nvcc.path} was not found (looked in {', '.join(folders)})",
        "install the CUDA toolkit's cudart development package",
    )


def compile_kernels(
    nvcc: Nvcc,
    root: Path,
    folder: Path,
    architectures: Sequence[str],
    compiler: Compiler | None = None,
    extra_flags: Sequence[str] = (),
) -> list[Path]:
    """Compiles every .cu file into `folder`, at most MAX_JOBS at a time, and returns the object files.

    The output of nvcc is in a .log file next to each. Raises subprocess.CalledProcessError with the output of the first
    that fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # -ccbin accepts one file name only; NVCC_CCBIN is nvcc's own setting.
    known = compiler is not None and len(compiler.command) == 1 and not os.environ.get("NVCC_CCBIN")
    flags = [*compile_flags(), *gencode_flags(architectures), *extra_flags]
    flags += ["-ccbin", compiler.command[0]] if compiler and known else []
    # nvcc passes paths to a shell without quoting them: it runs in `folder`, with a link to the sources there.
    seen = root.absolute()
    if shlex.quote(str(seen)) != str(seen):
        seen = Path("csrc")
        (folder / seen).unlink(missing_ok=True)
        (folder / seen).symlink_to(root.absolute(), target_is_directory=True)
    flags += [f"-I{directory}" for directory in include_directories(seen)]
    kernels = [source for source in sources("cuda", root) if source.suffix == ".cu"]
    objects = [folder / f"{source.name}.o" for source in kernels]
    commands = [
        [os.path.abspath(nvcc.path), *flags, "-c", str(seen / source.relative_to(root)), "-o", result.name]
        for source, result in zip(kernels, objects, strict=True)
    ]
    jobs = default_jobs()
    with contextlib.suppress(ValueError):
        jobs = max(1, int(os.environ.get("MAX_JOBS", "")))
    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(lambda command: _run(command, folder), commands))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return objects


def _run(command: Sequence[str], folder: Path) -> None:
    """Runs one compiler command in `folder`, with its output in a .log file. Raises CalledProcessError."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (folder / command[-1]).with_suffix(".log").write_bytes(done.stdout)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)

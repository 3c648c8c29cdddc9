"""nvcc: where it is, whether it suits this torch, for which architectures it compiles, and how.

Our own calls of nvcc, and torch's builder for the C++ around them: torch's CUDA builder would link libcudart.so and
libtorch_cuda.so, and take its architectures and its toolkit from guesses. ``setup.py`` and the JIT share this file;
like ``backend/compilation.py`` it needs the standard library alone.
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

# Without a device or a list: every architecture since 2018 that torch is built for, and PTX for those to come.
DEFAULT_ARCHITECTURES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
_SETTING = "TORCH_CUDA_ARCH_LIST"
_NAMES = {  # torch's own names; the longer one first where one begins another
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
    path: str
    version: str  # 13.0.88
    supported: tuple[tuple[int, int], ...]  # compute capabilities, ascending

    @property
    def release(self) -> tuple[int, int]:
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
    """nvcc by CUDACXX, CUDA_HOME or CUDA_PATH, the PATH, /usr/local/cuda; of the CUDA major version torch is built for.

    torch_cuda: torch.version.cuda; None: any will do. Two major versions of the CUDA runtime in one process need
    different drivers.
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
    output = _output([path, "--version"])
    found = re.search(r"\bV(\d+\.\d+\.\d+)", output)
    if found is None:
        raise BuildUnavailable(f"{path} --version does not name a version: {output.strip()[:200]!r}", "reinstall CUDA")
    return found.group(1)


def _supported(path: str) -> tuple[tuple[int, int], ...]:
    found = {divmod(int(number), 10) for number in re.findall(r"compute_(\d+)\b", _output([path, "--list-gpu-arch"]))}
    if not found:
        raise BuildUnavailable(f"{path} --list-gpu-arch lists nothing", "install CUDA 11.5 or newer")
    return tuple(sorted(found))


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, errors="replace", text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildUnavailable(f"{command[0]} does not run: {error}", "reinstall the CUDA toolkit") from error
    return done.stdout


# ----------------------------------------------------------------------------------------------------- architectures


def cuda_architectures(
    nvcc: Nvcc | None, devices: Iterable[tuple[int, int]] = (), environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """What to compile for, as TORCH_CUDA_ARCH_LIST spells it ("8.0", "9.0a", "12.0+PTX"), ascending.

    TORCH_CUDA_ARCH_LIST decides where it is set; then the devices (their compute capabilities); without either it is
    the default list as far as this nvcc knows it. Without an nvcc (None) nothing is checked against one.
    """
    environ = os.environ if environ is None else environ
    chosen = environ.get(_SETTING, "").strip(" ,;")
    if chosen:
        return _ordered(_chosen_architecture(item, nvcc) for item in _items(chosen))
    found = sorted(set(devices))
    if found:
        return _ordered(_for_device(capability, nvcc) for capability in found)
    known = [name for name in DEFAULT_ARCHITECTURES if nvcc is None or capability_of(name) in nvcc.supported]
    if not known:  # an nvcc newer than all of these: its oldest, whose PTX serves every newer one
        assert nvcc is not None
        known = ["{}.{}".format(*nvcc.supported[0])]
    return (*known[:-1], f"{known[-1]}+PTX")


def _items(text: str) -> list[str]:
    for name, numbers in _NAMES.items():
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w+])", numbers, text)
    return [item for item in re.split(r"[\s,;]+", text) if item]


def _chosen_architecture(item: str, nvcc: Nvcc | None) -> str:
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
    """The device's own architecture, or the next older one that this nvcc knows: as PTX where the major differs."""
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
    return tuple(sorted(set(items), key=lambda item: (capability_of(item), item)))


def capability_of(architecture: str) -> tuple[int, int]:
    """(9, 0) of 9.0a+PTX."""
    major, minor = re.sub(r"[af]?(\+PTX)?$", "", architecture).split(".")
    return int(major), int(minor)


def serves(architectures: Iterable[str], device: tuple[int, int]) -> bool:
    """Whether code for these architectures runs on a device: same major, minor not above its own, or older PTX."""
    for name in architectures:
        own = capability_of(name)
        plain, ptx = name.removesuffix("+PTX"), name.endswith("+PTX")
        if plain.endswith("a"):  # for this one alone, PTX too
            fits = own == device
        else:
            fits = own <= device and (own[0] == device[0] or (ptx and not plain.endswith("f")))
        if fits:
            return True
    return False


def gencode_flags(architectures: Iterable[str]) -> list[str]:
    flags = []
    for name in architectures:
        number = name.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if name.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


# --------------------------------------------------------------------------------------------------------- compiling


def compile_flags() -> list[str]:
    """No fast math, and no contraction: the kernels say fma where they mean it. torch's C++ standard does not matter
    here, where no torch header is seen."""
    host = "-fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden,-ffp-contract=off,-fno-fast-math"
    return ["-std=c++17", "-O3", "-fmad=false", "-Xcompiler", host]


def cuda_facts(nvcc: Nvcc | None, architectures: Iterable[str]) -> dict[str, str]:
    """What the kernels depend on beyond compilation.build_facts."""
    return {
        "nvcc": os.path.realpath(nvcc.path) if nvcc else "",
        "nvcc_version": nvcc.version if nvcc else "",
        "cuda_flags": shlex.join(compile_flags()),
        "architectures": " ".join(architectures),
    }


def link_flags(nvcc: Nvcc, objects: Iterable[Path]) -> list[str]:
    """The kernels' objects and the CUDA runtime as a static library, hidden from the one that torch loads."""
    runtime = ["-lcudart_static", "-ldl", "-lrt", "-lpthread", "-Wl,--exclude-libs,ALL"]
    return [*map(str, objects), f"-L{_runtime_directory(nvcc)}", *runtime]


def _runtime_directory(nvcc: Nvcc) -> str:
    """Where libcudart_static.a is, from nvcc itself: nvcc on the PATH may be a script far from its toolkit."""
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
    """The object files of every .cu, in `folder`, at most MAX_JOBS at a time; what nvcc printed in a .log beside each.

    Raises subprocess.CalledProcessError with the output of the first that fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # nvcc takes its host compiler by one file name; NVCC_CCBIN is nvcc's own setting.
    known = compiler is not None and len(compiler.command) == 1 and not os.environ.get("NVCC_CCBIN")
    flags = [*compile_flags(), *gencode_flags(architectures), *extra_flags]
    flags += ["-ccbin", compiler.command[0]] if compiler and known else []
    # nvcc has a shell read the paths that it is given: it runs in `folder`, and finds the sources by a link there.
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
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (folder / command[-1]).with_suffix(".log").write_bytes(done.stdout)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)

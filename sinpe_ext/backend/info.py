"""The account that backend_info() gives: for a person as text, for a program as a dictionary. Works without torch."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

from .._version import __version__
from . import build_cache, loader
from .compilation import BuildUnavailable
from .loader import DeviceBackend


@dataclass(frozen=True)
class BackendInfo:
    """Which backend serves which device and why, and the facts a bug report needs."""

    version: str
    torch: str | None
    python: str
    platform: str
    setting: str  # auto | compiled | eager
    devices: tuple[DeviceBackend, ...]
    instruction_set: str | None  # the CPU kernels' choice; None where none are loaded
    cuda_arithmetic: str | None  # of the CUDA kernels' float32 rows: double or single; None where none are loaded
    threads: int
    cache_dir: str
    core: bool  # the torch-free pybind11 module behind sinpe_ext.numpy
    core_reason: str

    def device(self, device_type: str) -> DeviceBackend:
        for found in self.devices:
            if found.device == device_type:
                return found
        return loader.resolve(device_type)

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        for found in fields["devices"]:  # a build is recorded as text: str(torch.version.cuda)
            found["build"] = {key: None if value == "None" else value for key, value in found["build"].items()}
        fields["devices"] = {found["device"]: found for found in fields["devices"]}
        return fields

    def __str__(self) -> str:
        lines = [
            f"sinpe_ext {self.version}, torch {self.torch or 'not installed'}, "
            f"Python {self.python}, {self.platform}, {self.threads} threads",
            f"setting: {self.setting}",
        ]
        for found in self.devices:
            lines.append(f"{found.device}: {found.backend} ({_indented(found.reason)})")
            if found.library:
                lines.append(f"    library: {found.library}")
            if found.build:
                lines.append(f"    {_how_built(found.build)}")
            if found.todo and found.backend != "compiled":
                lines.append(f"    to get the compiled backend: {found.todo}")
        lines.append(f"instruction set: {self.instruction_set or 'none loaded'}")
        if self.cuda_arithmetic:
            lines.append(f"CUDA arithmetic of float32 rows: {self.cuda_arithmetic}")
        lines.append(f"NumPy core: {'_core' if self.core else 'plain NumPy'} ({_indented(self.core_reason)})")
        lines.append(f"JIT cache: {self.cache_dir}")
        return "\n".join(lines)


def _how_built(facts: dict[str, Any]) -> str:
    text = f"built by {facts.get('compiler_version')} for torch {facts.get('torch')}"
    if "architectures" not in facts:
        return text
    nvcc = f" and nvcc {facts['nvcc_version']}" if facts.get("nvcc_version") else ""
    return text.replace(" for torch", f"{nvcc} for torch") + f", architectures {facts['architectures']}"


def _indented(text: str) -> str:
    return text.replace("\n", "\n        ")


def backend_info() -> BackendInfo:
    """What serves which device and why, how it was built, and what to do for more. Loads the CPU backend if need be."""
    setting = loader.setting()
    devices = [_under(setting, device) for device in ("cpu", "cuda")]
    devices += [found for name, found in loader.found().items() if name not in ("cpu", "cuda")]
    core, core_reason = loader.core_module()
    return BackendInfo(
        version=__version__,
        torch=_torch_version(),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        setting=setting,
        devices=tuple(devices),
        instruction_set=_instruction_set(devices[0], core),
        cuda_arithmetic=_cuda_arithmetic(devices[1]),
        threads=_threads(),
        cache_dir=_cache_directory(),
        core=core is not None,
        core_reason=core_reason,
    )


def _under(setting: str, device: str) -> DeviceBackend:
    """Under "eager" nothing is loaded for the sake of a report."""
    if setting != "eager" or _torch_version() is None:
        return loader.resolve(device)
    if loader.chosen_in_code():
        return DeviceBackend(device, "eager", 'chosen by use_backend("eager")', todo='use_backend("auto")')
    return DeviceBackend(device, "eager", "chosen by SINPE_EXT_BACKEND=eager", todo="unset SINPE_EXT_BACKEND")


def _torch_version() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return str(torch.__version__)


def _instruction_set(cpu: DeviceBackend, core: Any) -> str | None:
    if cpu.backend == "compiled":
        import torch

        return str(torch.ops.sinpe_ext.cpu_isa.default())
    return str(core.isa()) if core is not None else None


def _cuda_arithmetic(cuda: DeviceBackend) -> str | None:
    if cuda.backend != "compiled":
        return None
    import torch

    return str(torch.ops.sinpe_ext.cuda_arithmetic.default())


def _cache_directory() -> str:
    try:
        return str(build_cache.directory())
    except BuildUnavailable as error:
        return f"none: {error.reason}; {error.todo}"


def _threads() -> int:
    if _torch_version() is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    import torch

    return int(torch.get_num_threads())

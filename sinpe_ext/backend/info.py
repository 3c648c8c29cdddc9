"""`backend_info`: which backend runs on which device, as text and as a dictionary. Works without torch."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

from .._version import __version__
from . import jit, loader
from .loader import DeviceBackend
from .sources import BuildUnavailable


@dataclass(frozen=True)
class BackendInfo:
    """Which backend runs on which device and why, and what a bug report needs. `str()` gives a readable report.

    Attributes:
        version: version of sinpe_ext.
        torch: version of torch; None if it is not installed.
        python: version of Python.
        platform: operating system and machine, such as "Linux x86_64".
        setting: the backend that was chosen, "auto", "compiled" or "eager"; see `use_backend`.
        devices: one entry for the CPU, one for CUDA, and one for each other device type that was used. Each has the
            fields device, backend ("compiled", "eager", or "none" without torch), reason, how ("prebuilt", "jit" or
            "none"), library (its path), todo (how to get the compiled backend, if that is possible) and build (a dict
            with the compiler, its flags and the versions that the library was built with).
        instruction_set: instruction set of the CPU kernels, "default", "v3" or "v4"; None if no library is loaded.
        cuda_arithmetic: arithmetic of the CUDA kernels for float32, "double" or "single"; None if no library is loaded.
        threads: number of threads that the CPU kernels use.
        cache_dir: directory of libraries that are compiled on first use.
        core: whether the compiled module behind `sinpe_ext.numpy` is available.
        core_reason: where that module comes from, or why it is not available.
    """

    version: str
    torch: str | None
    python: str
    platform: str
    setting: str
    devices: tuple[DeviceBackend, ...]
    instruction_set: str | None
    cuda_arithmetic: str | None
    threads: int
    cache_dir: str
    core: bool
    core_reason: str

    def device(self, device_type: str) -> DeviceBackend:
        """Returns the entry of `devices` for a device type such as "cpu", "cuda" or "mps"."""
        for entry in self.devices:
            if entry.device == device_type:
                return entry
        return loader.resolve(device_type)

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields as a dict that can be written as JSON; `devices` is a dict by device type."""
        fields = asdict(self)
        fields["devices"] = {entry["device"]: entry for entry in fields["devices"]}
        return fields

    def __str__(self) -> str:
        lines = [
            f"sinpe_ext {self.version}, torch {self.torch or 'not installed'}, "
            f"Python {self.python}, {self.platform}, {self.threads} threads",
            f"setting: {self.setting}",
        ]
        for entry in self.devices:
            lines.append(f"{entry.device}: {entry.backend} ({_indented(entry.reason)})")
            if entry.library:
                lines.append(f"    library: {entry.library}")
            if entry.build:
                lines.append(f"    {_how_built(entry.build)}")
            if entry.todo and entry.backend != "compiled":
                lines.append(f"    to get the compiled backend: {entry.todo}")
        lines.append(f"instruction set: {self.instruction_set or 'none loaded'}")
        if self.cuda_arithmetic:
            lines.append(f"CUDA arithmetic of float32 rows: {self.cuda_arithmetic}")
        lines.append(f"NumPy core: {'_core' if self.core else 'plain NumPy'} ({_indented(self.core_reason)})")
        lines.append(f"JIT cache: {self.cache_dir}")
        return "\n".join(lines)


def _how_built(facts: dict[str, Any]) -> str:
    """A line on the compilers of a build and the versions that it was built for."""
    nvcc = f" and nvcc {facts['nvcc_version']}" if "nvcc_version" in facts else ""
    text = f"built by {facts.get('compiler_version')}{nvcc} for torch {facts.get('torch')}"
    return f"{text}, architectures {facts['architectures']}" if "architectures" in facts else text


def _indented(text: str) -> str:
    """Text whose further lines are indented for the report."""
    return text.replace("\n", "\n        ")


def backend_info() -> BackendInfo:
    """Returns which backend runs on which device, why, how it was built, and how to get the compiled one.

    Example:
        >>> print(sinpe.backend_info().device("cpu").backend)
        compiled

    The CPU and CUDA libraries are loaded if that was not tried before, which may compile them; with the setting "eager"
    nothing is loaded. `python -m sinpe_ext info` prints the same with the compilers and settings that were found.

    Returns:
        a `BackendInfo`; print it for a readable report.
    Raises:
        ValueError for an invalid value of SINPE_EXT_BACKEND.
    """
    setting = loader.setting()
    torch = _torch()
    cpu, cuda = (_under(setting, device, torch) for device in ("cpu", "cuda"))
    others = [backend for name, backend in loader.backends().items() if name not in ("cpu", "cuda")]
    core: Any
    core, core_reason = loader.core_module()
    try:
        cache_dir = str(jit.cache_path())
    except BuildUnavailable as error:
        cache_dir = f"none: {error.reason}; {error.todo}"
    instruction_set = core.isa() if core is not None else None  # of the module for NumPy
    return BackendInfo(
        version=__version__,
        torch=str(torch.__version__) if torch else None,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        setting=setting,
        devices=(cpu, cuda, *others),
        instruction_set=_fact(cpu, "cpu_isa") or instruction_set,
        cuda_arithmetic=_fact(cuda, "cuda_arithmetic"),
        threads=torch.get_num_threads() if torch else os.cpu_count() or 1,
        cache_dir=cache_dir,
        core=core is not None,
        core_reason=core_reason,
    )


def _torch() -> Any:
    """The module torch, None if it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def _under(setting: str, device: str, torch: Any) -> DeviceBackend:
    """The backend of a device under a setting. Under "eager" no library is loaded for the report."""
    if setting != "eager" or torch is None:
        return loader.resolve(device)
    if loader.chosen_in_code():
        return DeviceBackend(device, "eager", 'chosen by use_backend("eager")', todo='use_backend("auto")')
    return DeviceBackend(device, "eager", "chosen by SINPE_EXT_BACKEND=eager", todo="unset SINPE_EXT_BACKEND")


def _fact(device: DeviceBackend, name: str) -> str | None:
    """What the operator of this name says about the loaded library of a device; None if no library is loaded."""
    if device.backend != "compiled":
        return None
    import torch

    return str(getattr(torch.ops.sinpe_ext, name).default())

"""Which implementation serves which device: found on first use, never at import, and remembered with its reason.

Order: ``use_backend`` or SINPE_EXT_BACKEND, then the library built at install time, then one compiled now
(``_jit.py``), then eager PyTorch. A failure is remembered as well, so that it costs once.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _build
from ._build import MIN_TORCH_COMPILED, BuildUnavailable

if TYPE_CHECKING:
    from ._backend_info import BackendInfo

SETTINGS = ("auto", "compiled", "eager")
OPS = "sinpe_ext"
PACKAGE = Path(__file__).resolve().parent


class BackendUnavailableError(RuntimeError):
    """The compiled backend was demanded and is not to be had; the message says why and what to do."""


@dataclass(frozen=True)
class DeviceBackend:
    """What serves one kind of device, and why."""

    device: str
    backend: str  # compiled | eager | none (no torch)
    reason: str
    how: str = "none"  # prebuilt | jit | none
    library: str | None = None
    todo: str = ""  # how to get the compiled backend, where that is possible
    build: dict[str, Any] = field(default_factory=dict)  # sources, flags, compiler, torch, ... of the library


last_error: BuildUnavailable | None = None  # why the last attempt at a library failed

_lock = threading.RLock()
_setting: str | None = None  # None: SINPE_EXT_BACKEND decides
_found: dict[str, DeviceBackend] = {}  # what loading gave, whatever the setting
_choices: dict[str, bool] = {}  # device type -> compiled?, under the present setting
_warned = False


def _new_lock_after_fork() -> None:
    """A child forked while another thread was loading would wait for a thread that it does not have."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock_after_fork)


def compiled(device_type: str) -> bool:
    """Whether the compiled kernels serve this kind of device. Loads on first use; a dictionary look-up after that."""
    try:
        return _choices[device_type]
    except KeyError:
        return _choose(device_type)


def setting() -> str:
    """auto, compiled or eager: what use_backend said last, else SINPE_EXT_BACKEND."""
    if _setting is not None:
        return _setting
    chosen = os.environ.get("SINPE_EXT_BACKEND") or "auto"
    if chosen not in SETTINGS:
        raise ValueError(f"SINPE_EXT_BACKEND: expected one of {', '.join(SETTINGS)}, got {chosen!r}")
    return chosen


class use_backend:
    """Choose the implementation for the whole process: "auto", "compiled" or "eager".

    ``use_backend("eager")`` sets it for good; ``with use_backend("eager"):`` restores the previous choice at the end.
    "compiled" raises BackendUnavailableError, here for the CPU and at first use for another device, where "auto" would
    quietly run eager PyTorch. The results are the same bits either way.
    """

    def __init__(self, name: str):
        if name not in SETTINGS:
            raise ValueError(f"name: expected one of {', '.join(SETTINGS)}, got {name!r}")
        if name == "compiled":
            _demand("cpu")
        self.name = name
        self._previous = _setting
        _set(name)

    def __enter__(self) -> use_backend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _set(self._previous)

    def __repr__(self) -> str:
        return f"use_backend({self.name!r})"


def _set(name: str | None) -> None:
    global _setting, _choices
    _setting = name
    _choices = {}  # a new dictionary: a thread still choosing under the old setting fills the old one


def _choose(device_type: str) -> bool:
    choices, wanted = _choices, setting()
    if wanted == "eager" or device_type == "meta":
        answer = False
    elif wanted == "compiled":
        answer = _demand(device_type)
    else:
        answer = resolve(device_type).backend == "compiled"
    choices[device_type] = answer
    return answer


def _demand(device_type: str) -> bool:
    found = resolve(device_type)
    if found.backend != "compiled":
        todo = f"; {found.todo}" if found.todo else '; use_backend("auto") runs eager PyTorch instead'
        raise BackendUnavailableError(
            f"the compiled backend is demanded, but {device_type} devices have none: {found.reason}{todo}"
        )
    return True


def resolve(device_type: str) -> DeviceBackend:
    """What "auto" gives for this kind of device, loading the library if it was not tried yet."""
    found = _found.get(device_type)
    if found is None:
        with _lock:
            found = _found.get(device_type)
            if found is None:
                found = _load_cpu() if device_type == "cpu" else _without_kernels(device_type)
                _found[device_type] = found
                _warn_once()
    return found


def _without_kernels(device_type: str) -> DeviceBackend:
    if device_type == "meta":
        return DeviceBackend(device_type, "eager", "meta tensors hold no data")
    name = "CUDA" if device_type == "cuda" else device_type
    return DeviceBackend(device_type, "eager", f"this version has no {name} kernels; eager PyTorch runs on the device")


def _load_cpu(verbose: bool = False) -> DeviceBackend:
    try:
        import torch
    except ImportError as error:
        return DeviceBackend("cpu", "none", f"torch cannot be imported: {error}", todo="pip install torch")
    oldest = ".".join(map(str, MIN_TORCH_COMPILED))
    if _build.parse_version(str(torch.__version__)) < MIN_TORCH_COMPILED:
        reason = f"torch {torch.__version__} is older than {oldest}, the oldest that the kernels run on"
        return DeviceBackend("cpu", "eager", reason, todo=f'pip install "torch>={oldest}"')
    if sys.platform == "win32":
        return DeviceBackend("cpu", "eager", "no kernels are built on Windows yet")
    try:
        return _load_prebuilt()
    except BuildUnavailable as error:
        no_prebuilt = error.reason
        _note(error)
    if os.environ.get("SINPE_EXT_JIT", "1") == "0":
        reason = f"{no_prebuilt}; compiling on first use is switched off (SINPE_EXT_JIT=0)"
        return DeviceBackend("cpu", "eager", reason, todo="unset SINPE_EXT_JIT or reinstall with a C++ compiler")
    from . import _jit

    try:
        path, facts = _jit.library("cpu", _load_library, verbose)
    except BuildUnavailable as error:
        _note(error)
        return DeviceBackend("cpu", "eager", f"{no_prebuilt}; compiling on first use: {error.reason}", todo=error.todo)
    return DeviceBackend("cpu", "compiled", f"{no_prebuilt}; compiled on first use", "jit", str(path), build=facts)


def _load_prebuilt(package: Path = PACKAGE) -> DeviceBackend:
    """The library that setup.py built, unless the sources have changed since."""
    manifest = _build.read_json(package / _build.MANIFEST)
    built = manifest.get("libraries", {}).get("cpu")
    if not built:
        raise BuildUnavailable(str(manifest.get("reason") or "nothing was built at install time"))
    path = package / built["file"]
    if not path.is_file():
        raise BuildUnavailable(f"the prebuilt library {path} is gone")
    root = _build.source_root(package)
    if root is not None and _build.source_hash("cpu", root) != built["sources"]:
        raise BuildUnavailable("the prebuilt library is older than the sources")
    try:
        _load_library(path)
    except OSError as error:
        raise BuildUnavailable(f"the prebuilt library (built for torch {built.get('torch')}) fails: {error}") from error
    return DeviceBackend("cpu", "compiled", "built at install time", "prebuilt", str(path), build=built)


def _load_library(path: Path) -> None:
    """Load implementations of the ops that _ops.py declares, and make sure that they are there."""
    import torch

    from . import _ops  # noqa: F401  (schemas first: the library holds implementations only)

    torch.ops.load_library(str(path))
    has_kernel = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
    if has_kernel is not None and not has_kernel(f"{OPS}::table", "CPU"):
        raise BuildUnavailable(f"{path} loads, but holds no CPU kernel for {OPS}::table", "reinstall sinpe_ext")


def _note(error: BuildUnavailable) -> None:
    global last_error
    last_error = error


def _warn_once() -> None:
    """Only a build that failed is worth a warning; a missing compiler is a reason in backend_info()."""
    global _warned
    if last_error is not None and last_error.failed and not _warned:
        _warned = True
        warnings.warn(
            f"sinpe_ext runs eager PyTorch: {last_error.reason}\n{last_error.todo}", UserWarning, stacklevel=4
        )


def build(device: str = "cpu", verbose: bool = False) -> str:
    """Load the compiled backend, compiling it if need be, and return its path: ``python -m sinpe_ext build``.

    Raises BackendUnavailableError with the reason where that does not work. An earlier failure is tried again.
    """
    with _lock:
        if device == "cpu" and _is_missing("cpu"):
            _found["cpu"] = _load_cpu(verbose)
            _choices.pop("cpu", None)
        _demand(device)
        return str(resolve(device).library)


def found() -> dict[str, DeviceBackend]:
    """What was resolved so far, by device type."""
    return dict(_found)


def _is_missing(device_type: str) -> bool:
    """Whether this device was not tried yet, or was tried in vain."""
    found = _found.get(device_type)
    return found is None or found.backend != "compiled"


def core_module() -> tuple[object | None, str]:
    """The torch-free pybind11 module _core, or None, with the reason. Older than the sources counts as absent."""
    manifest = _build.read_json(PACKAGE / _build.MANIFEST)
    built = manifest.get("libraries", {}).get("core")
    root = _build.source_root(PACKAGE)
    if built and root is not None and _build.source_hash("core", root) != built["sources"]:
        return None, "_core is older than the sources; reinstall sinpe_ext"
    try:
        from . import _core  # type: ignore[attr-defined]
    except ImportError as error:
        why = manifest.get("core_reason") or manifest.get("reason")
        return None, why or (f"_core cannot be imported: {error}" if built else "nothing was built at install time")
    return _core, "built at install time"


def backend_info() -> BackendInfo:
    """What serves which device and why, how it was built, and what to do for more. Loads the CPU backend if need be."""
    from ._backend_info import collect

    return collect()

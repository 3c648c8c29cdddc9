"""Selects the implementation for each device type, on first use and not at import, and keeps the reason.

Order: ``use_backend`` or SINPE_EXT_BACKEND, then the library built at install time, then one in the cache or compiled
now (``backend/jit.py``), then eager PyTorch. The result is cached, a failure too, so that no attempt is repeated.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from . import jit, sources
from .registration import fragment, once
from .sources import BuildUnavailable

SETTINGS = ("auto", "compiled", "eager")
DISPATCH_KEYS = {"cpu": "CPU", "cuda": "CUDA"}  # the devices for which there are kernels
DLPACK_DEVICES = {"cpu": 1, "cuda": 2}  # DLDeviceType
OPS = "sinpe_ext"
PACKAGE = Path(__file__).resolve().parent.parent


class BackendUnavailableError(RuntimeError):
    """Raised if the compiled backend is required and not available. The message says why and what to do."""


@dataclass(frozen=True)
class DeviceBackend:
    """The backend of one device type, and the reason for it."""

    device: str
    backend: str  # compiled | eager | none (no torch)
    reason: str
    how: str = "none"  # prebuilt | jit | emulated (tests) | none
    library: str | None = None
    todo: str = ""  # how to get the compiled backend, where that is possible
    build: dict[str, Any] = field(default_factory=dict)  # sources, flags, compiler, torch, ... of the library


_lock = threading.RLock()
_setting: str | None = None  # None: SINPE_EXT_BACKEND decides
_backends: dict[str, DeviceBackend] = {}  # device type -> result of loading, independent of the setting
set_up_repetition: Callable[[Any], bool] | None = None  # of operations/repetition.py: whether _core can be used


class DeviceTypes(dict[str, bool]):
    """Device type -> whether the compiled kernels serve it under the current setting, determined on first use."""

    def __missing__(self, device_type: str) -> bool:
        answer = self[device_type] = _is_compiled(device_type)
        return answer


uses_kernels = DeviceTypes()


def _find_repeat(function: int, arguments: tuple[Any, ...]) -> Any:
    """`repeat` before its first call: finds the module _core."""
    global repeat, keep
    module = _repetition_module()
    repeat, keep = (_repeat_nothing, None) if module is None else (module.repeat, module.keep)
    return repeat(function, arguments)


def _repeat_nothing(function: int, arguments: tuple[Any, ...]) -> None:
    """`repeat` without the module _core."""


# Of _core (csrc/pybind/repeat.h): `repeat` returns the result of a call that is like one that `keep` has kept, or None.
repeat: Callable[[int, tuple[Any, ...]], Any] = _find_repeat
keep: Callable[..., bool] | None = None


def _new_lock_after_fork() -> None:
    """Replaces the lock in a forked child: a thread that held it in the parent does not exist there to release it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock_after_fork)


def compiled(device_type: str) -> bool:
    """Whether the compiled kernels serve this device type. Loads the library on first use; later a dict lookup."""
    return uses_kernels[device_type]


def setting() -> str:
    """The current setting, "auto", "compiled" or "eager": that of use_backend, otherwise SINPE_EXT_BACKEND."""
    if _setting is not None:
        return _setting
    chosen = os.environ.get("SINPE_EXT_BACKEND") or "auto"
    if chosen not in SETTINGS:
        raise ValueError(f"SINPE_EXT_BACKEND: expected one of {', '.join(SETTINGS)}, got {chosen!r}")
    return chosen


def chosen_in_code() -> bool:
    """Whether the setting comes from use_backend and not from SINPE_EXT_BACKEND."""
    return _setting is not None


class use_backend:
    """Selects the backend for the whole process, as a function or as a context manager.

    Example:
        >>> sinpe.use_backend("compiled")  # from now on
        use_backend('compiled')
        >>> with sinpe.use_backend("eager"):  # inside the block
        ...     pe = sinpe.table(4096, 512)

    The call sets the backend at once, as torch.set_grad_enabled sets the grad mode; the end of a with block restores
    what was set before the call. The same object can be used for further blocks, each of which sets the backend again.

    float32, bfloat16 and float16 results on the CPU have the same bits with either backend.

    Args:
        name: "auto": the compiled kernels if they are available for the device, otherwise eager PyTorch; "compiled":
            the compiled kernels, or an error if they are not available; "eager": eager PyTorch. It takes precedence
            over the environment variable SINPE_EXT_BACKEND.
    Raises:
        ValueError for another name; BackendUnavailableError for "compiled", if there is no compiled backend for the CPU
        here, and if there is none for another device at the first call on that device.
    """

    def __init__(self, name: str):
        if name not in SETTINGS:
            raise ValueError(
                f"name: expected one of {', '.join(SETTINGS)}, got {name!r}; the device is that of the tensors"
            )
        if name == "compiled":
            _require_compiled("cpu")
        self.name = name
        self._before: list[str | None] = [_setting]  # the settings to restore, the last one first
        self._is_set = True
        _set(name)

    def __enter__(self) -> use_backend:
        if not self._is_set:
            self._before.append(_setting)
        self._is_set = False
        _set(self.name)  # again: the backend may have been set since the call
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _set(self._before.pop())

    def __repr__(self) -> str:
        return f"use_backend({self.name!r})"


def _set(name: str | None) -> None:
    """Sets the backend and forgets what was determined under the previous setting."""
    global _setting, uses_kernels, repeat, keep
    # A new dict: a thread that is still determining something under the old setting writes to the old one.
    _setting, uses_kernels, repeat, keep = name, DeviceTypes(), _find_repeat, None


def _is_compiled(device_type: str) -> bool:
    """Whether the compiled kernels serve a device type under the current setting. Loads the library on first use."""
    wanted = setting()
    if wanted == "eager" or device_type == "meta":
        return False
    if wanted == "compiled":
        return _require_compiled(device_type)
    return resolve(device_type).backend == "compiled"


def _require_compiled(device_type: str) -> bool:
    """True if the compiled kernels serve this device type. Raises BackendUnavailableError otherwise."""
    backend = resolve(device_type)
    if backend.backend != "compiled":
        todo = f"; {backend.todo}" if backend.todo else '; use_backend("auto") runs eager PyTorch instead'
        raise BackendUnavailableError(
            f"the compiled backend is required, but {device_type} devices have none: {backend.reason}{todo}"
        )
    return True


def resolve(device_type: str) -> DeviceBackend:
    """The backend that "auto" selects for this device type. Loads the library if that was not tried yet."""
    backend = _backends.get(device_type)
    if backend is None:
        with _lock:
            backend = _backends.get(device_type)
            if backend is None:
                if device_type in DISPATCH_KEYS:
                    backend = _load(device_type)
                else:
                    reason = f"there are no {device_type} kernels; eager PyTorch runs on the device"
                    backend = DeviceBackend(device_type, "eager", reason)
                _backends[device_type] = backend
    return backend


def _load(device: str, verbose: bool = False, may_compile: bool = False) -> DeviceBackend:
    """Loads the prebuilt library, or one from the cache, or compiles it; on failure the eager backend with the reason.

    With SINPE_EXT_JIT=0, compiles only if may_compile. Warns if a build failed. A missing compiler is only a reason in
    backend_info().
    """
    try:
        sources.check_torch(device)
    except ImportError as error:
        return DeviceBackend(device, "none", f"torch cannot be imported: {error}", todo="pip install torch")
    except BuildUnavailable as error:
        return DeviceBackend(device, "eager", error.reason, todo=error.todo)
    _check_variable("SINPE_EXT_JIT", "0", "1")
    _check_variable("SINPE_EXT_CUDA_ARITHMETIC", "single", "double")
    try:
        return _load_prebuilt(device)
    except BuildUnavailable as error:
        no_prebuilt = error.reason
    try:
        may_compile = may_compile or os.environ.get("SINPE_EXT_JIT") != "0"
        path, facts = jit.library(device, no_prebuilt, may_compile, verbose)
        try:
            _load_library(path, device)
        except OSError as error:
            raise BuildUnavailable(f"{path} does not load: {error}", f"delete {path.parent} and try again") from error
    except BuildUnavailable as error:
        if error.failed:
            text = f"sinpe_ext runs eager PyTorch on {device} devices: {error.reason}\n{error.todo}"
            warnings.warn(text, UserWarning, stacklevel=4)
        return DeviceBackend(device, "eager", f"{no_prebuilt}; compiling on first use: {error.reason}", todo=error.todo)
    reason = f"{no_prebuilt}; compiled into the JIT cache"
    return DeviceBackend(device, "compiled", reason, "jit", str(path), build=facts)


def _check_variable(name: str, *values: str) -> None:
    """Raises ValueError if an environment variable is set to another value, which would have no effect."""
    chosen = os.environ.get(name, "")
    if chosen not in ("", *values):
        raise ValueError(f"{name}: expected {' or '.join(values)}, got {chosen!r}; unset it")


def _load_prebuilt(device: str, package: Path = PACKAGE) -> DeviceBackend:
    """Loads the library that setup.py built. Raises BuildUnavailable if there is none, or if it does not fit.

    It does not fit if it was built from other sources, or (CUDA) for another CUDA version or other devices.
    """
    manifest = sources.read_json(package / sources.MANIFEST)
    built = manifest.get("libraries", {}).get(device)
    if not built:
        reason = manifest.get("cuda_reason") if device == "cuda" else None
        raise BuildUnavailable(str(reason or manifest.get("reason") or "nothing was built at install time"))
    path = package / built["file"]
    if not path.is_file():
        raise BuildUnavailable(f"the prebuilt library {path} does not exist")
    root = sources.source_root(package)
    if root is not None and sources.source_hash(device, root) != built["sources"]:
        raise BuildUnavailable("the prebuilt library was built from other sources")
    if device == "cuda":
        _check_cuda_build(built)
    try:
        _load_library(path, device)
    except OSError as error:
        raise BuildUnavailable(f"the prebuilt library (built for torch {built.get('torch')}) fails: {error}") from error
    return DeviceBackend(device, "compiled", "built at install time", "prebuilt", str(path), build=built)


def _check_cuda_build(built: dict[str, Any]) -> None:
    """Raises BuildUnavailable if a prebuilt CUDA library is of another CUDA major version than torch, or has no code
    for a visible device."""
    import torch

    cuda = str(built.get("cuda"))
    if cuda.split(".")[0] != str(torch.version.cuda).split(".")[0]:
        raise BuildUnavailable(f"the prebuilt library is of CUDA {cuda}, and torch of CUDA {torch.version.cuda}")
    for capability in sources.device_capabilities():
        if not sources.has_code_for(built["architectures"], capability):
            raise BuildUnavailable(
                "the prebuilt library holds no code for a device of compute capability {}.{}, but for {}".format(
                    *capability, built["architectures"]
                )
            )


def _load_library(path: Path, device: str = "cpu") -> None:
    """Loads a library of kernels and checks that they were registered; `ops` may define the schemas later."""
    import torch

    _define_facts()
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise OSError(str(error.__cause__ or error)) from error  # the reason is in the cause of torch's exception
    has_kernel = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
    key = DISPATCH_KEYS[device]
    if has_kernel is not None and not has_kernel(f"{OPS}::table", key):
        raise BuildUnavailable(f"{path} loads, but holds no {key} kernel for {OPS}::table", "reinstall sinpe_ext")
    _share_kernels(path, device)


def _share_kernels(path: Path, device: str) -> None:
    """Passes a loaded library's function pointers (csrc/core/kernels.h) to the module _core, if that is built."""
    module: Any = core_module()[0]
    kernels = getattr(ctypes.CDLL(str(path)), "sinpe_kernels", None)  # not an operator, which a tracer would record
    if module is not None and kernels is not None:
        kernels.restype = ctypes.c_void_p
        module.set_kernels(DLPACK_DEVICES[device], kernels())


def _define_facts() -> None:
    """Defines the operators that return the instruction set (CPU) and the arithmetic (CUDA) of a loaded library."""

    def define() -> Any:
        library = fragment(OPS)
        library.define("cpu_isa() -> str")
        library.define("cuda_arithmetic() -> str")  # of float32 rows on the current device: double or single
        return library

    once("facts", define)


def build(device: str = "cpu", verbose: bool = False) -> str:
    """Loads the compiled backend, compiling it if necessary, and returns its path: ``python -m sinpe_ext build``.

    Tries again after an earlier failure. Raises BackendUnavailableError with the reason if it fails.
    """
    with _lock:
        if device in DISPATCH_KEYS and (device not in _backends or _backends[device].backend != "compiled"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the error says the same
                _backends[device] = _load(device, verbose, may_compile=True)
            uses_kernels.pop(device, None)
        _require_compiled(device)
        return str(resolve(device).library)


def buildable() -> list[str]:
    """The device types to build for here: the CPU, and CUDA if torch supports it and the architectures are known."""
    try:
        sources.check_torch("cuda")
        sources.architectures()
    except (ImportError, BuildUnavailable):
        return ["cpu"]
    return ["cpu", "cuda"]


def backends() -> dict[str, DeviceBackend]:
    """The backends that were resolved so far, by device type."""
    return dict(_backends)


def _repetition_module() -> Any:
    """The module _core, which has forgotten all calls, or None if it cannot be used.

    It can be used if the compiled backend serves the CPU, not with a library compiled on first use, and
    `set_up_repetition(module)` returns True.
    """
    module: Any = core_module()[0] if compiled("cpu") and resolve("cpu").how != "jit" else None
    if module is None or set_up_repetition is None or not set_up_repetition(module):
        return None
    module.forget()
    return module


def core_module() -> tuple[object | None, str]:
    """(module, reason): the pybind11 module _core, which needs no torch, or None if it is missing or out of date."""
    manifest = sources.read_json(PACKAGE / sources.MANIFEST)
    built = manifest.get("libraries", {}).get("core")
    root = sources.source_root(PACKAGE)
    if not built:
        return None, manifest.get("core_reason") or manifest.get("reason") or "nothing was built at install time"
    if root is not None and sources.source_hash("core", root) != built["sources"]:
        return None, "_core was built from other sources; reinstall sinpe_ext"
    try:
        from .. import _core  # type: ignore[attr-defined]
    except ImportError as error:
        return None, f"_core cannot be imported: {error}"
    return _core, "built at install time"

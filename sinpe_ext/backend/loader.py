"""Which implementation serves which device: found on first use, never at import, and remembered with its reason.

Order: ``use_backend`` or SINPE_EXT_BACKEND, then the library built at install time, then one compiled now
(``backend/jit.py``), then eager PyTorch. A failure is remembered as well, so that it costs once.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from opcode import opname
from pathlib import Path
from types import TracebackType
from typing import Any

from ..runtime.registration import fragment, interrupts_held
from . import compilation, cuda_compiler
from .compilation import MIN_TORCH_COMPILED, BuildUnavailable

SETTINGS = ("auto", "compiled", "eager")
DISPATCH_KEYS = {"cpu": "CPU", "cuda": "CUDA"}  # the devices for which there are kernels
OPS = "sinpe_ext"
PACKAGE = Path(__file__).resolve().parent.parent


class BackendUnavailableError(RuntimeError):
    """The compiled backend was demanded and is not to be had; the message says why and what to do."""


@dataclass(frozen=True)
class DeviceBackend:
    """What serves one kind of device, and why."""

    device: str
    backend: str  # compiled | eager | none (no torch)
    reason: str
    how: str = "none"  # prebuilt | jit | emulated (tests) | none
    library: str | None = None
    todo: str = ""  # how to get the compiled backend, where that is possible
    build: dict[str, Any] = field(default_factory=dict)  # sources, flags, compiler, torch, ... of the library


_lock = threading.RLock()
_setting: str | None = None  # None: SINPE_EXT_BACKEND decides
_found: dict[str, DeviceBackend] = {}  # what loading gave, whatever the setting
choices: dict[str, Any] = {}  # device type -> compiled?, and what small_calls gives, under the present setting
_errors: dict[str, BuildUnavailable] = {}  # device type -> why the last attempt at a library failed
_warned: set[str] = set()


def _new_lock_after_fork() -> None:
    """A child forked while another thread was loading would wait for a thread that it does not have."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock_after_fork)


def compiled(device_type: str) -> bool:
    """Whether the compiled kernels serve this kind of device. Loads on first use; a dictionary look-up after that."""
    try:
        answer: bool = choices[device_type]
        return answer
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


def chosen_in_code() -> bool:
    """Whether use_backend decides, and not SINPE_EXT_BACKEND."""
    return _setting is not None


class use_backend:
    """Choose the implementation for the whole process: "auto", "compiled" or "eager".

    ``use_backend("eager")`` sets it at once and for good. ``with use_backend("eager"):`` sets it as the block is
    entered and restores the choice before at its end, so that Ctrl-C before the block changes nothing (it still can as
    `__exit__` is called, at the very end). An object that was kept has set it already; a block of it sets it again, and
    at its end there is what was before.
    "compiled" raises BackendUnavailableError, here for the CPU and at first use for another device, where "auto" would
    quietly run eager PyTorch. The results are the same bits either way.
    """

    def __init__(self, name: str):
        if name not in SETTINGS:
            raise ValueError(f"name: expected one of {', '.join(SETTINGS)}, got {name!r}")
        if name == "compiled":
            _demand("cpu")
        self.name = name
        self._before: list[str | None] = []  # what to restore, for each block of this object that is open
        self._set_by_call = not _is_with_expression()
        if self._set_by_call:
            self._before.append(_setting)
            _set(name)

    def __enter__(self) -> use_backend:
        if self._set_by_call:
            self._set_by_call = False  # the first block restores what was before the call
        else:
            self._before.append(_setting)
        try:
            _set(self.name)
            return self
        except BaseException:  # Ctrl-C, before the block that would restore it
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _setting, choices
        _setting, choices = self._before[-1], {}  # first of all, and no call: Python looks for signals in calls
        del self._before[-1]

    def __repr__(self) -> str:
        return f"use_backend({self.name!r})"


def _is_with_expression() -> bool:
    """Whether the caller of use_backend is a with statement, which is what its next instruction is then.

    False where that is not seen (torch.compile traces, `with a if b else c`): the choice is made by the call.
    """
    compiler = getattr(sys.modules.get("torch"), "compiler", None)  # none while another thread imports torch
    if getattr(compiler, "is_compiling", bool)():
        return False
    frame = sys._getframe(1).f_back
    if frame is None:  # called from C
        return False
    following = frame.f_code.co_code[frame.f_lasti + 2 : frame.f_lasti + 18 : 2]
    names = [opname[operation] for operation in following if opname[operation] != "CACHE"]
    # Python 3.10; 3.11 to 3.13; 3.14.
    return names[:1] in (["SETUP_WITH"], ["BEFORE_WITH"]) or names[:2] == ["COPY", "LOAD_SPECIAL"]


def _set(name: str | None) -> None:
    global _setting, choices
    # A new dictionary: a thread still choosing under the old setting fills the old one. One statement, which a signal
    # does not divide.
    _setting, choices = name, {}


def _choose(device_type: str) -> bool:
    chosen, wanted = choices, setting()
    if wanted == "eager" or device_type == "meta":
        answer = False
    elif wanted == "compiled":
        answer = _demand(device_type)
    else:
        answer = resolve(device_type).backend == "compiled"
    chosen[device_type] = answer
    return answer


def _demand(device_type: str) -> bool:
    found = resolve(device_type)
    if found.backend != "compiled":
        todo = f"; {found.todo}" if found.todo else '; use_backend("auto") runs eager PyTorch instead'
        raise BackendUnavailableError(
            f"the compiled backend is demanded, but {device_type} devices have none: {found.reason}{todo}"
        )
    return True


def emulate() -> DeviceBackend:
    """For tests and tools: the CUDA kernels compiled as plain C++ serve the CPU, from before its library is loaded.

    Raises: BuildUnavailable where they cannot be compiled.
    """
    from . import jit

    if "cpu" not in _found:
        path, facts = jit.library("emulated", _load_library)
        reason = "the CUDA kernels, compiled as C++"
        _found["cpu"] = DeviceBackend("cpu", "compiled", reason, "emulated", str(path), build=facts)
    if _found["cpu"].how != "emulated":
        raise BuildUnavailable("the CPU library is loaded already", "emulate before any call of sinpe_ext")
    return _found["cpu"]


def resolve(device_type: str) -> DeviceBackend:
    """What "auto" gives for this kind of device, loading the library if it was not tried yet."""
    found = _found.get(device_type)
    if found is None:
        with _lock:
            found = _found.get(device_type)
            if found is None:
                found = _load(device_type) if device_type in DISPATCH_KEYS else _without_kernels(device_type)
                _found[device_type] = found
                _warn_once(device_type)
    return found


def _without_kernels(device_type: str) -> DeviceBackend:
    if device_type == "meta":
        return DeviceBackend(device_type, "eager", "meta tensors hold no data")
    return DeviceBackend(device_type, "eager", f"there are no {device_type} kernels; eager PyTorch runs on the device")


def _load(device: str, verbose: bool = False) -> DeviceBackend:
    try:
        import torch
    except ImportError as error:
        return DeviceBackend(device, "none", f"torch cannot be imported: {error}", todo="pip install torch")
    oldest = ".".join(map(str, MIN_TORCH_COMPILED))
    if compilation.parse_version(str(torch.__version__)) < MIN_TORCH_COMPILED:
        reason = f"torch {torch.__version__} is older than {oldest}, the oldest that the kernels run on"
        return DeviceBackend(device, "eager", reason, todo=f'pip install "torch>={oldest}"')
    if sys.platform == "win32":
        return DeviceBackend(device, "eager", "no kernels are built on Windows yet")
    if device == "cuda":
        missing = cuda_compiler.no_cuda_torch(str(torch.__version__), torch.version.cuda, torch.version.hip)
        if missing:
            return DeviceBackend(device, "eager", missing.reason, todo=missing.todo)
        _check_arithmetic()
    try:
        return _load_prebuilt(device)
    except BuildUnavailable as error:
        no_prebuilt = error.reason
        _note(device, error)
    if os.environ.get("SINPE_EXT_JIT", "1") == "0":
        reason = f"{no_prebuilt}; compiling on first use is switched off (SINPE_EXT_JIT=0)"
        tools = "nvcc" if device == "cuda" else "a C++ compiler"
        return DeviceBackend(device, "eager", reason, todo=f"unset SINPE_EXT_JIT or reinstall with {tools}")
    if device == "cuda" and not _names_architectures() and not torch.cuda.is_available():
        reason = f"{no_prebuilt}; no CUDA device is visible, and TORCH_CUDA_ARCH_LIST names none to compile for"
        return DeviceBackend(device, "eager", reason, todo="make a device visible or set TORCH_CUDA_ARCH_LIST")
    from . import jit

    try:
        path, facts = jit.library(device, lambda path: _load_library(path, device), verbose)
    except BuildUnavailable as error:
        _note(device, error)
        return DeviceBackend(device, "eager", f"{no_prebuilt}; compiling on first use: {error.reason}", todo=error.todo)
    return DeviceBackend(device, "compiled", f"{no_prebuilt}; compiled on first use", "jit", str(path), build=facts)


def _names_architectures() -> bool:
    """Whether TORCH_CUDA_ARCH_LIST says what to compile for; blanks and separators say nothing."""
    return bool(os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip(" \t\n,;"))


def _check_arithmetic() -> None:
    """Before the library, which takes what it does not know for the device's own choice."""
    chosen = os.environ.get("SINPE_EXT_CUDA_ARITHMETIC", "")
    if chosen not in ("", "single", "double"):
        raise ValueError(f"SINPE_EXT_CUDA_ARITHMETIC: expected single, double or nothing, got {chosen!r}; unset it")


def _load_prebuilt(device: str, package: Path = PACKAGE) -> DeviceBackend:
    """The library that setup.py built, unless the sources have changed since or a visible device is none of its own."""
    manifest = compilation.read_json(package / compilation.MANIFEST)
    built = manifest.get("libraries", {}).get(device)
    if not built:
        reason = manifest.get("cuda_reason") if device == "cuda" else None
        raise BuildUnavailable(str(reason or manifest.get("reason") or "nothing was built at install time"))
    path = package / built["file"]
    if not path.is_file():
        raise BuildUnavailable(f"the prebuilt library {path} is gone")
    if compilation.is_cut_short(path):
        raise BuildUnavailable(f"the prebuilt library {path} is damaged: its end is missing")
    root = compilation.source_root(package)
    if root is not None and compilation.source_hash(device, root) != built["sources"]:
        raise BuildUnavailable("the prebuilt library is older than the sources")
    if device == "cuda":
        _suits_cuda(built)
    try:
        _load_library(path, device)
    except OSError as error:
        raise BuildUnavailable(f"the prebuilt library (built for torch {built.get('torch')}) fails: {error}") from error
    return DeviceBackend(device, "compiled", "built at install time", "prebuilt", str(path), build=built)


def _suits_cuda(built: dict[str, Any]) -> None:
    """Whether a prebuilt CUDA library has code for the devices here, and the CUDA of this torch."""
    import torch

    from . import jit

    cuda = str(built.get("cuda"))
    if cuda.split(".")[0] != str(torch.version.cuda).split(".")[0]:
        raise BuildUnavailable(f"the prebuilt library is of CUDA {cuda}, and torch of CUDA {torch.version.cuda}")
    for capability in jit.device_capabilities():
        if not cuda_compiler.serves(built["architectures"].split(), capability):
            raise BuildUnavailable(
                "the prebuilt library holds no code for a device of compute capability {}.{}, but for {}".format(
                    *capability, built["architectures"]
                )
            )


def _load_library(path: Path, device: str = "cpu") -> None:
    """Load the kernels of the operators and make sure that they are there; `ops` may define the schemas later."""
    import torch

    _define_facts()
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise OSError(str(error.__cause__ or error)) from error  # torch keeps why in the cause
    has_kernel = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
    key = DISPATCH_KEYS[device]
    if has_kernel is not None and not has_kernel(f"{OPS}::table", key):
        raise BuildUnavailable(f"{path} loads, but holds no {key} kernel for {OPS}::table", "reinstall sinpe_ext")


@functools.cache
def _define_facts() -> None:
    """Defines the operators by which a loaded library tells its instruction set (CPU) and its arithmetic (CUDA)."""
    with interrupts_held():
        library = fragment(OPS)
        library.define("cpu_isa() -> str")
        library.define("cuda_arithmetic() -> str")  # of float32 rows on the current device: double or single


def _note(device: str, error: BuildUnavailable) -> None:
    _errors[device] = error


def _warn_once(device: str) -> None:
    """Only a build that failed is worth a warning; a missing compiler is a reason in backend_info()."""
    error = _errors.get(device)
    if error is not None and error.failed and device not in _warned:
        _warned.add(device)
        warnings.warn(
            f"sinpe_ext runs eager PyTorch on {device} devices: {error.reason}\n{error.todo}", UserWarning, stacklevel=4
        )


def build(device: str = "cpu", verbose: bool = False) -> str:
    """Load the compiled backend, compiling it if need be, and return its path: ``python -m sinpe_ext build``.

    Raises BackendUnavailableError with the reason where that does not work. An earlier failure is tried again.
    """
    with _lock:
        if device in DISPATCH_KEYS and _is_missing(device):
            _found[device] = _load(device, verbose)
            choices.pop(device, None)
        _demand(device)
        return str(resolve(device).library)


def buildable() -> list[str]:
    """The devices that are worth a build here: the CPU, and CUDA where torch has it and it is known for what."""
    try:
        import torch
    except ImportError:
        return ["cpu"]
    has_cuda = torch.version.cuda is not None and (_names_architectures() or torch.cuda.is_available())
    return ["cpu", "cuda"] if has_cuda else ["cpu"]


def found() -> dict[str, DeviceBackend]:
    """What was resolved so far, by device type."""
    return dict(_found)


def _is_missing(device_type: str) -> bool:
    """Whether this device was not tried yet, or was tried in vain."""
    found = _found.get(device_type)
    return found is None or found.backend != "compiled"


def small_calls(set_up: Callable[[Any], bool]) -> Any:
    """The module _core for calls of small tensors on the CPU, or None: where the library that serves the CPU is not the
    install's own, eager PyTorch was chosen, or `set_up`, which gets the module, says that it does not serve. Kept in
    `choices["small calls"]`, where callers look first."""
    chosen = choices
    module: Any = core_module()[0] if compiled("cpu") and resolve("cpu").how == "prebuilt" else None
    chosen["small calls"] = found = module if module is not None and set_up(module) else None
    return found


def core_module() -> tuple[object | None, str]:
    """The torch-free pybind11 module _core, or None, with the reason. Older than the sources counts as absent."""
    manifest = compilation.read_json(PACKAGE / compilation.MANIFEST)
    built = manifest.get("libraries", {}).get("core")
    root = compilation.source_root(PACKAGE)
    if built and root is not None and compilation.source_hash("core", root) != built["sources"]:
        return None, "_core is older than the sources; reinstall sinpe_ext"
    try:
        from .. import _core  # type: ignore[attr-defined]
    except ImportError as error:
        why = manifest.get("core_reason") or manifest.get("reason")
        return None, why or (f"_core cannot be imported: {error}" if built else "nothing was built at install time")
    return _core, "built at install time"

"""Programs that build the small library many times in forked children, for test_build_faults.py."""

from __future__ import annotations

import pytest
from build_support import PREAMBLE
from children import execute

DRIVER = (
    PREAMBLE
    + """
import contextlib, json, shutil, signal, torch, warnings
from torch.utils import cpp_extension
from sinpe_ext import functional
compile_really = cpp_extension.load
def compile_at_once(name, build_directory, **options):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    shutil.copyfile(os.environ["BUILT"], f"{build_directory}/{name}.so")
cpp_extension.load = compile_at_once
cache = pathlib.Path(os.environ["SINPE_EXT_CACHE_DIR"])
compilations = cache.parent / "compilations"
printed = jit._print
def counted(text):
    if "compiling" in text:
        with open(compilations, "a") as file:
            file.write("x")
    printed(text)
jit._print = counted
def compiled_since():
    count = compilations.stat().st_size if compilations.exists() else 0
    compilations.unlink(missing_ok=True)
    return count
def begin(work):
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    os.setsid()
    try:
        work()
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
def ended(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
def child(work):
    return ended(begin(work))
def right():
    backend = loader.resolve("cpu")
    assert backend.backend == "compiled", backend
    assert torch.ops.sinpe_ext.cpu_isa.default() == "small-7"
def eager(*reasons):
    backend = loader.resolve("cpu")
    assert backend.backend == "eager" and all(text in backend.reason for text in reasons), backend
def library():
    (path,) = cache.glob("*/*.so")
    return path
"""
)

# Steps of a build, and a hook to run a function at one of them.
STEPS = """
STEPS = [  # owner, function, before or after its first or second call
    (jit, "cache_directory", "before", 1), (jit, "cache_directory", "after", 1), (jit, "_lock", "before", 1),
    (jit, "_compile", "before", 1), (cpp_extension, "load", "before", 1), (cpp_extension, "load", "after", 1),
    (sources, "write_json", "before", 1), (sources, "write_json", "after", 1), (os, "rename", "before", 2),
    (os, "rename", "after", 2),
    (shutil, "rmtree", "after", 1), (loader, "_load_library", "after", 1),
]
def meet(step, action):
    owner, name, when, number = step
    real, calls = getattr(owner, name), []
    def met(*arguments, **options):
        calls.append(name)
        if when == "before" and len(calls) == number:
            action()
        result = real(*arguments, **options)
        if when == "after" and len(calls) == number:
            action()
        return result
    setattr(owner, name, met)
"""


def mounted(command: str) -> list[str]:
    """A shell command in a separate mount namespace."""
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", command]


def _no_mounts() -> str:
    try:
        done = execute(mounted("mount -t tmpfs tmpfs /mnt"), status=None)
    except OSError as error:
        return str(error)
    return done.stderr if done.returncode else ""


_reason = _no_mounts()
needs_mounts = pytest.mark.skipif(bool(_reason), reason=f"no mount namespace: {_reason}")

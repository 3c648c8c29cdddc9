"""Fork, threads and exit: each case in a process with a time limit; a hang is a failure."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from children import finish, library_environment, run, start
from process_support import RESULTS, needs_fork

# threads_used(call, want): number of threads that ran for at least a tenth of the busiest thread's time during a call.
THREADS_USED = """
def cpu_times():
    times = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                times[int(thread)] = int(file.read().split()[0])
        except OSError:
            pass
    return times
def threads_used(call, want):
    for _ in range(100):  # a thread that lived for less than the watcher's step, long on a busy machine, was not seen
        used = threads_used_once(call)
        if used == want:
            break
    return used
def threads_used_once(call):
    before, after, stop = cpu_times(), {}, threading.Event()
    def watch():
        while not stop.wait(0.0005):
            after.update(cpu_times())
    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    stop.set()
    watcher.join()
    after.update(cpu_times())
    spent = {thread: time - before.get(thread, 0) for thread, time in after.items() if thread != watcher.native_id}
    return sum(time >= max(spent.values()) / 10 for time in spent.values())
"""

needs_schedstat = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="no /proc/self/schedstat")

# fork

CHILD = """
before, inside = os.environ["CASE"].split()
import sinpe_ext
if before == "sinpe_ext_ran":
    digest()
if before == "torch_ran":  # large enough for every thread; sinpe_ext is first used in the child
    torch.sin(torch.zeros(1 << 22))
reader, writer = os.pipe()
if not os.fork():
    signal.alarm(500)  # a child that waits for ever is ended
    if inside == "1":
        torch.set_num_threads(1)
    os.write(writer, digest().encode())
    os._exit(0)
status = os.waitstatus_to_exitcode(os.wait()[1])
assert status == 0, f"the child's status is {status}"
assert os.read(reader, 100).decode() == digest()
"""


@pytest.mark.sampled("values")
@pytest.mark.bad_input(21, "compiled", "eager")
@needs_fork
@pytest.mark.parametrize("inside", ["default", "1"])
@pytest.mark.parametrize("before", ["nothing_ran", "sinpe_ext_ran", "torch_ran"])
def test_forked_child(before: str, inside: str, backend: str) -> None:
    """GNU OpenMP hangs in the child of a parent that used it: the kernels avoid it, torch's operations hang."""
    if backend == "eager" and before != "nothing_ran" and inside == "default":
        pytest.skip("torch's operations hang there unless the child calls torch.set_num_threads(1)")
    run(RESULTS + CHILD, library_environment(backend, CASE=f"{before} {inside}"))


FORKED_THREADS = """
import sinpe_ext as sinpe
torch.set_num_threads(3)
rows = torch.empty(60000, 256)
def work():  # one call: a child's threads live no longer
    sinpe.table(60000, 256, out=rows)
work()
assert threads_used(work, 3) == 3
if not os.fork():
    signal.alarm(500)
    used = threads_used(work, 3)
    torch.set_num_threads(2)
    os._exit(10 * used + threads_used(work, 2))
status = os.waitstatus_to_exitcode(os.wait()[1])
assert status == 32, status
if not os.fork():  # a thread that the child starts has torch's pool
    signal.alarm(500)
    digests = []
    thread = threading.Thread(target=lambda: digests.append(digest()))
    thread.start()
    thread.join()
    os._exit(0 if digests == [digest()] else 1)
assert os.wait()[1] == 0
"""


@pytest.mark.bad_input(21, "compiled")
@needs_fork
@needs_schedstat
def test_forked_child_uses_several_threads(need_kernels: None) -> None:
    run(RESULTS + THREADS_USED + FORKED_THREADS, library_environment("compiled"))


# threads

COUNTED = """
import sinpe_ext as sinpe
rows = torch.empty(4096, 256)
def work():
    for _ in range(int(os.environ["REPEAT"])):
        sinpe.add_(rows)
used = []
for count in (1, 2, 3, 1):
    torch.set_num_threads(count)
    work()
    used.append(threads_used(work, count))
assert used == [1, 2, 3, 1], used
"""


@pytest.mark.bad_input(27, "compiled", "eager")
@needs_schedstat
def test_set_num_threads(backend: str) -> None:
    """Several threads work if several are requested, one if one is."""
    repeat = "60" if backend == "compiled" else "5"
    run(RESULTS + THREADS_USED + COUNTED, library_environment(backend, REPEAT=repeat))


CORE = """
import os, threading, sys
import numpy as np, sinpe_ext.numpy as sinpe
rows = np.empty((200000, 256), np.float32)
def work():  # one call: its threads live no longer, and the caller's own time adds up over calls
    sinpe.table(200000, 256, out=rows)
work()
used = threads_used(work, 2)
assert "torch" not in sys.modules and used == 2, used
"""


@needs_schedstat
def test_threads_of_the_numpy_module() -> None:
    _needs_core()
    run(THREADS_USED + CORE, library_environment("compiled", OMP_NUM_THREADS="2"))


ONE_RUNTIME = """
import re, numpy, sinpe_ext.numpy
numpy.linalg.inv(numpy.eye(300))
digest()
sinpe_ext.numpy.table(4000, 64)
with open("/proc/self/maps") as file:
    mapped = set(re.findall(r"/\\S*lib(?:gomp|omp|iomp5)\\b\\S*", file.read()))
assert len(mapped) == 1, mapped
from sinpe_ext.backend import loader
print(loader.core_module()[0] is not None)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no /proc/self/maps")
def test_only_one_openmp_runtime_is_loaded(need_kernels: None) -> None:
    """With torch, NumPy, and _core if it was built."""
    run(RESULTS + ONE_RUNTIME, library_environment("auto"))


def _needs_core() -> None:
    from sinpe_ext.backend import loader

    module, reason = loader.core_module()
    if module is None:
        pytest.skip(f"no _core: {reason}")


# exit

AT_EXIT = """
import atexit
want = digest()
def last():
    assert digest() == want
    print("right", flush=True)
atexit.register(last)
"""
FIRST_AT_EXIT = "import atexit\natexit.register(lambda: print('right' if len(digest()) == 64 else 'wrong', flush=True))"
# Registered before torch is imported, so called after torch's exit handlers: operators must still exist.
LAST_AT_EXIT = """
import atexit
atexit.register(lambda: print("right" if digest() == want else "wrong", flush=True))
%s
want = digest()
"""
IN_THREADS = """
want = digest()
def work():
    for _ in range(5):
        assert digest() == want
    os.write(1, b"right\\n")
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
sys.exit()  # Python waits for threads that are not daemons
"""


@pytest.mark.sampled("values")
@pytest.mark.bad_input(22, "compiled", "eager")
@pytest.mark.parametrize(
    "code, times",
    [(RESULTS + AT_EXIT, 1), (RESULTS + FIRST_AT_EXIT, 1), (LAST_AT_EXIT % RESULTS, 1), (RESULTS + IN_THREADS, 3)],
    ids=["at exit", "first at exit", "last at exit", "in threads"],
)
def test_interpreter_exit(code: str, times: int, backend: str) -> None:
    out, err = run(code, library_environment(backend))
    assert out.split() == ["right"] * times and "Error" not in err


DAEMONS = """
import sinpe_ext as sinpe
call = eval(os.environ["CALL"])
call()
calling = threading.Barrier(5)
def work():
    call()
    calling.wait()
    while True:
        call()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
calling.wait()
time.sleep(0.1)
print("right", flush=True)
"""


@pytest.mark.sampled("values")
@pytest.mark.bad_input(22, "compiled", "eager")
@pytest.mark.parametrize("call", ["lambda: sinpe.add(x)", "lambda: torch.sin(x)"], ids=["sinpe_ext", "torch"])
def test_daemon_threads_at_exit(call: str, backend: str) -> None:
    """The process ends at once. Before Python 3.14 it may abort (SIGABRT), in torch's operations too: Python ends a
    daemon thread by unwinding C++ frames that do not allow it.
    """
    process = start(RESULTS + DAEMONS, library_environment(backend, CALL=call))
    out, _ = finish(process, status=(0,) if sys.version_info >= (3, 14) else (0, -signal.SIGABRT))
    assert out.split() == ["right"]


# subinterpreters

SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
code = "import sinpe_ext, sinpe_ext.reference; assert sinpe_ext.Encoding(8).dim == 8; print('right', flush=True)"
interpreter = interpreters.create()
failed = (interpreters.exec if hasattr(interpreters, "exec") else interpreters.run_string)(interpreter, code)
assert not failed, failed
"""


def test_subinterpreter_runs_code_without_torch() -> None:
    """torch cannot be imported in a subinterpreter."""
    process = start(SUBINTERPRETER, library_environment("eager"))
    out, _ = finish(process)
    assert out.split() == ["right"]

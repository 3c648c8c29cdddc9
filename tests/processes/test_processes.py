"""Fork, threads, Ctrl-C and exit: each case is a process with a time limit; a hang is a failure.

A process answers for both backends where it can; its message names the one that failed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from children import execute, finish, library_environment, run, start

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
needs_schedstat = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="no /proc/self/schedstat")
pytestmark = pytest.mark.usefixtures("need_kernels")

# digest(): one result of each operation, large enough for two threads. NumPy creates x and reads the bytes: torch would
# use its threads for that, and hang in a forked child.
RESULTS = """
import hashlib, os, signal, sys, threading, time, numpy, torch
BACKENDS = ("compiled", "eager")
x, weight = (torch.from_numpy(numpy.ones(shape, numpy.float32)) for shape in ((2, 1200, 64), (1200, 64)))
alpha, ids = torch.ones(1, requires_grad=True), torch.arange(2400).reshape(2, 1200) % 1200
weight.requires_grad_()
def ones_like(y):
    return torch.ones(()).expand_as(y)
def digest(backend="compiled"):
    import sinpe_ext as sinpe
    sinpe.use_backend(backend)
    t2t = sinpe.convention("t2t", 64)
    scaled = sinpe.add(x, t2t, alpha=alpha, dropout=0.5, seed=1)
    embedded = sinpe.embed(ids, weight, t2t, dropout=0.5, seed=1)
    made = [sinpe.table(1200, t2t), sinpe.encode(torch.arange(1200), t2t), sinpe.add(x, start=3), scaled, embedded]
    made += torch.autograd.grad(scaled, alpha, ones_like(scaled))
    made += torch.autograd.grad(embedded, weight, ones_like(embedded))
    return hashlib.sha256(b"".join(y.detach().numpy().tobytes() for y in made)).hexdigest()
"""

# threads_used(call, want): number of threads that ran for at least a tenth of the busiest thread's time during a call.
THREADS_USED = """
import os, threading
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

# fork

FORKS = """
want = []
def child(stage, backend, sets_threads):
    reader, writer = os.pipe()
    if not os.fork():
        signal.alarm(500)  # a child that waits for ever is ended
        if sets_threads:
            torch.set_num_threads(1)
        os.write(writer, digest(backend).encode())
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.wait()[1])
    assert status == 0, (stage, backend, sets_threads, status)
    want.append(os.read(reader, 100).decode())
import sinpe_ext
child("nothing ran", "compiled", False)  # sinpe_ext is first used in the child
torch.sin(torch.zeros(1 << 22))  # large enough for every thread
child("torch ran", "compiled", False)
mine = {digest(backend) for backend in BACKENDS}
for sets_threads in (False, True):
    child("sinpe_ext ran", "compiled", sets_threads)
child("sinpe_ext ran", "eager", True)  # torch's operations hang without
assert {*want} == mine and len(mine) == 1, (want, mine)

if not os.fork():  # a thread that the child starts has torch's pool
    signal.alarm(500)
    digests = []
    thread = threading.Thread(target=lambda: digests.append(digest()))
    thread.start()
    thread.join()
    os._exit(0 if digests == [digest()] else 1)
assert os.wait()[1] == 0
"""


@pytest.mark.bad_input(21, "compiled", "eager")
@needs_fork
def test_forked_child() -> None:
    """GNU OpenMP hangs in the child of a parent that used it: the kernels avoid it, torch's operations hang."""
    run(RESULTS + FORKS, library_environment(OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive"))


# threads

THREADS = """
import re, sinpe_ext as sinpe, sinpe_ext.numpy
rows = torch.empty(4096, 256)
def work():
    for _ in range(60 if backend == "compiled" else 5):
        sinpe.add_(rows)
for backend in BACKENDS:
    sinpe.use_backend(backend)
    used = []
    for count in (1, 3, 2):
        torch.set_num_threads(count)
        work()
        used.append(threads_used(work, count))
    assert used == [1, 3, 2], (backend, used)

numpy.linalg.inv(numpy.eye(300))
sinpe_ext.numpy.table(4000, 64)
with open("/proc/self/maps") as file:
    mapped = set(re.findall(r"/\\S*lib(?:gomp|omp|iomp5)\\b\\S*", file.read()))
assert len(mapped) == 1, mapped  # one OpenMP runtime: torch's

sinpe.use_backend("compiled")
torch.set_num_threads(3)
rows = torch.empty(60000, 256)
def one_call():  # a forked child's threads live no longer
    sinpe.table(60000, 256, out=rows)
one_call()
if not os.fork():
    signal.alarm(500)
    used = threads_used(one_call, 3)
    torch.set_num_threads(2)
    os._exit(10 * used + threads_used(one_call, 2))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 32
"""


@pytest.mark.bad_input(21, "compiled")
@pytest.mark.bad_input(27, "compiled", "eager")
@needs_fork
@needs_schedstat
def test_number_of_threads() -> None:
    """As many threads work as torch.set_num_threads says, in a forked child too; only one OpenMP runtime is loaded."""
    run(RESULTS + THREADS_USED + THREADS, library_environment())


CORE = """
import sys, numpy as np, sinpe_ext.numpy as sinpe
rows = np.empty((200000, 256), np.float32)
def work():  # one call: its threads live no longer, and the caller's own time adds up over calls
    sinpe.table(200000, 256, out=rows)
work()
used = threads_used(work, 2)
assert "torch" not in sys.modules and used == 2, used
"""


@pytest.mark.bad_input(27, "NumPy")
@needs_schedstat
def test_threads_of_the_numpy_module() -> None:
    from sinpe_ext.backend import loader

    module, reason = loader.core_module()
    if module is None:
        pytest.skip(f"no _core: {reason}")
    run(THREADS_USED + CORE, library_environment("compiled", OMP_NUM_THREADS="2"))


# Compares all results in 8 parts of a region run by `region(function)` with those outside.
NESTED = """
import ctypes, os, threading, torch, sinpe_ext as sinpe
x = torch.ones(2, 1200, 64)
weight, ids = torch.ones(1200, 64, requires_grad=True), torch.arange(1200)
def everything(k=0):
    y = sinpe.embed(ids, weight, dropout=0.5, seed=k)
    return [sinpe.table(1200, 64, start=k), sinpe.add(x, start=k, dropout=0.5, seed=k), y,
            torch.autograd.grad(y, weight, torch.ones_like(y))[0]]
torch.set_num_threads(2)
want = [everything(k) for k in range(8)]
def compare(region):
    results, failed = {}, []
    def part(k):
        try:
            results[k] = everything(k)
        except BaseException as error:
            failed.append(error)
    region(part)
    assert not failed and len(results) == 8, (region, failed, sorted(results))
    for k in range(8):
        assert all(torch.equal(a, b) for a, b in zip(results[k], want[k], strict=True)), (region, k)
    assert all(torch.equal(a, b) for a, b in zip(everything(3), want[3], strict=True))

library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
RANGE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
library.torch_parallel_for.argtypes = [ctypes.c_int64] * 3 + [RANGE, ctypes.c_void_p]
def torchs_region(part):
    threads = set()
    def parts(first, last, _):
        threads.add(threading.get_native_id())
        for k in range(first, last):
            part(k)
    assert library.torch_parallel_for(0, 8, 1, RANGE(parts), None) == 0
    assert len(threads) == 2, threads

def pythons_threads(part):
    start = threading.Barrier(8)
    def work(k):
        start.wait()
        torch.set_num_threads(1 + k % 3)
        for _ in range(2):
            part(k)
            torch.set_num_threads(1 + (k + 1) % 3)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    torch.set_num_threads(2)

regions = [torchs_region, pythons_threads]
PART = ctypes.CFUNCTYPE(None, ctypes.c_int)
if os.environ["HELPER"]:
    helper = ctypes.CDLL(os.environ["HELPER"])
    regions += [lambda part: helper.in_openmp(8, PART(part)), lambda part: helper.in_threads(8, PART(part))]
for backend in ("compiled", "eager"):
    with sinpe.use_backend(backend):
        for region in regions:
            compare(region)
"""

HELPER = """
#include <thread>
#include <vector>
extern "C" void in_openmp(int n, void (*part)(int)) {
#pragma omp parallel for num_threads(3) schedule(static, 1)
  for (int k = 0; k < n; ++k) part(k);
}
extern "C" void in_threads(int n, void (*part)(int)) {
  std::vector<std::thread> threads;
  for (int k = 0; k < n; ++k) threads.emplace_back(part, k);
  for (std::thread& thread : threads) thread.join();
}
"""


@pytest.mark.bad_input(22, "compiled", "eager")
def test_nested_threads(tmp_path: Path) -> None:
    """In torch's parallel region, in Python's threads that set their number of threads, and, if there is a compiler, in
    OpenMP and std::thread of another extension."""
    from sinpe_ext.backend import sources

    (tmp_path / "helper.cpp").write_text(HELPER)
    compiler, library = sources.find_compiler(), ""
    if compiler:
        flags = ["-std=c++17", "-shared", "-fPIC", "-fopenmp", "-pthread", "helper.cpp", "-o", "helper.so"]
        done = execute([compiler[0], *flags], cwd=tmp_path, status=None)
        library = "" if done.returncode else str(tmp_path / "helper.so")
    run(NESTED, library_environment(HELPER=library, OMP_WAIT_POLICY="passive"))


INTERRUPTED = """
import sinpe_ext as sinpe
rows = torch.zeros(4, 4096, 128)
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
for backend in BACKENDS:
    want, caught = digest(backend), 0
    for k in range(6):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.002 * k, 20)  # again, where Python ignores exceptions
            while True:
                sinpe.add_(rows, dropout=0.1)
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            caught += 1
    assert caught == 6 and digest(backend) == want, (backend, caught)
"""


def test_ctrl_c_during_calls_leaves_the_process_usable() -> None:
    run(RESULTS + INTERRUPTED, library_environment())


# exit

EXIT = """
import atexit
def tell(name):
    right = [digest(backend) for backend in BACKENDS] == [want, want]
    os.write(1, f"{name} {'right' if right else 'wrong'}\\n".encode())
atexit.register(tell, "last")  # before torch is imported, so called after torch's handlers: operators must still exist
%s
if not os.fork():  # the first call is made at exit
    atexit.unregister(tell)
    atexit.register(lambda: os.write(1, f"first {len({digest(backend) for backend in BACKENDS})}\\n".encode()))
    sys.exit()
assert os.wait()[1] == 0
want = digest()
atexit.register(tell, "at exit")
threads = [threading.Thread(target=tell, args=("thread",)) for _ in range(3)]
[thread.start() for thread in threads]
sys.exit()  # Python waits for threads that are not daemons
"""


@pytest.mark.bad_input(22, "compiled", "eager")
@needs_fork
def test_interpreter_exit() -> None:
    out, err = run(EXIT % RESULTS, library_environment())
    assert out.splitlines() == ["first 1", *["thread right"] * 3, "at exit right", "last right"]
    assert "Error" not in err


DAEMONS = """
import sinpe_ext as sinpe
calling = threading.Barrier(5)
def work():
    sinpe.add(x)
    calling.wait()
    while True:
        sinpe.add(x)
sinpe.add(x)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
calling.wait()
time.sleep(0.1)
print("right", flush=True)
"""


@pytest.mark.bad_input(22, "compiled")
def test_daemon_threads_at_exit() -> None:
    """The process ends at once. Before Python 3.14 it may abort (SIGABRT), in torch's operations too: Python ends a
    daemon thread by unwinding C++ frames that do not allow it.
    """
    process = start(RESULTS + DAEMONS, library_environment("compiled"))
    out, _ = finish(process, status=(0,) if sys.version_info >= (3, 14) else (0, -signal.SIGABRT))
    assert out.split() == ["right"]


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
    out, _ = run(SUBINTERPRETER, library_environment("eager"))
    assert out.split() == ["right"]

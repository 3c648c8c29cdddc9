"""Ctrl-C during calls, including the first: the process continues and later results are right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
import torch
from children import library_environment, run
from process_support import RESULTS, needs_fork

import sinpe_ext as sinpe

INTERRUPTED = """
import sinpe_ext as sinpe
want, caught = digest(), 0
rows = torch.zeros(4, 4096, 128)
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
for k in range(10):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.002 * k, 20)  # again, where Python was in what ignores exceptions
        while True:
            sinpe.add_(rows, dropout=0.1)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        caught += 1
    assert k % 5 or digest() == want
assert caught == 10 and digest() == want
"""


def test_ctrl_c_during_calls_leaves_the_process_usable(backend: str) -> None:
    run(RESULTS + INTERRUPTED, library_environment(backend))


SMALL_CALLS = """
import random
import sinpe_ext as sinpe
rows, few, table = torch.zeros(2, 4, 16), ids[:, :4], torch.zeros(4, 16)
grid = sinpe.convention("detr2d", 16)
image = torch.zeros(1, 3, 3, 16)
calls = [lambda: sinpe.add_(rows, dropout=0.1), lambda: sinpe.add(rows), lambda: sinpe.table(4, 16)]
calls += [lambda: sinpe.embed(few, table, 16), lambda: sinpe.add(image, grid), lambda: sinpe.encode(few, 16)]
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
for k, call in enumerate(calls):
    call()
    for _ in range(300):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.001 * random.random(), 5)
            while True:
                call()
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert torch.is_grad_enabled(), k
assert digest() == digest()
"""


@pytest.mark.processes
def test_ctrl_c_leaves_gradients_enabled(backend: str) -> None:
    """1,800 interrupts in small calls: with torch.no_grad, one in 40 would leave it enabled."""
    run(RESULTS + SMALL_CALLS, library_environment(backend))


# SIGINT at single lines of a first call, including import and registration of the operators; one child process each.
ANY_LINE = """
import warnings
warnings.simplefilter("error")
lines, where = 0, ""
def interrupted_at(target):
    def trace(frame, event, arg):
        global lines, where
        name = frame.f_code.co_filename.rpartition("/sinpe_ext/")[2]
        if not name:
            return None
        if event == "line" and name in (
            "ops/operator.py", "ops/rows.py", "ops/embed.py", "backend/loader.py", "runtime/registration.py"
        ):
            lines += 1
            if lines == target:
                where = f"{name}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
                return None
        return trace
    sys.settrace(trace)
    try:
        digest()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
def in_child(work):
    reader, writer = os.pipe()
    if not os.fork():
        signal.alarm(500)
        try:
            os.write(writer, str(work()).encode())
        except BaseException as error:
            os.write(writer, f"{where}: {error!r}".encode())
        os._exit(0)
    os.wait()
    os.close(writer)
    return os.read(reader, 4096).decode()
torch.set_num_threads(1)
total = int(in_child(lambda: (interrupted_at(-1), lines)[1]))
want = in_child(digest)
assert total > 500 and len(want) == 64, (total, want)
def interrupted_then_right(line):
    assert interrupted_at(line)
    assert digest() == want
    return "right"
for line in range(1, total, total // 16):
    found = in_child(lambda: interrupted_then_right(line))
    assert found == "right", found
"""


@pytest.mark.processes
@needs_fork
def test_ctrl_c_at_any_line_of_the_first_call(need_kernels: None) -> None:
    run(RESULTS + ANY_LINE, library_environment("compiled"))


def calls_that_make_constants() -> dict[str, Callable[[float], object]]:
    """Calls with an encoding of this base, whose constants are then made and cached."""
    x, image, few = torch.zeros(1, 3, 8), torch.zeros(1, 3, 3, 8), torch.arange(3)
    return {
        "add": lambda base: sinpe.add(x, sinpe.Encoding(8, base=base)),
        "large add": lambda base: sinpe.add(torch.zeros(5, 1000, 8), sinpe.Encoding(8, base=base)),
        "float32 angles": lambda base: sinpe.encode(few, sinpe.Encoding(8, base=base, angle="float32_exp")),
        "a grid": lambda base: sinpe.add(image, sinpe.convention("mae2d", 8, base=base)),
        "gradient of positions": lambda base: sinpe.encode(
            torch.zeros(3, requires_grad=True), sinpe.Encoding(8, base=base)
        ).sum().backward(),
    }  # fmt: skip


def modes_of_torch() -> tuple[object, ...]:
    """Whether dispatch modes, torch.func, gradients and inference mode are on, and the numbers of modes."""
    return (
        torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python),
        torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in generators that are being closed
@pytest.mark.parametrize("name", calls_that_make_constants())
def test_ctrl_c_at_any_python_function_leaves_the_modes(name: str, backend: str) -> None:
    """Python handles signals where a function begins: a KeyboardInterrupt at the n-th one, for every n."""
    call, before, count, last = calls_that_make_constants()[name], modes_of_torch(), 0, 0

    def interrupt(_: FrameType | None, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"
        if count == last and event == "call":
            raise KeyboardInterrupt

    with sinpe.use_backend(backend):
        call(2.0)  # imports and registrations
        while count >= last:
            last, count = last + 1, 0
            sys.setprofile(interrupt)
            try:
                call(3.0 + last)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            assert modes_of_torch() == before, f"after an interrupt at function {last}"
    assert last > 20

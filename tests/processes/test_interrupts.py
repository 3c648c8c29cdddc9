"""Ctrl-C during calls: the process continues and later results are right."""

from __future__ import annotations

from children import library_environment, run
from process_support import RESULTS

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

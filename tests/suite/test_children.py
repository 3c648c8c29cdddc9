"""A child that fails or hangs fails the test."""

from __future__ import annotations

import pytest
from children import environment, finish, start, start_forked, until

FAILED = pytest.fail.Exception


@pytest.mark.parametrize("begin", [start, start_forked])
def test_status_and_hang(begin) -> None:
    for code, status in (("import os; os._exit(7)", 7), ("1 / 0", 1), ("import os; os.kill(os.getpid(), 15)", -15)):
        finish(begin(code, environment()), status=status)
        with pytest.raises(FAILED, match=rf"(?s)status {status} instead of 0: .*stdout.*stderr"):
            finish(begin(code, environment()))
    child = begin("import time; print('waits', flush=True); time.sleep(1000)", environment())
    until(lambda: "waits\n" in child.printed()[0], "its first words", child=child)
    with pytest.raises(FAILED, match=r"(?s)no end within 0.1 s: .*waits"):
        finish(child, 0.1)
    assert child.poll() == -9

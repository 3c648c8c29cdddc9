"""tests/support/children.py: processes, their exit status, timeouts, and the messages of failures."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from children import Server, environment, execute, finish, forked, library_environment, run, start, start_forked, until

BEGIN = [start, pytest.param(start_forked, marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"))]
ENDS = {
    "pass": 0,
    "raise SystemExit(3)": 3,
    "import sys; sys.exit('words')": 1,
    "1 / 0": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
    "import os; os._exit(7)": 7,
    "import atexit, os; atexit.register(os._exit, 9)": 9,
}


@pytest.mark.parametrize("begin", BEGIN)
def test_status(begin) -> None:
    children = [(begin(code, environment()), status) for code, status in ENDS.items()]
    for child, status in children:
        finish(child, status=status)


@pytest.mark.parametrize("begin", BEGIN)
def test_environment_of_a_process(begin, tmp_path: Path) -> None:
    code = """
import os, pathlib, sys, sinpe_ext
assert sys.stdin.read() == "" and sys.argv == ["-c"] and sys.path[0] == "" and __name__ == "__main__"
assert vars(sys.modules["__main__"]) is globals() and not {"serve", "asked"} & set(globals())
assert pathlib.Path.cwd() == pathlib.Path(os.environ["HERE"]) and "GONE" not in os.environ
assert os.getsid(0) == os.getpgid(0) == os.getpid()
assert pathlib.Path(sinpe_ext.__file__).is_relative_to(os.environ["PYTHONPATH"].split(os.pathsep)[0])
print("said", flush=True)
print("warned", file=sys.stderr)
"""
    child = begin(code, environment(HERE=str(tmp_path.resolve())), tmp_path)
    assert finish(child) == ("said\n", "warned\n")


def has_ended(pid: int) -> bool:
    """Exited, or a zombie: some containers have no process that reaps them."""
    try:
        os.kill(pid, 0)
        found = Path(f"/proc/{pid}/stat").read_text() if Path("/proc/self/stat").exists() else ") R"
    except (ProcessLookupError, FileNotFoundError):
        return True
    return found.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize("begin", BEGIN)
def test_hanging_process_is_killed_with_its_children(begin) -> None:
    code = """
import subprocess, time
print(subprocess.Popen(["sleep", "1000"]).pid, "waits", flush=True)
time.sleep(1000)
"""
    child = begin(code, environment())
    until(lambda: "waits\n" in child.printed()[0], "its first words", child=child)
    started = int(child.printed()[0].split()[0])
    assert not has_ended(started)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)no end within 0.1 s: .*--- stdout, \d+ char.*\d+ waits"):
        finish(child, 0.1)
    assert child.poll() == -signal.SIGKILL
    until(lambda: has_ended(started), "what it started is gone")


@pytest.mark.parametrize("begin", BEGIN)
def test_failure_shows_the_end_of_both_streams(begin) -> None:
    child = begin("import sys; print('x' * 9000 + 'end'); sys.exit('why')", environment())
    with pytest.raises(pytest.fail.Exception) as failed:
        finish(child)
    text = str(failed.value)
    assert "status 1 instead of 0" in text and "xend\n" in text and "9004 characters" in text and "why\n" in text
    assert len(text) < 5000


def test_command() -> None:
    echo = "import sys; print(sys.stdin.read()); print('err', file=sys.stderr); sys.exit(2)"
    done = execute([sys.executable, "-c", echo], input="words", status=2)
    assert (done.returncode, done.stdout, done.stderr) == (2, "words\n", "err\n")
    done = execute([sys.executable, "-uc", echo], merged=True, status=(1, 2))
    assert (done.stdout, done.stderr) == ("\nerr\n", "")
    with pytest.raises(pytest.fail.Exception, match="status 2 instead of 0"):
        execute([sys.executable, "-c", echo])


def test_until_names_what_it_waited_for() -> None:
    with pytest.raises(pytest.fail.Exception, match="not within 0.1 s: rain"):
        until(lambda: False, "rain", 0.1)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)status 3 before rain: .*clouds"):
        until(lambda: False, "rain", child=start("print('clouds'); raise SystemExit(3)"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_children_have_torch_and_no_other_state() -> None:
    code = "import sys; print('torch' in sys.modules, 'sinpe_ext' in sys.modules, sys.modules.get('left'))"
    for _ in range(2):
        assert forked(code + "; sys.modules['left'] = 1", library_environment())[0].split() == ["True", "False", "None"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_variables_read_at_startup_are_rejected_for_a_fork() -> None:
    with pytest.raises(AssertionError, match="OMP_NUM_THREADS.*use children.run"):
        forked("", environment(OMP_NUM_THREADS="7"))
    assert run("import os; print(os.environ['OMP_NUM_THREADS'])", environment(OMP_NUM_THREADS="7"))[0] == "7\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_server_that_ends() -> None:
    """Its children end with it; without it, the test fails with its output."""
    server = Server("json", env=environment())
    child = server.start("import time; time.sleep(1000)", environment())
    server.close()
    until(lambda: has_ended(child.pid), "the child is gone")
    server = Server("no_such_module", env=environment())
    with pytest.raises(pytest.fail.Exception, match="No module named 'no_such_module'"):
        server.start("pass", environment())

"""The cache folder: private to the user, never writable by others; nothing is done at import."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from build_support import PREAMBLE, needs_compiler, write_small_sources
from children import environment, forked, run

import sinpe_ext
from sinpe_ext.backend import jit
from sinpe_ext.backend.sources import BuildUnavailable


@pytest.fixture(autouse=True)
def without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SINPE_EXT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"HOME": "/h"}, "/h/.cache/sinpe_ext"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/sinpe_ext"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "x"}, "/h/.cache/sinpe_ext"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x", "SINPE_EXT_CACHE_DIR": "~/c"}, "/h/c"),
        ({"HOME": "/h", "SINPE_EXT_CACHE_DIR": "/c"}, "/c"),
    ],
)
def test_location(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert jit.cache_path() == Path(expected)


@pytest.mark.parametrize("chosen", [None, "~nobody-of-that-name/cache"])
def test_no_home_directory(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user id without an entry in the password database; no folder named ~ is created."""

    def unknown(key: object) -> None:
        raise KeyError(key)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    if chosen:
        monkeypatch.setenv("SINPE_EXT_CACHE_DIR", chosen)
    with pytest.raises(BuildUnavailable, match="there is no home directory for the cache ~") as caught:
        jit.cache_directory(create=True)
    assert caught.value.todo == jit.CACHE_TODO
    assert sinpe_ext.backend_info().cache_dir.startswith("none: there is no home directory")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINPE_EXT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_folder_is_private(folder: Path) -> None:
    before = os.umask(0)
    try:
        with pytest.raises(BuildUnavailable, match="cannot be used"):
            jit.cache_directory(create=False)
        assert not folder.exists()
        assert jit.cache_directory(create=True) == folder and folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "mode, refused", [(0o777, "every user may write"), (0o1777, "every user may write"), (0o755, "")]
)
def test_world_writable_folder(mode: int, refused: str, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(mode)
    if not refused:
        assert jit.cache_directory(create=True) == folder
        return
    with pytest.raises(BuildUnavailable, match=refused):
        jit.cache_directory(create=True)


@pytest.mark.parametrize("mode, refused", [(0o777, True), (0o1777, False)])
def test_world_writable_parent(mode: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the sticky bit, any user may replace the folder."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(mode)
    monkeypatch.setenv("SINPE_EXT_CACHE_DIR", str(tmp_path / "shared" / "cache"))
    if refused:
        with pytest.raises(BuildUnavailable, match="every user may write to .*/shared"):
            jit.cache_directory(create=True)
    else:
        assert jit.cache_directory(create=True)


def test_folder_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    if folder.stat().st_uid == 0:
        pytest.skip("root's folders are accepted")
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(BuildUnavailable, match="belongs to another user"):
        jit.cache_directory(create=True)


def test_symbolic_link_is_checked_by_its_target(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    folder.symlink_to(target)
    assert jit.cache_directory(create=True) == target
    target.chmod(0o777)
    with pytest.raises(BuildUnavailable, match="every user may write to .*/target"):
        jit.cache_directory(create=True)
    target.rmdir()
    with pytest.raises(BuildUnavailable, match="cannot be used"):
        jit.cache_directory(create=True)


@needs_compiler
def test_unwritable_home_writes_nothing_elsewhere(tmp_path: Path) -> None:
    """Neither in the folder for temporary files nor in the working directory."""
    sources = write_small_sources(tmp_path / "small")
    for name in ("temporary", "here"):
        (tmp_path / name).mkdir()
    env = environment(HOME="/proc/self/nowhere", XDG_CACHE_HOME=None, TMPDIR=str(tmp_path / "temporary"))
    code = 'backend = loader.resolve("cpu")\nprint(backend.backend, backend.reason)'
    out, err = forked(PREAMBLE + code, {**env, "SMALL_SOURCES": str(sources)}, cwd=tmp_path / "here")
    assert out.startswith("eager") and "/proc/self/nowhere/.cache/sinpe_ext cannot be used" in out
    assert "Warning" not in err and not list((tmp_path / "temporary").iterdir())
    assert not list((tmp_path / "here").iterdir())


AT_IMPORT = """
import sys, os
import torch, numpy
seen = []
FORBIDDEN = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.spawn",
             "os.mkdir", "os.rename", "os.remove", "ctypes.dlopen", "socket.connect", "_thread.start_new_thread")
def hook(event, arguments):
    if event.startswith(FORBIDDEN) or event == "open" and isinstance(arguments[2], int) and arguments[2] & 3:
        seen.append((event, str(arguments)[:200]))
sys.addaudithook(hook)
import sinpe_ext
for name in dir(sinpe_ext):
    if name != "plot":  # matplotlib
        getattr(sinpe_ext, name)
encoding = sinpe_ext.convention("t2t", 8)
layers = [sinpe_ext.SinusoidalPositionalEncoding(8), sinpe_ext.SinusoidalEmbedding(5, 8)]
assert not seen, seen
from sinpe_ext.backend import loader
assert not loader.backends()
open(os.devnull, "w").close()
os.system("true")
assert [event for event, _ in seen] == ["open", "os.system"]
"""


def test_import_does_not_compile_start_processes_or_write() -> None:
    """Nor does constructing an encoding or a layer."""
    run(AT_IMPORT, environment(PYTHONDONTWRITEBYTECODE="1"))

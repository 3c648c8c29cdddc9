"""The cache folder: private to the user, never writable by others; nothing is done at import."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from build_support import PREAMBLE, needs_compiler, write_small_sources
from children import environment, forked, run

import sinpe_ext
from sinpe_ext.backend import build_cache, compilation, loader
from sinpe_ext.backend.compilation import BuildUnavailable


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
    assert build_cache.directory() == Path(expected)


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
        build_cache.checked(create=True)
    assert caught.value.todo == build_cache.CACHE_TODO
    assert sinpe_ext.backend_info().cache_dir.startswith("none: there is no home directory")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINPE_EXT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_folder_is_private(folder: Path) -> None:
    before = os.umask(0)
    try:
        assert build_cache.checked(create=False) is None and not folder.exists()
        assert build_cache.checked(create=True) == folder and folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "mode, refused", [(0o777, "every user may write"), (0o1777, "every user may write"), (0o755, "")]
)
def test_world_writable_folder(mode: int, refused: str, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(mode)
    if not refused:
        assert build_cache.checked(create=True) == folder
        return
    with pytest.raises(BuildUnavailable, match=refused):
        build_cache.checked(create=True)


@pytest.mark.parametrize("mode, refused", [(0o777, True), (0o1777, False)])
def test_world_writable_parent(mode: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the sticky bit, any user may replace the folder."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(mode)
    monkeypatch.setenv("SINPE_EXT_CACHE_DIR", str(tmp_path / "shared" / "cache"))
    if refused:
        with pytest.raises(BuildUnavailable, match="every user may write to .*/shared"):
            build_cache.checked(create=True)
    else:
        assert build_cache.checked(create=True)


@pytest.mark.parametrize("private", [True, False])
def test_group_writable_folder(private: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    folder.chmod(0o770)
    monkeypatch.setattr(build_cache, "_is_private", lambda group: private)
    if private:
        assert build_cache.checked(create=True) == folder
    else:
        with pytest.raises(BuildUnavailable, match="a group may write to it") as caught:
            build_cache.checked(create=True)
        assert caught.value.todo == f"chmod g-w {folder}"


def test_private_group_by_name_and_members(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp

    name = pwd.getpwuid(os.geteuid()).pw_name
    for group_name, members, answer in (
        (name, [], True),
        (name, [name], True),
        (name, ["eve"], False),
        ("staff", [], False),
    ):
        group = grp.struct_group((group_name, "x", 7, members))
        monkeypatch.setattr(grp, "getgrgid", lambda number, group=group: group)
        assert build_cache._is_private(7) is answer


def test_folder_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    if folder.stat().st_uid == 0:
        pytest.skip("root's folders are accepted")
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(BuildUnavailable, match="belongs to another user"):
        build_cache.checked(create=True)


@pytest.mark.parametrize("which, mode", [("", 0o777), ("library", 0o666), ("done.json", 0o622), ("library", 0o600)])
def test_build_writable_by_others(which: str, mode: int, tmp_path: Path) -> None:
    """The hash does not protect: who can write the library can also write done.json."""
    folder = tmp_path / "key"
    folder.mkdir(mode=0o755)
    (folder / "library").write_bytes(b"x")
    compilation.write_json(
        folder / "done.json", {"file": "library", "sha256": compilation.file_hash(folder / "library")}
    )
    for path in (folder, *folder.iterdir()):
        path.chmod(path.stat().st_mode & 0o755)
    assert build_cache.finished(folder) == folder / "library"
    (folder / which).chmod(mode)
    if mode == 0o600:
        assert build_cache.finished(folder) == folder / "library"
        return
    with pytest.raises(BuildUnavailable, match="is not safe: every user may write"):
        build_cache.finished(folder)
    if which:
        folder.chmod(0o700)
        assert build_cache.finished(folder) == folder / "library"  # nobody else can enter it


def test_group_writable_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that only the group may enter."""
    folder = tmp_path / "key"
    folder.mkdir(mode=0o750)
    (folder / "library").write_bytes(b"x")
    compilation.write_json(
        folder / "done.json", {"file": "library", "sha256": compilation.file_hash(folder / "library")}
    )
    (folder / "library").chmod(0o664)
    monkeypatch.setattr(build_cache, "_is_private", lambda group: False)
    with pytest.raises(BuildUnavailable, match="a group may write to it"):
        build_cache.finished(folder)
    folder.chmod(0o700)
    assert build_cache.finished(folder) == folder / "library"


def test_symbolic_link_is_checked_by_its_target(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    folder.symlink_to(target)
    assert build_cache.checked(create=True) == target
    target.chmod(0o777)
    with pytest.raises(BuildUnavailable, match="every user may write to .*/target"):
        build_cache.checked(create=True)
    target.rmdir()
    with pytest.raises(BuildUnavailable, match="cannot be used"):
        build_cache.checked(create=True)


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


@pytest.mark.bad_input(26, "compiled", "eager")
def test_truncated_library_is_not_loaded(tmp_path: Path) -> None:
    """Loading it would crash the process with SIGBUS."""
    import _ctypes
    import json

    content = Path(_ctypes.__file__).read_bytes()
    whole, half = tmp_path / "whole.so", tmp_path / "half.so"
    whole.write_bytes(content)
    for length in (0, 3, 30, 70, len(content) // 20):
        half.write_bytes(content[:length])
        assert compilation.is_truncated(half) is (length > 6)
    if content[:6] == b"\x7fELF\x02\x01":
        assert not compilation.is_truncated(whole)
        library = {"file": half.name, "sources": "any", "torch": "2.13"}
        (tmp_path / compilation.MANIFEST).write_text(json.dumps({"libraries": {"cpu": library}}))
        with pytest.raises(BuildUnavailable, match="is damaged: its end is missing"):
            loader._load_prebuilt("cpu", tmp_path)


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

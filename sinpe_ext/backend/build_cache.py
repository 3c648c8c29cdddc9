"""The directory of JIT builds: its location, whether it is safe to load code from it, and its complete builds."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from . import compilation
from .compilation import BuildUnavailable

DONE = "done.json"
CACHE_TODO = "set SINPE_EXT_CACHE_DIR to a writable folder of your own"


def directory() -> Path:
    """The directory of JIT builds: SINPE_EXT_CACHE_DIR, otherwise sinpe_ext in XDG_CACHE_HOME or ~/.cache.

    Raises BuildUnavailable for a user without a home directory, because a directory shared with others would not be
    safe for code, and for a relative path if the current directory does not exist.
    """
    chosen = os.environ.get("SINPE_EXT_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says to ignore relative paths
        base = os.path.join("~", ".cache")
    path = os.path.expanduser(chosen or os.path.join(base, "sinpe_ext"))
    if path.startswith("~"):
        raise BuildUnavailable(f"there is no home directory for the cache {path}", CACHE_TODO)
    try:
        return Path(path).absolute()
    except OSError as error:
        raise BuildUnavailable(f"the cache {path} cannot be used: {error}", CACHE_TODO) from error


def checked(create: bool) -> Path | None:
    """The cache directory, checked to be safe to load code from; None if it does not exist and `create` is False.

    Raises BuildUnavailable if it is not safe, or cannot be used.
    """
    cache = directory()
    try:
        if create:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not cache.exists():
            return None
        cache = cache.resolve()
        if not cache.is_dir():
            raise NotADirectoryError(20, "not a directory", str(cache))
        _check_ownership(cache, f"the cache {cache}")
        for folder in (cache, *cache.parents):
            mode = folder.stat().st_mode
            if mode & stat.S_IWOTH and (folder == cache or not mode & stat.S_ISVTX):
                raise BuildUnavailable(f"the cache {cache} is not safe: every user may write to {folder}", CACHE_TODO)
    except OSError as error:
        raise BuildUnavailable(f"the cache {cache} cannot be used: {error}", CACHE_TODO) from error
    return cache


def _check_ownership(path: Path, title: str) -> None:
    """Raises BuildUnavailable if another user can write to `path`, as that user could run code in this process.

    Raises OSError if the path does not exist.
    """
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise BuildUnavailable(f"{title} belongs to another user (uid {status.st_uid})", CACHE_TODO)
    if status.st_mode & stat.S_IWOTH:
        raise BuildUnavailable(f"{title} is not safe: every user may write to {path}", CACHE_TODO)
    if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid):
        raise BuildUnavailable(f"{title} is not safe: a group may write to it", f"chmod g-w {path}")


def _is_private(group: int) -> bool:
    """Whether a group has this user as its only member, as is usual where the umask gives groups write permission."""
    try:
        import grp
        import pwd

        name, entry = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


def finished(folder: Path) -> Path | None:
    """The library of a complete build, None if the build is not complete.

    It is complete if its marker file exists and has the hash of the library. Raises BuildUnavailable if another user
    can write to the build.
    """
    done = compilation.read_json(folder / DONE)
    library = folder / str(done.get("file", ""))
    try:
        if not done or compilation.file_hash(library) != done.get("sha256"):
            return None
        _check_ownership(folder, f"the build {folder}")
        if folder.stat().st_mode & 0o077:  # otherwise other users cannot reach the files
            for path in (folder / DONE, library):  # the marker too, because the hash of the library is in it
                _check_ownership(path, f"the build {folder}")
        return library
    except OSError:
        return None


def finished_without_compiler(cache: Path, facts: dict[str, str]) -> Path | None:
    """A complete build with these facts, whatever compiler it was built with; None if there is none.

    For container images that are built with a compiler and run without one.
    """
    for marker in sorted(cache.glob(f"*/{DONE}")):
        known = compilation.read_json(marker).get("facts", {})
        if {**known, **{name: "" for name in known if name.startswith(("compiler", "nvcc"))}} == facts:
            library = finished(marker.parent)
            if library:
                return library
    return None

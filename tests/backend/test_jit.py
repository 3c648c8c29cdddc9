"""Compilation on first use: the cache, and failures during a build. A small replacement for the sources is compiled."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from build_support import PREAMBLE, needs_compiler, write_script, write_small_sources
from children import environment, finish, forked, run, start_forked, until

from sinpe_ext.backend import jit, sources

pytestmark = needs_compiler

USE = """
before = dict(os.environ)
assert loader.compiled("cpu"), sinpe_ext.backend_info()
assert dict(os.environ) == before
backend = loader.resolve("cpu")
import torch
assert torch.ops.sinpe_ext.cpu_isa.default() == "small-7"
assert sinpe_ext.backend_info().instruction_set == "small-7"
print(backend.how, backend.library)
"""


@pytest.fixture(scope="module")
def small_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_sources(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def built(small_sources: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, list[tuple[str, str]]]:
    """A cache that two processes filled at the same time, and their output."""
    cache = tmp_path_factory.mktemp("cache with a space") / "sinpe"
    env = environment(SMALL_SOURCES=str(small_sources), SINPE_EXT_CACHE_DIR=str(cache))
    processes = [start_forked(PREAMBLE + USE, env) for _ in range(2)]
    return env, [finish(process) for process in processes]


def library_of(output: str) -> Path:
    return Path(output.strip().splitlines()[-1].split(" ", 1)[1])


def test_two_processes_at_once_build_once_and_both_succeed(built):
    _, outputs = built
    assert library_of(outputs[0][0]) == library_of(outputs[1][0])
    assert sum(err.count("sinpe_ext: compiling") for _, err in outputs) == 1
    (line,) = [line for _, err in outputs for line in err.splitlines() if line.startswith("sinpe_ext")]
    assert "SINPE_EXT_JIT=0" in line and " done in " in line


@pytest.mark.builds
def test_finished_build_is_private_and_marked(built):
    env, outputs = built
    library = library_of(outputs[0][0])
    cache = Path(env["SINPE_EXT_CACHE_DIR"])
    assert cache.stat().st_mode & 0o777 == 0o700 and library.parent.parent == cache
    assert sorted(path.name for path in library.parent.iterdir()) == ["build.json", "sinpe_ext_cpu.so"]
    assert json.loads((library.parent / "build.json").read_text())["torch"]


def test_next_process_compiles_nothing(built):
    env, outputs = built
    out, err = forked(PREAMBLE + USE, env)
    assert library_of(out) == library_of(outputs[0][0]) and "compiling" not in err


@pytest.mark.builds
def test_finished_build_is_used_without_a_compiler(built, tmp_path):
    env, outputs = built
    out, err = forked(PREAMBLE + USE, {**env, "PATH": str(tmp_path), "CXX": ""})
    assert library_of(out) == library_of(outputs[0][0]) and "compiling" not in err


@pytest.fixture
def cache_copy(built, tmp_path: Path) -> tuple[dict[str, str], Path]:
    """A copy of the filled cache that a test may damage, and the library in it."""
    env, outputs = built
    cache = tmp_path / "cache"
    shutil.copytree(env["SINPE_EXT_CACHE_DIR"], cache)
    library = library_of(outputs[0][0])
    return {**env, "SINPE_EXT_CACHE_DIR": str(cache)}, cache / library.parent.name / library.name


def test_library_that_does_not_load_is_named(cache_copy):
    env, library = cache_copy
    library.write_bytes(b"x" * library.stat().st_size)
    code = 'backend = loader.resolve("cpu")\nprint(backend.backend, backend.reason, backend.todo)'
    out, err = forked(PREAMBLE + code, env)
    assert out.startswith("eager") and "does not load: " in out and f"delete {library.parent} and try again" in out
    assert "compiling" not in err


def test_truncated_library_is_not_complete(tmp_path):
    library = tmp_path / "a.so"
    library.write_bytes(b"12345678")
    assert not jit._is_whole(library)
    sources.write_json(tmp_path / "build.json", {"size": 8})
    assert jit._is_whole(library)
    library.write_bytes(b"1234")
    assert not jit._is_whole(library) and not jit._is_whole(tmp_path / "b.so")


@pytest.mark.builds
def test_killed_build_does_not_disturb_the_next(small_sources, tmp_path):
    hold = tmp_path / "hold"
    hold.write_text("")
    compiler = write_script(
        tmp_path / "waiting-g++",
        f'for a in "$@"; do [ "$a" = -c ] && while [ -e {hold} ]; do sleep 0.1; done; done; exec c++ "$@"',
    )
    cache = tmp_path / "cache"
    env = environment(SMALL_SOURCES=str(small_sources), SINPE_EXT_CACHE_DIR=str(cache), CXX=str(compiler))
    victim = start_forked(PREAMBLE + USE, env)
    try:
        until(lambda: list(cache.glob("*.build-*/build.ninja")), "the build to start", child=victim)
        os.kill(victim.pid, signal.SIGKILL)  # but not its ninja
        finish(victim, status=-signal.SIGKILL)
        assert list(cache.glob("*.build-*/lock"))  # torch would wait for it forever
    finally:
        hold.unlink()  # the orphaned ninja continues to compile, concurrently with the next build
        if victim.poll() is None:
            os.kill(victim.pid, signal.SIGKILL)
    out, err = forked(PREAMBLE + USE, env)
    assert library_of(out).is_file() and " done in " in err
    assert not list(cache.glob("*.build-*/lock"))


@pytest.mark.builds
@pytest.mark.bad_input(26, "eager")
def test_lock_held_too_long_gives_eager_with_the_reason(built, small_sources, tmp_path):
    from filelock import FileLock

    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    env = {**built[0], "SINPE_EXT_CACHE_DIR": str(cache), "SINPE_EXT_LOCK_TIMEOUT": "0.5"}
    key = library_of(built[1][0][0]).parent.name
    with FileLock(str(cache / f"{key}.lock")):
        code = 'assert not loader.compiled("cpu")\nprint(loader.resolve("cpu").reason)'
        out, _ = forked(PREAMBLE + code, env)
    assert "another process has held" in out
    _, err = forked(PREAMBLE + USE, {**env, "SINPE_EXT_LOCK_TIMEOUT": "soon"}, status=1)
    assert "SINPE_EXT_LOCK_TIMEOUT: expected a number of seconds, got 'soon'" in err


@pytest.mark.builds
def test_real_library_compiled_on_first_use_gives_the_same_bits(tmp_path):
    code = """
import sinpe_ext
from sinpe_ext.backend import loader, sources
def nothing_built(device):
    raise sources.BuildUnavailable("nothing was built at install time")
loader._load_prebuilt = nothing_built
path = loader.build()
assert loader.resolve("cpu").how == "jit", sinpe_ext.backend_info()
print(sinpe_ext.table(300, 64, start=10**6).numpy().tobytes().hex())
"""
    out, _ = run(code, environment(SINPE_EXT_CACHE_DIR=str(tmp_path / "cache"), MAX_JOBS=str(os.cpu_count())))

    import sinpe_ext

    with sinpe_ext.use_backend("eager"):
        expected = sinpe_ext.table(300, 64, start=10**6)
    assert out.split()[-1] == expected.numpy().tobytes().hex()


@pytest.mark.builds
def test_failed_build_reports_the_compiler_error(small_sources, tmp_path):
    root = tmp_path / "csrc"
    shutil.copytree(small_sources, root)
    (root / "cpu" / "table.cpp").write_text("int broken = missing_name;\n")
    env = environment(SMALL_SOURCES=str(root), SINPE_EXT_CACHE_DIR=str(tmp_path / "cache"))
    out, _ = forked(PREAMBLE + 'assert not loader.compiled("cpu")\nprint(loader.resolve("cpu").reason)', env)
    assert "missing_name" in out and "FAILED: " in out
    assert "-fPIC" not in out and "-std=" not in out  # nor other parts of the commands


@pytest.mark.builds
def test_library_with_an_undefined_symbol_names_it(small_sources, tmp_path):
    root = tmp_path / "csrc"
    shutil.copytree(small_sources, root)
    (root / "cpu" / "table.cpp").unlink()
    env = environment(SMALL_SOURCES=str(root), SINPE_EXT_CACHE_DIR=str(tmp_path / "cache"))
    out, _ = forked(PREAMBLE + 'assert not loader.compiled("cpu")\nprint(loader.resolve("cpu").reason)', env)
    assert "the build failed" in out and "undefined symbol" in out and "sinpe_number" in out

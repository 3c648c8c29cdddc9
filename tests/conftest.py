"""Backend selection: shown in the header, required with --require-backend, switched by the fixture `backend`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
FOLDERS = {str(path.parent) for path in TESTS.glob("*/test_*.py")} - {str(TESTS / "peers")}  # tests import each other
sys.path[:0] = [str(TESTS / "support"), *sorted(FOLDERS)]
sys.path += [str(TESTS.parent), str(TESTS.parent / "tools")]  # benchmarks/; after an installed sinpe_ext

import pytest  # noqa: E402
from children import SANITIZED  # noqa: E402

pytest_plugins = ["tiers"]

try:  # not needed by the tests on a GPU
    from hypothesis import HealthCheck, settings
except ImportError:
    pass
else:  # `ci` draws the same examples in each run; no deadline, because a first use may compile
    slow, rare = [HealthCheck.too_slow], [HealthCheck.filter_too_much, HealthCheck.data_too_large]
    settings.register_profile("ci", max_examples=250, derandomize=True, deadline=None, suppress_health_check=slow)
    settings.register_profile(
        "long",
        settings.get_profile("ci"),
        max_examples=5000,
        derandomize=False,
        database=None,
        print_blob=True,
        suppress_health_check=slow + rare,  # in so many examples it happens
    )
    settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-backend",
        choices=("compiled", "eager", "cuda", "emulated"),
        help="fail instead of skipping where this backend is missing; eager: test eager PyTorch only; "
        "emulated: the CUDA kernels, compiled as C++, instead of the CPU library",
    )


def pytest_configure(config: pytest.Config) -> None:
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # started in a shell's background, and inherited by child processes
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _missing(backend: str) -> str:
    """The reason why this backend cannot be tested, or an empty string."""
    from sinpe_ext.backend import loader

    if backend == "eager":
        return ""
    if backend == "cuda":
        import torch

        if not torch.cuda.is_available():  # the library can be loaded without a GPU
            return "no CUDA device is visible"
    resolved = loader.resolve("cuda" if backend == "cuda" else "cpu")
    return "" if resolved.backend == "compiled" else resolved.reason


def pytest_sessionstart(session: pytest.Session) -> None:
    required = session.config.getoption("--require-backend")
    if required is None:
        return
    import sinpe_ext
    from sinpe_ext.backend import loader

    if required == "eager":
        loader.use_backend("eager")
    elif required == "emulated":
        _load_emulated()
    elif reason := _missing(required):
        if report := session.config.pluginmanager.get_plugin("feature report"):
            report.missing(reason)
            pytest.exit(f"not run: {reason}", returncode=pytest.ExitCode.NO_TESTS_COLLECTED)
        pytest.exit(f"--require-backend={required}: {reason}\n\n{sinpe_ext.backend_info()}", returncode=1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--require-backend") == "emulated":
        others = [item for item in items if not item.get_closest_marker("emulated")]
        items[:] = [item for item in items if item.get_closest_marker("emulated")]
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """torch 2.11 runs the kernels, but not inside of graphs: a test that meets that error is skipped."""
    try:
        return (yield)
    except Exception as error:
        if "torch: expected 2.12 or newer inside of torch.compile" not in str(error):
            raise
        pytest.skip("graphs need torch 2.12")


def _load_emulated() -> None:
    import emulated_library

    from sinpe_ext.backend.sources import BuildUnavailable

    os.environ.pop("SINPE_EXT_BACKEND", None)
    try:
        emulated_library.load()
    except BuildUnavailable as error:
        pytest.exit(f"--require-backend=emulated: {error.reason}\n{error.todo}", returncode=1)


def pytest_report_header(config: pytest.Config) -> str:
    import sinpe_ext

    info = sinpe_ext.backend_info()
    cpu = info.device("cpu")
    return (
        f"sinpe_ext {info.version}: cpu backend {cpu.backend} ({cpu.reason}), instruction set {info.instruction_set}, "
        f"{info.threads} threads, torch {info.torch}, NumPy core {'_core' if info.core else 'plain NumPy'}"
    )


@pytest.fixture(params=["compiled", "eager"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test once per CPU backend, with that backend in use."""
    from sinpe_ext.backend import loader

    if request.param == "compiled":
        request.getfixturevalue("need_kernels")
    elif SANITIZED:
        pytest.skip("eager PyTorch runs no compiled code of this project")
    with loader.use_backend(request.param):
        yield request.param


@pytest.fixture
def reset_dynamo() -> Iterator[None]:
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def nan_filled_empty() -> Iterator[None]:
    """torch.empty returns NaN: an element that is not written shows."""
    import torch

    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def need_kernels(request: pytest.FixtureRequest) -> None:
    """Skips a test if the compiled backend is missing or excluded."""
    if request.config.getoption("--require-backend") == "eager":
        pytest.skip("--require-backend=eager")
    if reason := _missing("compiled"):
        pytest.skip(f"no compiled backend: {reason}")

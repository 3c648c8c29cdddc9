"""Comparison with other libraries: `make check-peers` installs them; tests of a missing library are skipped."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from typing import Any

import agreement
import pytest

REPORT = Path(__file__).parents[2] / "build" / "peers.md"
Peer = Callable[..., Any]


def installed(library: str) -> ModuleSpec:
    """Skips a test if the library is missing, or fails it with SINPE_EXT_REQUIRE_PEERS."""
    spec = importlib.util.find_spec(library)
    if spec is None:
        if os.environ.get("SINPE_EXT_REQUIRE_PEERS"):
            pytest.fail(f"{library} is not installed")
        pytest.skip(f"{library} is not installed: make check-peers installs it")
    return spec


@pytest.fixture
def peer() -> Peer:
    """peer(module): imports the module, or skips if its library is not installed."""

    def load(name: str) -> Any:
        installed(name.partition(".")[0])
        return importlib.import_module(name)

    return load


@pytest.fixture
def timm() -> ModuleSpec:
    """timm's folder, without importing it: that would import torchvision."""
    return installed("timm")


@pytest.fixture(scope="session")
def release() -> Callable[[str], str]:
    """release(distribution): name and version."""
    return lambda distribution: f"{distribution} {version(distribution)}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if all(library.startswith("torch ") for library, *_ in agreement.RECORD):
        return  # nothing is installed
    text = agreement.markdown()
    terminalreporter.section("agreement with other libraries")
    terminalreporter.write_line(text)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text + "\n")

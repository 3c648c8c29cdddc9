"""Comparison with the libraries themselves: `make test-peers` installs them; without one its tests are skipped."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import agreement
import pytest

REPORT = Path(__file__).parents[2] / "build" / "peers.md"
Peer = Callable[..., Any]


@pytest.fixture
def peer() -> Peer:
    """peer(module): the module, or a skip where its library is not installed or does not work here."""

    def load(name: str) -> Any:
        library = name.partition(".")[0]
        pytest.importorskip(library, reason=f"{library} is not installed: make test-peers installs it")
        return importlib.import_module(name)

    return load


@pytest.fixture(scope="session")
def release() -> Callable[[str], str]:
    """release(distribution): its name and version."""
    return lambda distribution: f"{distribution} {version(distribution)}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not agreement.RECORD:
        return
    text = agreement.markdown()
    terminalreporter.section("agreement with other libraries")
    terminalreporter.write_line(text)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text + "\n")

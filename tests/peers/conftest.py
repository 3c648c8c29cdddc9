"""Comparison with other libraries: `make check-peers` installs them; tests of a missing library are skipped."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import agreement
import pytest

REPORT = Path(__file__).parents[2] / "build" / "peers.md"


def missing(library: str) -> None:
    """Skips a test whose library is missing, or fails it with SINPE_EXT_REQUIRE_PEERS."""
    if os.environ.get("SINPE_EXT_REQUIRE_PEERS"):
        pytest.fail(f"{library} is not installed")
    pytest.skip(f"{library} is not installed: make check-peers installs it")


def installed(library: str) -> ModuleSpec:
    """The place of a library, or a skip."""
    return importlib.util.find_spec(library) or missing(library)  # type: ignore[return-value]


@pytest.fixture
def peer() -> Callable[[str], Any]:
    """peer(module): imports the module, or skips if its library is not installed."""

    def load(name: str) -> Any:
        installed(name.partition(".")[0])
        return importlib.import_module(name)

    return load


@pytest.fixture
def timm_sincos2d(monkeypatch: pytest.MonkeyPatch) -> Any:
    """timm's build_sincos2d_pos_embed, from packages whose __init__ has not run, because that needs torchvision."""
    folder = Path(str(installed("timm").origin)).parent
    for name, place in (("timm", folder), ("timm.layers", folder / "layers")):
        spec: Any = importlib.util.spec_from_file_location(
            name, place / "__init__.py", submodule_search_locations=[str(place)]
        )
        monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))
    return importlib.import_module("timm.layers.pos_embed_sincos").build_sincos2d_pos_embed


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if all(library.startswith("torch ") for library, *_ in agreement.RECORD):
        return  # nothing is installed
    text = agreement.markdown()
    terminalreporter.section("agreement with other libraries")
    terminalreporter.write_line(text)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text + "\n")

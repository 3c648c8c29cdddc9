"""Comparison with other libraries: `make check-peers` installs them; tests of a missing library are skipped."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import agreement
import pytest

REQUIRED = bool(os.environ.get("SINPE_EXT_REQUIRE_PEERS"))
REPORT = Path(__file__).parents[2] / "build" / "peers.md"


@pytest.fixture
def installed() -> Callable[..., Any]:
    """installed(library): what `find` knows of it, a skip if it is missing, a failure with SINPE_EXT_REQUIRE_PEERS."""

    def found(library: str, find: Callable[[str], Any] = importlib.util.find_spec) -> Any:
        with contextlib.suppress(PackageNotFoundError):
            if known := find(library):
                return known
        message = f"{library} is not installed"
        return pytest.fail(message) if REQUIRED else pytest.skip(f"{message}: make check-peers installs it")

    return found


@pytest.fixture
def peer(installed: Callable[..., Any]) -> Callable[[str], Any]:
    """peer(module): imports the module, or skips if its library is not installed."""
    return lambda name: installed(name.partition(".")[0]) and importlib.import_module(name)


@pytest.fixture
def timm_sincos2d(installed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """timm's build_sincos2d_pos_embed, from packages whose __init__ has not run, because that needs torchvision."""
    folder = Path(installed("timm").origin).parent
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

"""docs/migrating.md: the recorded calls, repeated with the libraries and with the adapters."""

from __future__ import annotations

import os
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import migrating
import pytest
import torch
from library_scopes import scope_of

import sinpe_ext as sinpe

RECORDED = {heading: library for heading, library in migrating.recorded().items() if library["installed"]}
CALLS = [(heading, entry) for heading, library in RECORDED.items() for entry in library["calls"]]
SWAPPED = [(heading, layer) for heading, library in RECORDED.items() for layer in library["swapped"]]


def installed(name: str) -> Distribution:
    """Skips a test if the library is missing, or fails it with SINPE_EXT_REQUIRE_PEERS."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        if os.environ.get("SINPE_EXT_REQUIRE_PEERS"):
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed: make check-peers installs it")


@pytest.fixture
def theirs(heading: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The library's own definitions."""
    library = RECORDED[heading]
    dist, scope = installed(library["source"]), scope_of(heading)
    assert dist.version == library["version"], "its recorded values, and the page, are of another version"
    files: dict[str, list[str]] = {}
    for name, file in library["names"].items():
        files.setdefault(file, []).append(name)
    module = ModuleType("the_library")  # the module that its classes belong to
    scope["__name__"] = module.__name__
    for file, names in files.items():
        migrating.definitions(Path(str(dist.locate_file(file))), names, scope)
    vars(module).update(scope)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return scope


@pytest.fixture(scope="module")
def adapters() -> dict[str, tuple[str, dict[str, Any]]]:
    return migrating.adapters()


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize(("heading", "entry"), CALLS, ids=[f"{heading}: {entry['call']}" for heading, entry in CALLS])
def test_recorded_call(heading: str, entry: dict[str, Any], theirs: dict[str, Any], adapters: dict) -> None:
    want, got = migrating.result(entry["call"], theirs), migrating.result(entry["call"], adapters[heading][1])
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.allclose(got.double(), want.double(), rtol=0, atol=migrating.TOLERANCE)
    before = torch.tensor(entry["values"], dtype=torch.float64).reshape(entry["shape"])
    assert torch.allclose(want.double(), before, rtol=0, atol=migrating.TOLERANCE)


@pytest.mark.parametrize(
    ("heading", "layer", "read", "value"), [entry[:4] for entry in migrating.ATTRIBUTES if entry[0] in RECORDED]
)
def test_attributes_read_by_callers(heading: str, layer: str, read: str, value: Any, theirs: dict[str, Any]) -> None:
    assert eval(read, {"torch": torch, "layer": eval(layer, theirs)}) == value


@pytest.mark.parametrize(
    ("heading", "layer", "call", "half", "single"), [entry for entry in migrating.DTYPES if entry[0] in RECORDED]
)
def test_dtype_of_the_module(
    heading: str, layer: str, call: str, half: torch.dtype, single: torch.dtype, theirs: dict[str, Any]
) -> None:
    made = eval(layer, theirs)
    assert eval(call, {**migrating.given(), "layer": made}).dtype == single
    assert eval(call, {**migrating.given(), "layer": made.half()}).dtype == half


@pytest.mark.parametrize(("heading", "layer"), SWAPPED)
def test_swap_replaces_it(heading: str, layer: str, theirs: dict[str, Any]) -> None:
    model = torch.nn.Sequential(eval(layer, {**migrating.WHAT_CALLS_NAME, **theirs}))
    report = sinpe.integrations.swap(model)
    assert report.swapped and not report.left, str(report)

"""docs/migrating.md: the recorded calls, repeated with the libraries and with the adapters."""

from __future__ import annotations

import math
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import migrating
import numpy as np
import pytest
import torch
from torch import nn

import sinpe_ext as sinpe

RECORDED = {heading: library for heading, library in migrating.recorded().items() if library["installed"]}
CALLS = [(heading, entry) for heading, library in RECORDED.items() for entry in library["calls"]]
SWAPPED = [(heading, layer) for heading, library in RECORDED.items() for layer in library["swapped"]]


class EncodingOfNerfstudio(nn.Module):
    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.in_dim = in_dim

    def __call__(self, *args: Any, **fields: Any) -> Any:
        return self.forward(*args, **fields)


class Utilities:
    """A library's module `utils`: the functions that were taken from it."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope

    def __getattr__(self, name: str) -> Any:
        return self.scope[name]


NEEDED: dict[str, dict[str, Any]] = {"nerfstudio": {"Encoding": EncodingOfNerfstudio, "TCNN_EXISTS": False}}


def scope_of(heading: str) -> dict[str, Any]:
    """A new scope for a library's definitions: torch, NumPy, and minimal replacements for the library's other classes
    and helpers, which do not affect the results."""
    common = {"torch": torch, "nn": nn, "F": nn.functional, "Tensor": torch.Tensor, "math": math, "np": np}
    scope: dict[str, Any] = {**common, "Module": nn.Module, **NEEDED.get(heading, {})}
    scope["utils"] = Utilities(scope)
    return scope


@pytest.fixture
def theirs(heading: str, installed: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The library's own definitions."""
    library, scope = RECORDED[heading], scope_of(heading)
    dist = installed(library["source"], distribution)
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

"""`dir`, `help` and star imports of the package and its submodules show public names only.

Exception: PACKAGE CONTENTS of `help`, where pydoc lists all files of a package's folder.
"""

from __future__ import annotations

import importlib
import pydoc
import re
from types import ModuleType

import pytest

import sinpe_ext as sinpe

SUBMODULES = "distributed functional integrations modules numpy plot positions reference".split()
OF_OTHERS = {"_freeze", "_weight", "_wrapped_call_impl", "_DataclassParams"}  # names of torch and of dataclasses


def sections(module: ModuleType) -> dict[str, str]:
    """The output of `help(module)`, by heading."""
    parts = re.split(r"^([A-Z][A-Z ]+)\n", pydoc.plain(pydoc.render_doc(module)), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_names_of_the_package() -> None:
    for name in sinpe.__all__:
        getattr(sinpe, name)
    assert dir(sinpe) == sorted([*sinpe.__all__, *SUBMODULES])


@pytest.mark.parametrize("name", SUBMODULES)
def test_names_of_a_submodule(name: str) -> None:
    module = importlib.import_module(f"sinpe_ext.{name}")
    assert dir(module) == sorted(module.__all__) and not any(public.startswith("_") for public in dir(module))
    namespace: dict[str, object] = {}
    exec(f"from sinpe_ext.{name} import *", namespace)
    assert sorted(namespace.keys() - {"__builtins__"}) == dir(module)
    assert all(getattr(module, public).__doc__ for public in dir(module))


@pytest.mark.parametrize("name", ["sinpe_ext", *(f"sinpe_ext.{name}" for name in SUBMODULES)])
def test_help(name: str) -> None:
    module = importlib.import_module(name)
    bodies = sections(module)
    assert ("PACKAGE CONTENTS" in bodies) == hasattr(module, "__path__")
    text = "".join(body for heading, body in bodies.items() if heading != "PACKAGE CONTENTS")
    listed = bodies.get("CLASSES", "") + bodies.get("FUNCTIONS", "") + bodies.get("DATA", "")
    names = re.findall(r"^    (?:class )?(\w+)(?:\(| =)", listed, re.MULTILINE)
    assert sorted(names) == [public for public in dir(module) if public not in (*SUBMODULES, "__version__")]
    assert set(re.findall(r"(?<!\w)_[A-Za-z]\w*", text)) <= OF_OTHERS
    ours = set(re.findall(r"\bsinpe_ext\.[\w.]*\w", text))  # modules of the public classes, and the submodules
    public = {*module.__all__, *SUBMODULES}
    assert {word for word in ours if word.rpartition(".")[2] not in public} == set()

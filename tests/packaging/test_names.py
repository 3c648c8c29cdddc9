"""What `dir`, `help` and a star import show of the package and its submodules: public names alone."""

from __future__ import annotations

import importlib
import pydoc

import pytest

import sinpe_ext as sinpe

SUBMODULES = "distributed functional integrations modules numpy plot positions reference".split()


def test_of_the_package() -> None:
    for name in sinpe.__all__:
        getattr(sinpe, name)
    assert dir(sinpe) == sorted([*sinpe.__all__, *SUBMODULES])


@pytest.mark.parametrize("name", SUBMODULES)
def test_of_a_submodule(name: str) -> None:
    module = importlib.import_module(f"sinpe_ext.{name}")
    assert dir(module) == sorted(module.__all__) and not any(public.startswith("_") for public in dir(module))
    found: dict[str, object] = {}
    exec(f"from sinpe_ext.{name} import *", found)
    assert sorted(found.keys() - {"__builtins__"}) == dir(module)
    text = pydoc.plain(pydoc.render_doc(module))
    assert all(public in text for public in dir(module)) and all(
        getattr(module, public).__doc__ for public in dir(module)
    )

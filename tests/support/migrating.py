"""docs/migrating.md: its adapters, the calls that are tried on them, and what the libraries gave for those calls.

`library_calls.json` has, for each heading of the page, the library's version and files and calls in the library's own
names. An adapter has those names and signatures, so the same call runs on the adapter, beside the recorded numbers
(tests/pages/test_migrating.py), and on the library itself where it is installed (tests/peers/test_migrating_calls.py).

The numbers are what the named files gave on 2026-11-24 on an x86-64 CPU: the PyTorch ones under torch 2.13.0, C++ by
its lines in a program of their own, others under what `version` says. float32 has the fewest digits that give it back.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pages
import torch
from torch import Tensor

PAGE = "docs/migrating.md"
CALLS = Path(__file__).parent / "library_calls.json"
WHAT_CALLS_NAME = {"torch": torch, "math": math, "np": np, "SimpleNamespace": SimpleNamespace, "array": np.array}

# What a library's float32 angle may be off by, and its sine with it: p w (3 |log w| + 3) 2^-24 <= p 2^-22 for w <= 1
# (tests/peers/agreement.py); the angles of all calls are below 32. 2^-21 for the roundings of values and sums below 4.
LARGEST_ANGLE = 32.0
TOLERANCE = LARGEST_ANGLE * 2.0**-22 + 2.0**-21


def sections(text: str) -> dict[str, str]:
    """The page by its headings: what stands below each."""
    parts = text.split("\n## ")
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts[1:]}


def adapters(text: str | None = None) -> dict[str, tuple[str, dict[str, Any]]]:
    """By heading: the code of its blocks, and the names that it defines; the page's first block runs before each."""
    text = pages.text_of(PAGE) if text is None else text
    imports = pages.blocks(text[: text.index("\n## ")], "python")[0].code
    found = {}
    for heading, section in sections(text).items():
        code = "\n".join(block.code for block in pages.blocks(section, "python"))
        if code:
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(f"{imports}\n{code}", f"{PAGE} {heading}", "exec"), names)
            found[heading] = code, names
    return found


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CALLS.read_text(encoding="utf-8"))
    return found


def result(call: str, names: dict[str, Any]) -> Tensor:
    """What a call gives, as a tensor on the CPU."""
    given = eval(call, {**WHAT_CALLS_NAME, **names})
    return given.detach() if isinstance(given, Tensor) else torch.from_numpy(np.array(given))


def definitions(file: Path, names: Iterable[str], scope: dict[str, Any]) -> None:
    """Runs classes, functions and constants of a library's file alone: neither the library nor what it needs is
    imported. Decorators, which register or compile, are left out.

    scope: what they name beside one another; the definitions are added to it.
    """
    wanted = set(names)
    body = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if _name(node) in wanted]
    assert {_name(node) for node in body} == wanted, f"{file} has {[_name(node) for node in body]} of {sorted(wanted)}"
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            node.decorator_list = []
    flag = annotations.compiler_flag  # types that are not there are not looked up
    exec(compile(ast.Module(body, []), str(file), "exec", flag, dont_inherit=True), scope)


def _name(node: ast.stmt) -> str:
    """What a statement defines."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return getattr(node, "name", "")

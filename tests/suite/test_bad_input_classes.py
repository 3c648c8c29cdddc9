"""Each class of the bad-input catalogue (docs/reliability.md) has tests, on the interfaces that it concerns."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
CLASSES = set(range(1, 28))
INTERFACES = {"compiled", "eager", "meta", "CUDA", "NumPy", "layer", "embedding", "grid", "timestep"}
EVERYWHERE = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17}  # classes that concern functions, meta, NumPy and a layer


def marks() -> dict[int, set[str]]:
    """The interfaces of the tests of each class, from the marks @pytest.mark.bad_input(class, *interfaces)."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted(TESTS.glob("*/test_*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        constants = {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}
        for mark in (mark for node in body if isinstance(node, ast.FunctionDef) for mark in node.decorator_list):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.bad_input":
                names: list[str] = []
                for item in mark.args[1:]:
                    starred = isinstance(item, ast.Starred)
                    value = constants[ast.unparse(item.value)] if isinstance(item, ast.Starred) else item
                    names += ast.literal_eval(value) if starred else [ast.literal_eval(value)]
                assert names, f"{path.name}: {ast.unparse(mark)} names no interface"
                found[ast.literal_eval(mark.args[0])] |= set(names)
    return found


def test_every_class_has_tests() -> None:
    found = marks()
    assert found.keys() == CLASSES and set.union(*found.values()) == INTERFACES


def test_class_is_tested_on_all_interfaces_that_it_concerns() -> None:
    found = marks()
    for number in EVERYWHERE:
        assert {"compiled", "eager", "meta", "NumPy", "layer"} <= found[number], number

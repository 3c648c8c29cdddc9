"""Each class of the bad-input catalogue (docs/reliability.md) has tests, on the interfaces that it concerns."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
INTERFACES = {"compiled", "eager", "meta", "CUDA", "NumPy", "layer", "embedding", "grid", "timestep"}
EVERYWHERE = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17}  # classes that concern functions, meta, NumPy and a layer


def marks() -> dict[int, set[str]]:
    """The interfaces of the tests of each class, from the marks @pytest.mark.bad_input(class, *interfaces)."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted(TESTS.glob("*/test_*.py")):
        if "bad_input" not in (text := path.read_text(encoding="utf-8")):
            continue
        body = ast.parse(text).body
        constants = {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}
        for mark in (mark for node in body if isinstance(node, ast.FunctionDef) for mark in node.decorator_list):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.bad_input":
                number, *names = mark.args
                for item in names:
                    starred = isinstance(item, ast.Starred)
                    value = ast.literal_eval(constants[ast.unparse(item.value)] if starred else item)
                    found[ast.literal_eval(number)] |= set(value if starred else [value])
    return found


def test_every_class_is_tested_on_all_interfaces_that_it_concerns() -> None:
    found = marks()
    assert found.keys() == set(range(1, 28)) and set.union(*found.values()) == INTERFACES
    for number in EVERYWHERE:
        assert {"compiled", "eager", "meta", "NumPy", "layer"} <= found[number], number

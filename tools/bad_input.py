"""The table "Bad input" of docs/reliability.md, from the marks @pytest.mark.bad_input(class, *interfaces) of the tests.

`python tools/bad_input.py` writes it. Uses the standard library only; no test is imported or run.
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import NamedTuple

import page_parts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
PART = "python tools/bad_input.py"
INTERFACES = "compiled", "eager", "meta", "CUDA", "NumPy", "layer", "embedding", "grid", "timestep"


class Class(NamedTuple):
    """given: the bad input.   happens: the result.   elsewhere: why it does not apply to the other interfaces."""

    given: str
    happens: str
    elsewhere: str = ""


CLASSES = {
    1: Class("position past a table's end", "computed like any other; `IndexError` past `max_len`, if one is given"),
    2: Class("negative position", "sin(-p) = -sin(p); `IndexError` with `max_len`; never counted from the end"),
    3: Class(
        "start below 0 (left padding)",
        "rows of negative positions; every element is written",
        "timesteps have no start",
    ),
    4: Class("NaN and infinite positions, -0.0", "NaN in these rows only; sin(±0) = +0, cos(±0) = 1"),
    5: Class("16-bit positions", "`TypeError` with the reason; accepted as stored with `allow_16bit=True`"),
    6: Class(
        "position types",
        "integers become int64 first; `TypeError` for bool, complex, fp8; `ValueError` for uint64 beyond int64",
    ),
    7: Class(
        "ends of int64",
        "every int64 is a position; `ValueError` for rows beyond; no sum overflows",
        "timesteps have no rows",
    ),
    8: Class(
        "channels and bases",
        "any width from 1 on, odd ones too; `ValueError` for other widths and for bases not positive or not finite",
    ),
    9: Class("zero sizes", "an empty result; no kernel is launched"),
    10: Class("more than 2³¹ elements", "64-bit indices", "NumPy and the layers call the same kernels"),
    11: Class("strides, offsets, overlapping reads", "the result for a contiguous copy", "timesteps: see positions"),
    12: Class(
        "writes: leaf, expanded, partly shared, shared with positions or a mask, inference tensor",
        "`RuntimeError` before anything is written; backward detects a write by the version counter",
        "layers do not write in place",
    ),
    13: Class(
        "a result that is the input itself",
        "never, not even with dropout 0, alpha 0 or nothing to do",
        "no input of the same shape",
    ),
    14: Class("shapes that do not fit", "`ValueError` that names both shapes", "timesteps accept any shape"),
    15: Class("different devices, meta", "`RuntimeError`; meta gives meta, no data is read", "NumPy has one device"),
    16: Class(
        "types and layouts of x",
        "`TypeError`: integers, complex, fp8, sparse, nested, quantized, mkldnn, masked tensors",
    ),
    17: Class(
        "sizes beyond any memory, freed storages",
        "`ValueError` before a product overflows; the allocator's own error; `RuntimeError` for a freed storage",
        "timesteps: as positions",
    ),
    18: Class(
        "dropout, scale, alpha",
        "`ValueError` for dropout outside 0 to 1; 1 gives zeros and a finite gradient; NaN and inf propagate",
        "NumPy and timesteps have none",
    ),
    19: Class(
        "derivatives", "checked to second order, with any incoming gradient, torch.func, forward mode", "NumPy has none"
    ),
    20: Class(
        "deterministic mode, threads, splits", "the same bits; every element is written", "NumPy: see accuracy.md"
    ),
    21: Class(
        "fork, spawn, workers",
        "completes; eager PyTorch can hang in a forked child, as torch does, without `set_num_threads(1)` there",
        "independent of the interface",
    ),
    22: Class("Python threads", "the same bits, one load, no deadlock", "independent of the interface"),
    23: Class(
        "streams, graph capture", "correct on any stream; a replay draws a new mask; no synchronization", "CUDA only"
    ),
    24: Class(
        "meta, then `to_empty`", "nothing to restore; `reset_parameters` for a learned alpha", "functions have no state"
    ),
    25: Class(
        "copies, pickles, casts, checkpoints, export",
        "the same bits; a `pe` in an old checkpoint is compared",
        "functions have no state",
    ),
    26: Class("missing or foreign library", "eager, the same values, one warning", "independent of the interface"),
    27: Class("build flags", "no fast-math; threads are used", "concerns the build only"),
}


class Shown(NamedTuple):
    number: int
    interfaces: tuple[str, ...]
    test: str  # file::name


def marks(folder: Path = ROOT / "tests") -> list[Shown]:
    """Every mark, in the order of the files."""
    shown = []
    for path in sorted(folder.glob("*/test_*.py"), key=lambda path: path.name):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.bad_input":
                    number, *names = (argument for item in mark.args for argument in _constants(item, path))
                    shown.append(Shown(number, tuple(names), f"{path.name}::{node.name}"))
    return shown


def _constants(item: ast.expr, path: Path) -> list:
    """An argument's value, or the values of a starred tuple of the file."""
    if isinstance(item, ast.Starred) and isinstance(item.value, ast.Name):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == item.value.id:
                return list(ast.literal_eval(node.value))
    return [ast.literal_eval(item)]


def faults(shown: list[Shown]) -> list[str]:
    """Errors in the marks."""
    wrong = [f"class {number} has no test" for number in CLASSES if not any(s.number == number for s in shown)]
    wrong += [f"{s.test}: no class {s.number}" for s in shown if s.number not in CLASSES]
    wrong += [f"{s.test}: no interface {name}" for s in shown for name in s.interfaces if name not in INTERFACES]
    return wrong + [f"{s.test}: on no interface" for s in shown if not s.interfaces]


def table(shown: list[Shown]) -> str:
    lines = ["| class | bad input | what happens | interfaces | tests |", "|---|---|---|---|---|"]
    for number, row in CLASSES.items():
        of = [s for s in shown if s.number == number]
        on = [name for name in INTERFACES if any(name in s.interfaces for s in of)]
        where = f"{len(on)}: {', '.join(on)}" + (
            f" ({row.elsewhere})" if row.elsewhere and len(on) < len(INTERFACES) else ""
        )
        tests: dict[str, list[str]] = {}
        for s in of:
            file, name = s.test.split("::")
            tests.setdefault(file, []).append(f"`{name}`")
        listed = "<br>".join(f"{file}: {', '.join(names)}" for file, names in tests.items())
        lines.append(f"| {number} | {row.given} | {row.happens} | {where} | {listed} |")
    return "\n".join(lines)


def page(text: str, shown: list[Shown]) -> str:
    return page_parts.replace(text, {PART: table(shown)})


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    shown = marks()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), shown), encoding="utf-8")
    print(f"{len(CLASSES)} classes of bad input, {len(shown)} marks on {len({s.test for s in shown})} tests")


if __name__ == "__main__":
    main()

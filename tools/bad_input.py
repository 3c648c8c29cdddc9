"""The table "Bad input" of docs/reliability.md, from the marks of the tests: @pytest.mark.bad_input(class, *surfaces).

    python tools/bad_input.py --page     # writes the table
    python tools/bad_input.py --check    # writes nothing: is it current, and has every class its tests?

Standard library alone; no test is imported or run.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: python tools/bad_input.py --page -->", "<!-- end of the classes -->"
SURFACES = "compiled", "eager", "meta", "CUDA", "NumPy", "layer", "embedding", "grid", "timestep"


class Class(NamedTuple):
    """given: the bad input.   happens: what comes of it.   elsewhere: why the other surfaces have no part in it."""

    given: str
    happens: str
    elsewhere: str = ""


CLASSES = {
    1: Class("position past a table's end", "generated exactly; `IndexError` past a `max_len` that was asked for"),
    2: Class(
        "negative position", "mirrored, sin(-p) = -sin(p); `IndexError` under `max_len`; never counted from the end"
    ),
    3: Class(
        "start below 0 (left padding)", "those rows are defined; nothing stays unwritten", "timesteps have no start"
    ),
    4: Class("NaN and infinite positions, -0.0", "NaN in these rows alone; sin(±0) = +0, cos(±0) = 1"),
    5: Class("16-bit positions", "`TypeError` with the reason; taken as stored with `allow_16bit=True`"),
    6: Class(
        "position types",
        "integers widen to int64 first; bool, complex, fp8 `TypeError`; uint64 past int64 `ValueError`",
    ),
    7: Class(
        "ends of int64",
        "every int64 is a position; rows beyond are a `ValueError`, no sum wraps",
        "a timestep has no row",
    ),
    8: Class(
        "channels and bases", "1, odd and any width work; 0, negative, non-finite or zero bases are a `ValueError`"
    ),
    9: Class("zero sizes", "an empty result; nothing is launched"),
    10: Class("more than 2³¹ elements", "counted in 64 bits", "NumPy and the layers call the same kernels"),
    11: Class("strides, offsets, overlapping reads", "as of a contiguous copy", "timesteps: see positions"),
    12: Class(
        "writes: leaf, expanded, partly shared, shared with positions or a mask, inference tensor",
        "`RuntimeError` before anything is written; a write is counted, so that backward finds it",
        "layers write into nothing",
    ),
    13: Class(
        "a result that is its input",
        "never: not for dropout 0, alpha 0 or nothing to do",
        "no input is like the result",
    ),
    14: Class("shapes that do not fit", "`ValueError` that names both shapes", "timesteps take any shape"),
    15: Class("devices that differ, meta", "`RuntimeError`; meta gives meta, no data is read", "NumPy has one device"),
    16: Class(
        "types and layouts of x",
        "`TypeError`: integers, complex, fp8, sparse, nested, quantized, mkldnn, masked tensors",
    ),
    17: Class(
        "sizes no memory has, memory taken away",
        "`ValueError` before a product overflows; the allocator's own error; `RuntimeError` for a freed storage",
        "timesteps: as positions",
    ),
    18: Class(
        "dropout, scale, alpha",
        "`ValueError` outside 0 to 1; 1 gives zeros and a finite gradient; NaN and inf pass on",
        "NumPy and timesteps have none",
    ),
    19: Class(
        "derivatives", "checked to second order, any incoming gradient, torch.func, forward mode", "NumPy has none"
    ),
    20: Class(
        "deterministic mode, threads, splits", "the same bits; every element is written", "NumPy: see accuracy.md"
    ),
    21: Class(
        "fork, spawn, workers",
        "completes; the eager twin as torch does, which hangs in a child unless `set_num_threads(1)` is called there",
        "a matter of processes, not of a front",
    ),
    22: Class("threads of Python", "the same bits, one load, no deadlock", "a matter of processes, not of a front"),
    23: Class("streams, graph capture", "right on any stream; replays draw anew; no wait", "CUDA's alone"),
    24: Class(
        "meta, then `to_empty`", "nothing to rebuild; a learned alpha has `reset_parameters`", "functions have no state"
    ),
    25: Class(
        "copies, pickles, casts, checkpoints, export",
        "the same bits; an old `pe` is compared",
        "functions have no state",
    ),
    26: Class(
        "missing or foreign library", "eager, the same values, one warning", "a matter of the loader, not of a front"
    ),
    27: Class("build flags", "no fast-math, threads are used", "a matter of the build"),
}


class Shown(NamedTuple):
    number: int
    surfaces: tuple[str, ...]
    test: str  # file::name


def marks(folder: Path = ROOT / "tests") -> list[Shown]:
    """Every mark, in the order of the files."""
    found = []
    for path in sorted(folder.glob("*/test_*.py"), key=lambda path: path.name):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.bad_input":
                    number, *names = (argument for item in mark.args for argument in _constants(item, path))
                    found.append(Shown(number, tuple(names), f"{path.name}::{node.name}"))
    return found


def _constants(item: ast.expr, path: Path) -> list:
    """An argument's value, or the values of a starred tuple of the file."""
    if isinstance(item, ast.Starred) and isinstance(item.value, ast.Name):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == item.value.id:
                return list(ast.literal_eval(node.value))
    return [ast.literal_eval(item)]


def faults(found: list[Shown]) -> list[str]:
    """What is wrong with the marks."""
    wrong = [f"class {number} has no test" for number in CLASSES if not any(s.number == number for s in found)]
    wrong += [f"{s.test}: no class {s.number}" for s in found if s.number not in CLASSES]
    wrong += [f"{s.test}: no surface {name}" for s in found for name in s.surfaces if name not in SURFACES]
    return wrong + [f"{s.test}: on no surface" for s in found if not s.surfaces]


def table(found: list[Shown]) -> str:
    lines = ["| class | bad input | what happens | surfaces | tests |", "|---|---|---|---|---|"]
    for number, row in CLASSES.items():
        of = [s for s in found if s.number == number]
        on = [name for name in SURFACES if any(name in s.surfaces for s in of)]
        where = f"{len(on)}: {', '.join(on)}" + (
            f" ({row.elsewhere})" if row.elsewhere and len(on) < len(SURFACES) else ""
        )
        tests: dict[str, list[str]] = {}
        for s in of:
            file, name = s.test.split("::")
            tests.setdefault(file, []).append(f"`{name}`")
        listed = "<br>".join(f"{file}: {', '.join(names)}" for file, names in tests.items())
        lines.append(f"| {number} | {row.given} | {row.happens} | {where} | {listed} |")
    return "\n".join(lines)


def page(text: str, found: list[Shown]) -> str:
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{table(found)}\n{END}{rest.split(END, 1)[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--page", action="store_true")
    choice.add_argument("--check", action="store_true")
    given = parser.parse_args()
    found = marks()
    wrong = faults(found)
    text = PAGE.read_text(encoding="utf-8")
    if given.page:
        PAGE.write_text(page(text, found), encoding="utf-8")
    elif page(text, found) != text:
        wrong.append("docs/reliability.md is not current, run python tools/bad_input.py --page")
    print("\n".join(wrong), end="\n" if wrong else "")
    print(f"result: {len(CLASSES)} classes of bad input, {len(found)} marks on {len({s.test for s in found})} tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""docs/integrations.md: its Python blocks run and print what the page shows. Blocks with a library: tests/peers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "integrations.md"
LIBRARIES = ("diffusers",)


def blocks(library: str | None) -> list[str]:
    """The blocks that import a library; None: the blocks that import none."""
    python_blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    names = [next((name for name in LIBRARIES if f"from {name} import" in block), None) for block in python_blocks]
    return [block for block, name in zip(python_blocks, names, strict=True) if name == library]


def _near(line: str) -> str:
    """A line without the digits of a difference, which depend on the processor's sine."""
    return re.sub(r"(differ\w+ (?:by )?)\d\S*", r"\1...", line)


def run(library: str | None, capsys: Any) -> int:
    """Runs the blocks in order; comments after a print state its output."""
    names: dict[str, Any] = {}
    for block in blocks(library):
        capsys.readouterr()
        exec(compile(block, PAGE.name, "exec"), names)
        said = re.findall(r"^print\(.*\)\n((?:# .*\n)+)", block, re.M)
        expected = [line.removeprefix("# ") for text in said for line in text.splitlines()]
        assert expected and [_near(line) for line in capsys.readouterr().out.splitlines()] == [
            _near(line) for line in expected
        ]
    return len(blocks(library))


def test_blocks_without_a_library(capsys: Any) -> None:
    assert run(None, capsys) == 2

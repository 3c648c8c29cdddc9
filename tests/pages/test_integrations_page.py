"""docs/integrations.md: its Python blocks run and print what the page shows. Blocks with a library: tests/peers."""

from __future__ import annotations

import re
from typing import Any

import pages

PAGE = "docs/integrations.md"
LIBRARIES = ("diffusers",)


def blocks(library: str | None) -> list[str]:
    """The blocks that import a library; None: the blocks that import none."""
    codes = [block.code for block in pages.blocks(pages.text_of(PAGE), "python")]
    names = [next((name for name in LIBRARIES if f"from {name} import" in code), None) for code in codes]
    return [code for code, name in zip(codes, names, strict=True) if name == library]


def near(text: str) -> list[str]:
    """Lines without the digits of a difference, which depend on the processor's sine."""
    return re.sub(r"(differ\w+ (?:by )?)\d\S*", r"\1...", text).splitlines()


def run(library: str | None, capsys: Any) -> int:
    """Runs the blocks in order; comments after a print state its output."""
    names: dict[str, Any] = {}
    for block in blocks(library):
        capsys.readouterr()
        exec(compile(block, PAGE, "exec"), names)
        said = "".join(re.findall(r"^print\(.*\)\n((?:# .*\n)+)", block, re.M))
        assert said and near(capsys.readouterr().out) == near(re.sub(r"(?m)^# ", "", said))
    return len(blocks(library))


def test_blocks_without_a_library(capsys: Any) -> None:
    assert run(None, capsys) == 2

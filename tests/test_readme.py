"""Every Python block of the README runs, one after the other, as a reader would paste them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import sinpe_ext as sinpe

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_every_block_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) >= 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)


def test_every_convention_is_named() -> None:
    section = README[README.index("## Conventions") :]
    assert not [name for name in sinpe.conventions() if f"`{name}`" not in section]

"""docs/integrations.md: the block that needs a library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from test_integrations_page import run


@pytest.mark.parametrize("library", ["diffusers"])
def test_blocks_of_a_library(library: str, peer: Any, capsys: Any) -> None:
    peer(library)
    assert run(library, capsys) == 1

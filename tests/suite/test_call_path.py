"""tools/call_path.py: the functions and files that a call passes through must not increase."""

from __future__ import annotations

import call_path
import pytest

from sinpe_ext.backend import loader

LIMITS = {  # functions and files, as measured on 2026-11-27; may only be lowered
    "add": (2, 2),
    "add positions": (2, 2),
    "add positions, large": (24, 8),
    "add padding_mask": (2, 2),
    "add dropout": (5, 3),
    "add dropout, large": (21, 9),
    "add dropout gradient": (24, 9),
    "add out dropout": (5, 3),
    "add out dropout, large": (33, 10),
    "add grid": (2, 2),
    "add grid dropout": (5, 3),
    "add grid dropout, large": (39, 14),
    "add out": (2, 2),
    "embed": (2, 2),
    "embed dropout": (23, 11),
    "table": (2, 2),
    "encode": (2, 2),
    "layer, eval": (4, 3),
    "embedding layer, eval": (6, 4),
}


@pytest.mark.parametrize("name", LIMITS)
def test_call_path_does_not_grow(name: str) -> None:
    if loader.resolve("cpu").backend != "compiled":
        pytest.skip("eager PyTorch uses other paths")
    found = call_path.passed(call_path.calls()[name])
    functions, files = LIMITS[name]
    assert 0 < len(found) <= functions and len({file for file, _ in found}) <= files, found

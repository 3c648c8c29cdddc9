"""tools/call_path.py: the functions and files that a call passes through must not increase."""

from __future__ import annotations

import call_path
import pytest

from sinpe_ext.backend import loader

LIMITS = {  # functions and files, as measured on 2026-11-27; may only be lowered
    "add": (1, 1),
    "add positions": (1, 1),
    "add positions, large": (23, 7),
    "add padding_mask": (1, 1),
    "add dropout": (4, 3),
    "add dropout, large": (20, 8),
    "add dropout gradient": (10, 4),
    "add dropout gradient, large": (23, 8),
    "add out dropout": (4, 3),
    "add out dropout, large": (32, 9),
    "add grid": (1, 1),
    "add grid dropout": (4, 3),
    "add grid dropout, large": (38, 13),
    "add out": (1, 1),
    "embed": (1, 1),
    "embed dropout": (4, 3),
    "table": (1, 1),
    "encode": (1, 1),
    "layer, eval": (3, 2),
    "embedding layer, eval": (5, 3),
}


@pytest.mark.parametrize("name", LIMITS)
def test_call_path_does_not_grow(name: str) -> None:
    if loader.resolve("cpu").backend != "compiled":
        pytest.skip("eager PyTorch uses other paths")
    found = call_path.passed(call_path.calls()[name])
    functions, files = LIMITS[name]
    assert 0 < len(found) <= functions and len({file for file, _ in found}) <= files, found

"""tools/call_path.py: the functions and files that a call passes through must not increase."""

from __future__ import annotations

import call_path
import pytest

from sinpe_ext.backend import loader

LIMITS = {  # functions and files, as measured on 2026-11-28; may only be lowered
    "add": (1, 1),
    "add positions": (1, 1),
    "add positions, large": (1, 1),
    "add padding_mask": (1, 1),
    "add dropout": (4, 3),
    "add dropout, large": (4, 3),
    "add dropout gradient": (5, 3),
    "add dropout gradient, large": (5, 3),
    "add_ dropout": (4, 3),
    "add out": (1, 1),
    "add out dropout": (4, 3),
    "add out dropout, large": (4, 3),
    "add grid": (1, 1),
    "add grid dropout": (4, 3),
    "add grid dropout, large": (4, 3),
    "embed": (1, 1),
    "embed dropout": (4, 3),
    "table": (1, 1),
    "table out": (1, 1),
    "table grid": (52, 14),
    "encode": (1, 1),
    "encode float64": (1, 1),
    "layer, eval": (3, 2),
    "embedding layer, eval": (5, 3),
    "timestep layer": (2, 1),
    "add dropout, seed tensor": (37, 8),
    "add out dropout, seed tensor": (57, 9),
    "add gradient, x not contiguous": (5, 3),
    "add grid, alpha": (52, 13),
}


@pytest.mark.parametrize("name", LIMITS)
def test_call_path_does_not_grow(name: str) -> None:
    if loader.resolve("cpu").backend != "compiled":
        pytest.skip("eager PyTorch uses other paths")
    found = call_path.passed(call_path.calls()[name])
    functions, files = LIMITS[name]
    assert 0 < len(found) <= functions and len({file for file, _ in found}) <= files, found

"""MKL selects a kernel at a function's first call, during which other threads got half the digits: it is warmed up."""

from __future__ import annotations

import pytest
from children import library_environment, run

FIRST = """
import torch, sinpe_ext as sinpe
sizes = []
def counted(function):
    return lambda x, *rest, **more: sizes.append(x.numel()) or function(x, *rest, **more)
torch.sin, torch.cos, torch.exp = map(counted, (torch.sin, torch.cos, torch.exp))
encoding = sinpe.Encoding(64, angle="ANGLE")
sinpe.table(5000, encoding)
assert sizes[:6] == [1] * 6 and sizes.count(1) == 6, sizes[:20]
"""


@pytest.mark.parametrize("angle", ["exact", "float32_exp"])
def test_first_call_has_one_element(angle: str) -> None:
    run(FIRST.replace("ANGLE", angle), library_environment("eager"))

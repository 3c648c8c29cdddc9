"""MKL selects a kernel at a function's first call, during which other threads got half the digits: it is warmed up."""

from __future__ import annotations

from children import library_environment, run

FIRST = """
import torch, sinpe_ext as sinpe
sizes = []
def counted(function):
    return lambda x, *rest, **more: sizes.append(x.numel()) or function(x, *rest, **more)
torch.sin, torch.cos, torch.exp = map(counted, (torch.sin, torch.cos, torch.exp))
sinpe.table(5000, sinpe.Encoding(64, angle="float32_exp"))
sinpe.table(5000, sinpe.Encoding(64))
assert sizes[:6] == [1] * 6 and sizes.count(1) == 6, sizes[:20]
"""


def test_first_call_has_one_element() -> None:
    run(FIRST, library_environment("eager"))

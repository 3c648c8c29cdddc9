"""The Python functions of the package that a call enters must not increase: none for most repeated calls.

The first call of a kind is checked in Python and kept; others of its kind are repeated in C. A failed test lists the
functions, in order. Each call runs on the CPU, without a gradient unless its name says so, after three warm-up calls.
torch's own functions, comprehensions and generator expressions are not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from ways import use

import sinpe_ext as sinpe

PACKAGE = Path(sinpe.__file__).parent
INLINE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")  # a frame of its own or not, by Python version
B, S, D, ROWS = 2, 16, 512, 1000

ENCODING, IMAGE = sinpe.Encoding(D), sinpe.convention("mae2d", D)
LAYER, TIMESTEPS = sinpe.SinusoidalPositionalEncoding(D).eval(), sinpe.TimestepEncoding(D).eval()
EMBEDDING = sinpe.SinusoidalEmbedding(ROWS, D).eval()
X, OUT, PLACES, LARGE = torch.randn(B, S, D), torch.empty(B, S, D), torch.randn(B, 4, 4, D), torch.randn(B, 16 * S, D)
LEARNED, TURNED = torch.randn(B, S, D, requires_grad=True), torch.randn(S, B, D).transpose(0, 1).requires_grad_()
ALPHA, STARTS, SEED = torch.tensor(0.5, requires_grad=True), torch.tensor([5, 7]), torch.tensor(1)
IDS, WEIGHT, AT = torch.randint(0, ROWS, (B, S)), torch.randn(ROWS, D), torch.arange(S)

# The call, and the most functions that it enters if it is repeated, and if it is checked. They may only be lowered.
CALLS: dict[str, tuple[Callable[[], Any], int, int]] = {
    "add": (lambda: sinpe.add(X, ENCODING), 1, 40),
    "add, positions": (lambda: sinpe.add(X, ENCODING, positions=AT.int()), 1, 49),
    "add, starts": (lambda: sinpe.add(X, ENCODING, start=STARTS), 1, 61),
    "add, padding_mask": (lambda: sinpe.add(X, ENCODING, padding_mask=AT > 8), 1, 51),
    "add, dropout": (lambda: sinpe.add(X, ENCODING, dropout=0.1), 3, 48),
    "add, dropout, large": (lambda: sinpe.add(LARGE, ENCODING, dropout=0.1), 3, 48),
    "add, seed": (lambda: sinpe.add(X, ENCODING, dropout=0.1, seed=SEED), 1, 53),
    "add, out": (lambda: sinpe.add(X, ENCODING, dropout=0.1, out=OUT), 3, 59),
    "add_": (lambda: sinpe.add_(X, ENCODING), 1, 56),
    "add, extra tokens": (lambda: sinpe.add(X, ENCODING, extra_tokens=1), 1, 50),
    "add, grid": (lambda: sinpe.add(PLACES, IMAGE, alpha=0.5), 1, 54),
    "add, flat grid": (lambda: sinpe.add(LARGE, IMAGE, grid_shape=(15, 17), extra_tokens=1), 1, 57),
    "add, gradient": (lambda: sinpe.add(LEARNED, ENCODING, scale=2.0), 4, 50),
    "add, gradient of alpha": (lambda: sinpe.add(X, ENCODING, alpha=ALPHA), 6, 58),
    "add, gradient, dropout": (lambda: sinpe.add(TURNED, ENCODING, dropout=0.1), 8, 57),
    "embed": (lambda: sinpe.embed(IDS.int(), WEIGHT, ENCODING), 1, 56),
    "embed, dropout": (lambda: sinpe.embed(IDS, WEIGHT, ENCODING, dropout=0.1), 3, 62),
    "table": (lambda: sinpe.table(B * S, ENCODING, out=OUT.view(-1, D)), 1, 49),
    "encode": (lambda: sinpe.encode(AT, ENCODING, dtype=torch.float64), 1, 44),
    "layer": (lambda: LAYER(X), 3, 42),
    "embedding layer": (lambda: EMBEDDING(IDS), 10, 69),
    "timestep layer": (lambda: TIMESTEPS(AT), 2, 49),
}


def entered(call: Callable[[], Any]) -> list[str]:
    """Each function of the package that a warm call enters, in order."""
    for _ in range(3):
        call()
    functions: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and Path(code.co_filename).is_relative_to(PACKAGE) and code.co_name not in INLINE:
            functions.append(f"{Path(code.co_filename).name}: {getattr(code, 'co_qualname', code.co_name)}")

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return functions


@pytest.mark.parametrize("name", CALLS)
def test_functions_of_a_call(name: str, need_kernels: None) -> None:
    call, repeated, checked = CALLS[name]
    with sinpe.use_backend("compiled"):
        found = entered(call)
    assert 0 < len(found) <= repeated, found
    with use("checked"):
        found = entered(call)
    assert repeated < len(found) <= checked, found

"""The Python functions and files of the package that a call enters must not increase.

A failed test lists the functions, in order. Each call runs on the CPU, without a gradient unless its name says so,
after three warm-up calls. torch's own functions, comprehensions and generator expressions are not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import sinpe_ext as sinpe

PACKAGE = Path(sinpe.__file__).parent
INLINE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")  # a frame of its own or not, by Python version
B, S, D, ROWS = 2, 16, 512, 1000

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


def calls() -> dict[str, Callable[[], Any]]:
    encoding, layer = sinpe.Encoding(D), sinpe.SinusoidalPositionalEncoding(D).eval()
    image = sinpe.convention("mae2d", D)
    x, learned, places = torch.randn(B, S, D), torch.randn(B, S, D, requires_grad=True), torch.randn(B, 4, 4, D)
    ids, weight = torch.randint(0, ROWS, (B, S)), torch.randn(ROWS, D)
    embedding, timesteps = sinpe.SinusoidalEmbedding(ROWS, D).eval(), sinpe.TimestepEncoding(D).eval()
    positions, out = torch.arange(S), torch.empty(B, S, D)
    large, every, images = torch.randn(B, 16 * S, D), torch.arange(16 * S), torch.randn(B, 16, 16, D)
    into, learning = torch.empty_like(large), large.clone().requires_grad_()
    seed, transposed = torch.tensor(1), torch.randn(S, B, D).transpose(0, 1).requires_grad_()
    return {
        "add": lambda: sinpe.add(x, encoding),
        "add positions": lambda: sinpe.add(x, encoding, positions=positions),
        "add positions, large": lambda: sinpe.add(large, encoding, positions=every),
        "add padding_mask": lambda: sinpe.add(x, encoding, padding_mask=positions > 8),
        "add dropout": lambda: sinpe.add(x, encoding, dropout=0.1),
        "add dropout, large": lambda: sinpe.add(large, encoding, dropout=0.1),
        "add dropout gradient": lambda: sinpe.add(learned, encoding, dropout=0.1),
        "add dropout gradient, large": lambda: sinpe.add(learning, encoding, dropout=0.1),
        "add_ dropout": lambda: sinpe.add_(x, encoding, dropout=0.1),
        "add out": lambda: sinpe.add(x, encoding, out=out),
        "add out dropout": lambda: sinpe.add(x, encoding, dropout=0.1, out=out),
        "add out dropout, large": lambda: sinpe.add(large, encoding, dropout=0.1, out=into),
        "add grid": lambda: sinpe.add(places, image),
        "add grid dropout": lambda: sinpe.add(places, image, dropout=0.1),
        "add grid dropout, large": lambda: sinpe.add(images, image, dropout=0.1),
        "embed": lambda: sinpe.embed(ids, weight, encoding),
        "embed dropout": lambda: sinpe.embed(ids, weight, encoding, dropout=0.1),
        "table": lambda: sinpe.table(S, encoding),
        "table out": lambda: sinpe.table(B * S, encoding, out=out.view(-1, D)),
        "table grid": lambda: sinpe.table((4, 4), image),
        "encode": lambda: sinpe.encode(positions, encoding),
        "encode float64": lambda: sinpe.encode(positions, encoding, dtype=torch.float64),
        "layer, eval": lambda: layer(x),
        "embedding layer, eval": lambda: embedding(ids),
        "timestep layer": lambda: timesteps(positions),
        # the general path
        "add dropout, seed tensor": lambda: sinpe.add(x, encoding, dropout=0.1, seed=seed),
        "add out dropout, seed tensor": lambda: sinpe.add(x, encoding, dropout=0.1, seed=seed, out=out),
        "add gradient, x not contiguous": lambda: sinpe.add(transposed, encoding, dropout=0.1),
        "add grid, alpha": lambda: sinpe.add(places, image, alpha=0.5),
    }


def entered(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """(file, function) of each function of the package that a warm call enters, in order."""
    for _ in range(3):
        call()
    functions: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE) and frame.f_code.co_name not in INLINE:
                functions.append(
                    (path.relative_to(PACKAGE).as_posix(), getattr(frame.f_code, "co_qualname", frame.f_code.co_name))
                )

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return functions


@pytest.mark.parametrize("name", LIMITS)
def test_call_path_does_not_grow(name: str) -> None:
    if sinpe.backend_info().device("cpu").backend != "compiled":
        pytest.skip("eager PyTorch uses other paths")
    found = entered(calls()[name])
    functions, files = LIMITS[name]
    assert 0 < len(found) <= functions and len({file for file, _ in found}) <= files, found

"""The Python functions and files of the package that a call enters must not increase.

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

import sinpe_ext as sinpe
from sinpe_ext.backend import loader

PACKAGE = Path(sinpe.__file__).parent
INLINE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")  # a frame of its own or not, by Python version
B, S, D, ROWS = 2, 16, 512, 1000

REPEATED = {  # functions and files of repeated calls; may only be lowered
    "add": (1, 1),
    "add positions": (1, 1),
    "add positions, int32": (1, 1),
    "add positions, large": (1, 1),
    "add start, tensor": (1, 1),
    "add padding_mask": (1, 1),
    "add dropout": (3, 3),
    "add dropout, large": (3, 3),
    "add gradient": (4, 3),
    "add gradient of alpha": (6, 3),
    "add dropout gradient": (8, 5),
    "add dropout gradient, large": (8, 5),
    "add_ dropout": (3, 3),
    "add out": (1, 1),
    "add out dropout": (3, 3),
    "add out dropout, large": (3, 3),
    "add grid": (1, 1),
    "add grid dropout": (3, 3),
    "add grid dropout, large": (3, 3),
    "add grid, alpha": (1, 1),
    "add grid, extra tokens": (1, 1),
    "embed": (1, 1),
    "embed, int32": (1, 1),
    "embed dropout": (3, 3),
    "table": (1, 1),
    "table out": (1, 1),
    "encode": (1, 1),
    "encode float64": (1, 1),
    "layer, eval": (3, 2),
    "embedding layer, eval": (10, 5),
    "timestep layer": (2, 1),
    "add dropout, seed tensor": (1, 1),
    "add out dropout, seed tensor": (1, 1),
    "add gradient, x not contiguous": (8, 5),
}
CHECKED = {  # of calls that are checked in Python
    "add": (40, 13),
    "add positions": (48, 13),
    "add positions, int32": (49, 13),
    "add positions, large": (48, 13),
    "add start, tensor": (61, 13),
    "add padding_mask": (51, 13),
    "add dropout": (48, 14),
    "add dropout, large": (48, 14),
    "add gradient": (50, 13),
    "add gradient of alpha": (58, 13),
    "add dropout gradient": (57, 14),
    "add dropout gradient, large": (57, 14),
    "add_ dropout": (56, 15),
    "add out": (51, 14),
    "add out dropout": (59, 15),
    "add out dropout, large": (59, 15),
    "add grid": (53, 14),
    "add grid dropout": (61, 15),
    "add grid dropout, large": (61, 15),
    "add grid, alpha": (54, 14),
    "add grid, extra tokens": (57, 15),
    "embed": (55, 14),
    "embed, int32": (56, 14),
    "embed dropout": (62, 15),
    "table": (45, 13),
    "table out": (49, 13),
    "table grid": (76, 16),
    "encode": (44, 14),
    "encode float64": (44, 14),
    "layer, eval": (42, 15),
    "embedding layer, eval": (69, 16),
    "timestep layer": (49, 16),
    "add dropout, seed tensor": (53, 14),
    "add out dropout, seed tensor": (73, 15),
    "add gradient, x not contiguous": (57, 14),
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
    starts, narrow, alpha = torch.tensor([5, 7]), positions.int(), torch.tensor(0.5, requires_grad=True)
    seed, transposed = torch.tensor(1), torch.randn(S, B, D).transpose(0, 1).requires_grad_()
    return {
        "add": lambda: sinpe.add(x, encoding),
        "add positions": lambda: sinpe.add(x, encoding, positions=positions),
        "add positions, int32": lambda: sinpe.add(x, encoding, positions=narrow),
        "add positions, large": lambda: sinpe.add(large, encoding, positions=every),
        "add start, tensor": lambda: sinpe.add(x, encoding, start=starts),
        "add padding_mask": lambda: sinpe.add(x, encoding, padding_mask=positions > 8),
        "add dropout": lambda: sinpe.add(x, encoding, dropout=0.1),
        "add dropout, large": lambda: sinpe.add(large, encoding, dropout=0.1),
        "add gradient": lambda: sinpe.add(learned, encoding, scale=2.0),
        "add gradient of alpha": lambda: sinpe.add(x, encoding, alpha=alpha),
        "add dropout gradient": lambda: sinpe.add(learned, encoding, dropout=0.1),
        "add dropout gradient, large": lambda: sinpe.add(learning, encoding, dropout=0.1),
        "add_ dropout": lambda: sinpe.add_(x, encoding, dropout=0.1),
        "add out": lambda: sinpe.add(x, encoding, out=out),
        "add out dropout": lambda: sinpe.add(x, encoding, dropout=0.1, out=out),
        "add out dropout, large": lambda: sinpe.add(large, encoding, dropout=0.1, out=into),
        "add grid": lambda: sinpe.add(places, image),
        "add grid dropout": lambda: sinpe.add(places, image, dropout=0.1),
        "add grid dropout, large": lambda: sinpe.add(images, image, dropout=0.1),
        "add grid, alpha": lambda: sinpe.add(places, image, alpha=0.5),
        "add grid, extra tokens": lambda: sinpe.add(large, image, grid_shape=(15, 17), extra_tokens=1),
        "embed": lambda: sinpe.embed(ids, weight, encoding),
        "embed, int32": lambda: sinpe.embed(ids.int(), weight, encoding),
        "embed dropout": lambda: sinpe.embed(ids, weight, encoding, dropout=0.1),
        "table": lambda: sinpe.table(S, encoding),
        "table out": lambda: sinpe.table(B * S, encoding, out=out.view(-1, D)),
        "table grid": lambda: sinpe.table((4, 4), image),
        "encode": lambda: sinpe.encode(positions, encoding),
        "encode float64": lambda: sinpe.encode(positions, encoding, dtype=torch.float64),
        "layer, eval": lambda: layer(x),
        "embedding layer, eval": lambda: embedding(ids),
        "timestep layer": lambda: timesteps(positions),
        "add dropout, seed tensor": lambda: sinpe.add(x, encoding, dropout=0.1, seed=seed),
        "add out dropout, seed tensor": lambda: sinpe.add(x, encoding, dropout=0.1, seed=seed, out=out),
        "add gradient, x not contiguous": lambda: sinpe.add(transposed, encoding, dropout=0.1),
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


@pytest.mark.parametrize("name", REPEATED)
def test_repeated_call(name: str) -> None:
    if sinpe.backend_info().device("cpu").backend != "compiled":
        pytest.skip("eager PyTorch repeats no calls")
    check(entered(calls()[name]), REPEATED[name])


@pytest.mark.parametrize("name", CHECKED)
def test_first_call(name: str, need_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with sinpe.use_backend("compiled"):
        call = calls()[name]
        call()  # loads the kernels
        monkeypatch.setattr(loader, "repeat", loader._repeat_nothing)
        monkeypatch.setattr(loader, "keep", lambda *call: True)
        check(entered(call), CHECKED[name])


def check(found: list[tuple[str, str]], most: tuple[int, int]) -> None:
    assert 0 < len(found) <= most[0] and len({file for file, _ in found}) <= most[1], found

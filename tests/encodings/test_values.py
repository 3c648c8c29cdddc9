"""Values of all interfaces at unusual positions, and tensors without dense memory in place of each argument.

The rest of the bad-input catalogue (docs/reliability.md): tests/checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from interfaces import check_error, everywhere, interfaces, message_of, same_bits
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext import numpy as sinpe_numpy
from sinpe_ext.encodings.plan import plan
from sinpe_ext.reference import exact

B, S, D = 2, 5, 8
MAX = 2**63 - 1
GRID = sinpe.convention("mae2d", D)
TWICE = sinpe.GridEncoding((sinpe.Encoding(D),) * 2)
ALL = "compiled", "eager", "meta", "CUDA", "NumPy", "layer", "embedding", "grid"

X, PICTURE, WEIGHT = torch.zeros(B, S, D), torch.zeros(B, 3, 4, D), torch.zeros(3, D)
IDS, AT = torch.zeros(B, S, dtype=torch.int64), torch.arange(S)


def layer(x: Tensor, **named: Any) -> Tensor:
    return sinpe.SinusoidalPositionalEncoding(D, 0.0).to(x.device)(x, **named)


def embedding(ids: Tensor, **named: Any) -> Tensor:
    return sinpe.SinusoidalEmbedding(3, D, dropout=0.0, _weight=WEIGHT.to(ids.device))(ids, **named).detach()


def timestep(t: Tensor) -> Tensor:
    return sinpe.TimestepEncoding(D, encoding="paper")(t)


def call(function: Callable[..., Any], *arguments: Any) -> Callable[[str], Any]:
    """A call as a function of the device of its tensors."""
    return lambda device: function(*(a.to(device) if isinstance(a, Tensor) else a for a in arguments))


def calls_at(positions: Tensor) -> list[Callable[[str], Any]]:
    return [
        call(sinpe.encode, positions, D),
        call(lambda x, p: sinpe.add(x, positions=p)[1], X, positions),
        call(lambda x, p: layer(x, positions=p)[1], X, positions),
        call(lambda ids, p: embedding(ids, positions=p)[1], IDS, positions),
        call(timestep, positions),
    ]


@pytest.mark.bad_input(15, "meta", "layer", "embedding", "grid", "timestep")
@pytest.mark.bad_input(1, *ALL, "timestep")
@pytest.mark.bad_input(2, *ALL, "timestep")
@pytest.mark.bad_input(3, *ALL)
@pytest.mark.bad_input(7, *ALL)
@pytest.mark.parametrize("first", [10**12, -3, -S, 2**24 + 1, 2**31 - 2, MAX - S + 1, -MAX - 1])
def test_any_int64_position_is_exact(first: int, nan_filled_empty: None) -> None:
    """Past any table, below zero (W[-1] would be a table's last row), and at both ends of int64."""
    at, paper = torch.arange(S) + first, plan(sinpe.Encoding(D))
    want = torch.tensor([[exact.float32(paper, p, channel) for channel in range(D)] for p in range(first, first + S)])
    for made in (
        *calls_at(at),
        lambda device: sinpe.table(S, D, start=first, device=device),
        lambda device: sinpe.table((S, 1), TWICE, start=(first, 0), device=device)[:, 0, :D],
        call(lambda x, start: sinpe.add(x, start=start)[1], X, torch.tensor([0, first])),
        call(lambda x: layer(x, start=first)[1], X),
        call(lambda p: sinpe.encode(p, TWICE)[:, :D], torch.stack([at, AT], -1)),
    ):
        assert torch.equal(everywhere(made), want)
    assert np.array_equal(sinpe_numpy.table(S, D, start=first), want.numpy())
    assert np.array_equal(sinpe_numpy.encode(at.numpy(), D), want.numpy())
    assert np.array_equal(sinpe_numpy.table((S, 2), TWICE, start=(first, 0))[:, 1, :D], want.numpy())


@pytest.mark.bad_input(4, *ALL, "timestep")
def test_nan_and_inf_positions_affect_only_their_rows() -> None:
    at = torch.tensor([1.5, math.nan, -2.0, math.inf, -math.inf])
    good = at.isfinite()
    rows = same_bits([(str(number), everywhere(made)) for number, made in enumerate(calls_at(at))])
    assert bool(rows[~good].isnan().all()) and bool(rows[good].isfinite().all())
    assert np.array_equal(sinpe_numpy.encode(at.numpy(), D), rows.numpy(), equal_nan=True)
    pair = torch.stack([at, torch.ones(S)], -1)
    grid = everywhere(call(sinpe.encode, pair, GRID))
    assert grid[~good].isnan().sum() == int((~good).sum()) * D // 2 and bool(grid[good].isfinite().all())
    assert np.array_equal(sinpe_numpy.encode(pair.numpy(), GRID), grid.numpy(), equal_nan=True)


@pytest.mark.bad_input(8, "compiled", "eager")
@pytest.mark.bad_input(10, "meta")
def test_unusual_bases_and_sizes() -> None:
    ones, huge = (sinpe.table(9, sinpe.Encoding(D, base=base)) for base in (1.0, 1e38))
    assert torch.equal(ones[:, 0], ones[:, 6]) and bool(huge.isfinite().all())  # base 1: all frequencies equal
    assert everywhere(call(sinpe.encode, torch.empty(0, 2**40), D)).shape == (0, 2**40, D)
    given = torch.empty(1, 2**22, 2**20, dtype=torch.bfloat16, device="meta")
    assert sinpe.add(given).shape == given.shape and sinpe.table(2**40, D, device="meta").shape == (2**40, D)


@pytest.mark.bad_input(11, "NumPy")
def test_arrays_of_any_layout() -> None:
    p = np.arange(60.0).reshape(3, 4, 5)
    raw = np.frombuffer(b"\0" + p.tobytes(), np.uint8)[1:].view(np.float64).reshape(p.shape)
    for same in (np.asfortranarray(p), p[::-1][::-1], p.astype(">f8"), np.repeat(p, 2, axis=1)[:, ::2], raw):
        assert np.array_equal(sinpe_numpy.encode(same, D), sinpe_numpy.encode(p.copy(), D))
    out = np.zeros(4 * 4 * D + 1, np.uint8)[1:].view(np.float32).reshape(4, D)  # unaligned
    assert sinpe_numpy.table(4, D, out=out) is out and np.array_equal(out, sinpe_numpy.table(4, D))


def shrunk(t: Tensor) -> Tensor:
    """With a storage that holds less, as FSDP makes it: PyTorch's operations access memory out of bounds."""
    t = t.clone()
    t.untyped_storage().resize_(8)
    return t


@pytest.mark.bad_input(17, "compiled", "eager", "CUDA", "layer", "embedding", "grid")
def test_freed_storages_are_rejected() -> None:
    small = {"positions": AT, "start": AT[:2], "padding_mask": torch.zeros(B, S) > 0}
    for argument, *calls in (
        ("x", lambda d: sinpe.add(shrunk(PICTURE.to(d)), GRID), lambda d: layer(shrunk(X.to(d)))),
        ("out", lambda d: sinpe.table(B, D, out=shrunk(X[0, :B].to(d)))),
        *((name, lambda d, n=name: sinpe.add(X.to(d), **{n: shrunk(small[n].to(d))})) for name in small),
        ("ids", lambda d: embedding(shrunk(IDS.to(d)))),
        ("positions", lambda d: sinpe.encode(shrunk(AT.to(d)), D)),
    ):
        check_error(RuntimeError, f"{argument}: .* memory holds", *calls, with_data=True, alike=False)


FORMS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "sparse": (lambda: X[0].to_sparse(), "layout torch.sparse_coo; convert it to a dense one first"),
    "compressed": (lambda: X[0].to_sparse_csr(), "layout torch.sparse_csr; convert it to a dense one first"),
    "mkldnn": (lambda: X.to_mkldnn(), "layout torch._mkldnn; convert it to a dense one first"),
    "quantized": (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), "torch.quint8; convert it"),
    "nested": (lambda: torch.nested.nested_tensor([X[0, :2], X[0]]), "a nested tensor; convert it"),
    "masked": (lambda: torch.masked.as_masked_tensor(X, X > 0), "a MaskedTensor; pass its get_data()"),
}
TAKERS: list[tuple[str, Callable[[Tensor], Any]]] = [
    ("x", sinpe.add),
    ("x", layer),
    ("x", lambda t: sinpe.add(t, GRID)),
    ("out", lambda t: sinpe.table(S, D, out=t)),
    ("positions", lambda t: sinpe.encode(t, D)),
    ("positions", lambda t: sinpe.add(PICTURE, GRID, positions=t)),
    ("alpha", lambda t: sinpe.add(X, alpha=t)),
    ("padding_mask", lambda t: sinpe.add(X, padding_mask=t)),
    ("start", lambda t: sinpe.add(X, start=t)),
    ("weight", lambda t: sinpe.embed(IDS, t)),
    ("ids", embedding),
]


@pytest.mark.bad_input(16, "compiled", "eager", "layer", "embedding", "grid", "timestep")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
def test_non_dense_tensors_are_rejected(form: str) -> None:
    """In place of a number, too, where the message does not print the tensor."""
    make, got = FORMS[form]
    for name, function in TAKERS:
        message = message_of(TypeError, lambda function=function: function(make()), name)
        assert message.startswith(f"{name}: expected a dense strided tensor, got {got}"), message
    message_of(TypeError, lambda: timestep(make()))
    for number in ({"scale": make()}, {"dropout": make()}, {"seq_dim": make()}):
        message_of(TypeError, lambda number=number: sinpe.add(X, **number))
    for number in (make(), shrunk(X)):  # printing a tensor without storage would crash the process
        message_of(TypeError, lambda number=number: sinpe.Encoding(D, base=number))


def test_available_interfaces(request: pytest.FixtureRequest) -> None:
    """Fails if the required backend is not among the tested interfaces."""
    names = {interface.name for interface in interfaces()}
    assert {"eager", "meta"} <= names
    required = request.config.getoption("--require-backend")
    assert required not in ("compiled", "cuda", "emulated") or ("cuda" if required == "cuda" else "compiled") in names

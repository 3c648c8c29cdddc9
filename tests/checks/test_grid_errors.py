"""Errors of grid arguments; nothing is written by a rejected call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import sinpe_ext as sinpe

GRID = sinpe.convention("mae2d", 8)
LINE = sinpe.GridEncoding((sinpe.Encoding(6, layout="sin_cos", shift=1),), dim=8)
X = torch.zeros(2, 3, 4, 8)
FLAT = torch.zeros(2, 12, 8)
add = sinpe.add

ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: add(FLAT, GRID), ValueError, "grid_shape: expected the lengths of the grid's axes for x of 3 dimensions"),
    (lambda: add(FLAT, GRID), ValueError, "pass grid_shape=(H, W)"),
    (lambda: add(FLAT, GRID, grid_shape=(3, 5)), ValueError, "grid_shape: expected a sequence of 15"),
    (lambda: add(FLAT, GRID, grid_shape=(3, 4), extra_tokens=1), ValueError, "expected a sequence of 13"),
    (lambda: add(X, GRID, grid_shape=(4, 3)), ValueError, "or the dimensions (4, 3) in x"),
    (
        lambda: add(X, GRID, extra_tokens=1),
        ValueError,
        "grid_shape: expected the lengths of the grid's axes for extra_tokens=1",
    ),
    (lambda: add(FLAT, GRID, grid_shape=(12,)), ValueError, "grid_shape: expected 2 lengths, one per axis"),
    (lambda: add(FLAT, GRID, grid_shape=12), TypeError, "grid_shape: expected 2 ints, the grid's lengths, got int"),
    (lambda: add(FLAT, GRID, grid_shape=(3, -4)), ValueError, "grid_shape: expected an int in 0"),
    (lambda: add(FLAT, GRID, grid_shape=(3, 4.0)), TypeError, "grid_shape: expected int, got float"),
    (lambda: add(FLAT, GRID, grid_shape=(3, 4), extra_tokens=-1), ValueError, "extra_tokens: expected an int in 0"),
    (lambda: add(X[..., :7], GRID), ValueError, "x: expected 8 channels, those of the encoding, got 7"),
    (lambda: add(X[..., :6], "mae2d"), ValueError, "dim: expected a multiple of 4 for mae2d, got 6"),
    (lambda: add(X[..., :6], "mae2d"), ValueError, "channel_dim says where they are"),
    (lambda: add(X[0], GRID), ValueError, "or which are dimensions of an x without batch"),
    (lambda: add(X, GRID, channel_dim=1), ValueError, "x: expected 8 channels"),
    (lambda: add(X.movedim(-1, 2), GRID, channel_dim=2), ValueError, "channel_dim: expected the channels before or"),
    (lambda: add(X.long(), GRID), TypeError, "x: expected torch.float32"),
    (lambda: add(X, GRID, start=(1, 2, 3)), ValueError, "start: expected an int or 2 of them"),
    (lambda: add(X, GRID, start=1.5), TypeError, "start: expected int, got float"),
    (lambda: add(X, GRID, start=2**63 - 2), ValueError, "start: expected every position"),
    (lambda: add(X, GRID, start=torch.zeros(3, dtype=torch.long)), ValueError, "start: expected shape () or (2,)"),
    (lambda: add(X, GRID, start=torch.zeros(3, 2, dtype=torch.long)), ValueError, "or (2, 2), one for each sample"),
    (lambda: add(X, GRID, start=torch.zeros(2)), TypeError, "start: expected an int or an integer tensor"),
    (lambda: add(X, GRID, positions=torch.zeros(3, 4, 2), start=1), ValueError, "start: expected 0 together with"),
    (lambda: add(X, GRID, positions=torch.zeros(3, 4)), ValueError, "positions: expected shape (3, 4, 2) or (2, 3, 4"),
    (lambda: add(X, GRID, positions=torch.zeros(3, 4, 3)), ValueError, "coordinates in the last dimension"),
    (lambda: add(X, GRID, positions=torch.zeros(12, 2)), ValueError, "positions: expected shape (3, 4, 2)"),
    (lambda: add(FLAT, GRID, positions=torch.zeros(11, 2)), ValueError, "positions: expected shape (12, 2)"),
    (lambda: add(X, GRID, positions=torch.zeros(3, 4, 2).bfloat16()), TypeError, "cannot hold integers above 256"),
    (lambda: add(X, GRID, padding_mask=torch.zeros(3, 4)), TypeError, "padding_mask: expected bool"),
    (lambda: add(X, GRID, padding_mask=torch.zeros(4, 3) > 0), ValueError, "padding_mask: expected shape (3, 4)"),
    (lambda: add(X, GRID, alpha=torch.zeros(2)), ValueError, "alpha: expected a float or a tensor of shape ()"),
    (lambda: add(X, GRID, dropout=2), ValueError, "dropout: expected 0 to 1"),
    (lambda: add(X, GRID, seed="x", dropout=0.5), TypeError, "seed: expected"),
    (lambda: add(X, GRID, out=FLAT), ValueError, "out: expected shape (2, 3, 4, 8)"),
    (lambda: add(X, sinpe.Encoding(8), grid_shape=(3, 4)), ValueError, "grid_shape: expected None for an encoding of"),
    (lambda: add(FLAT, sinpe.Encoding(8), extra_tokens=13), ValueError, "extra_tokens: expected at most 12"),
    (lambda: sinpe.add_(X[:1].expand(2, 3, 4, 8), GRID), RuntimeError, "x: expected one memory location"),
    (lambda: sinpe.table(5, GRID), TypeError, "length: expected 2 ints, the grid's lengths, got int"),
    (lambda: sinpe.table((5,), GRID), ValueError, "length: expected 2 lengths"),
    (lambda: sinpe.table((5, 6), 8), TypeError, "length: expected int, got tuple"),
    (lambda: sinpe.table((2, 3), GRID, out=torch.zeros(6, 8)), ValueError, "out: expected shape (2, 3, 8)"),
    (lambda: sinpe.table((2, 3), GRID, dtype=torch.int64), TypeError, "dtype: expected torch.float32"),
    (lambda: sinpe.table((2, 3), "mae2d"), TypeError, 'pass dim=, or convention("mae2d", dim)'),
    (lambda: sinpe.encode(torch.zeros(3), GRID), ValueError, "positions: expected 2 coordinates"),
    (lambda: sinpe.encode(torch.tensor(1.0), GRID), ValueError, "positions: expected 2 coordinates"),
    (lambda: sinpe.embed(FLAT[..., 0].long(), torch.zeros(4, 8), GRID), TypeError, "got a GridEncoding of 2 axes"),
    (lambda: sinpe.embed(FLAT[..., 0].long(), torch.zeros(4, 8), "mae2d"), TypeError, 'got the grid "mae2d"'),
    (lambda: sinpe.TimestepEncoding(8, encoding="mae2d"), (TypeError, ValueError), "encoding"),
    (lambda: sinpe.SinusoidalEmbedding(9, 8, encoding="mae2d"), TypeError, "one-dimensional encodings"),
    (lambda: sinpe.numpy.table(5, GRID), TypeError, "length: expected 2 ints, the grid's lengths, got int"),
    (lambda: sinpe.numpy.table((5, 6), GRID, start=(1,)), ValueError, "start: expected an int or 2 of them"),
    (lambda: sinpe.numpy.encode([1.0, 2.0, 3.0], GRID), ValueError, "positions: expected 2 coordinates"),
    (
        lambda: sinpe.table(5, LINE),
        TypeError,
        "length: expected 1 int, the grid's length, got int; pass a tuple such as (14,)",
    ),
    (lambda: add(FLAT, LINE, grid_shape=12), TypeError, "the grid's length, got int; pass a tuple such as (14,)"),
]


@pytest.mark.parametrize(("call", "error", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors(backend: str, call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


def test_numpy_out() -> None:
    numpy = pytest.importorskip("numpy")
    with sinpe.use_backend("eager"), pytest.raises(ValueError, match=r"out: expected shape \(2, 3, 8\)"):
        sinpe.numpy.table((2, 3), GRID, out=numpy.zeros((6, 8), "float32"))


def test_rejected_call_writes_nothing_and_draws_nothing(backend: str) -> None:
    out, state = torch.full_like(X, 7.0), torch.get_rng_state()
    for more in ({"positions": torch.zeros(5, 2)}, {"padding_mask": torch.zeros(2) > 0}, {"start": (1,)}):
        with pytest.raises(ValueError):
            add(X, GRID, out=out, dropout=0.5, **more)
    assert torch.equal(out, torch.full_like(X, 7.0)) and torch.equal(torch.get_rng_state(), state)


NONE = None, None, None, None  # positions, padding_mask, alpha, seed
PLAIN = 0, False, 1.0, 0, 0, []  # start, positions_are_starts, scale, extra_tokens, drop_threshold, rng_offsets


@pytest.mark.parametrize("words", [[1, 2, 3], "magic", "axis", "channel", "offset", "values", "length", "count"])
def test_invalid_packed_grid_is_rejected(words: Any) -> None:
    """The operator checks its operands itself."""
    from sinpe_ext.operations import grid_rows

    if sinpe.backend_info().device("cpu").backend != "compiled" or torch.ops.sinpe_ext.cpu_isa() == "emulated":
        pytest.skip("checked by the CPU kernel only; CUDA gives NaN, see test_cuda_binding.py")
    good = grid_rows.pack_grid(GRID, (3, 4), False, torch.device("cpu"))
    values = torch.zeros(3 * 4 + 4 * 4)
    bad = torch.tensor(words) if isinstance(words, list) else good.clone()
    places = {"magic": 0, "values": 6, "length": 8, "axis": 10, "channel": 11, "offset": 14, "count": 4}
    if isinstance(words, str):
        bad[places[words]] = 2**40 if words != "axis" else 2
    op = torch.ops.sinpe_ext.add_out.default
    out = torch.full_like(FLAT, 7.0)
    with pytest.raises(RuntimeError):
        op(FLAT, bad, *NONE, values, *PLAIN, out)
    with pytest.raises(RuntimeError):
        op(FLAT, good, *NONE, values.double(), *PLAIN, out)
    with pytest.raises(RuntimeError):
        op(FLAT[:, :11], good, *NONE, values, *PLAIN, out[:, :11])
    assert torch.equal(out, torch.full_like(FLAT, 7.0))
    op(FLAT, good, *NONE, values, *PLAIN, out)
    assert torch.equal(out, FLAT)

"""`SinusoidalPositionalEncoding` with a grid, or with extra tokens before a sequence."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import sinpe_ext as sinpe

D = 16


def test_images(backend: str) -> None:
    grid = sinpe.convention("timm2d", D)
    x = torch.randn(2, 3, 5, D)
    layer = sinpe.SinusoidalPositionalEncoding(D, 0.0, encoding="timm2d").eval()
    assert layer.encoding == grid and torch.equal(layer(x), sinpe.add(x, grid))
    flat = sinpe.SinusoidalPositionalEncoding(D, 0.0, encoding=grid, grid_shape=(3, 5), extra_tokens=1, scale=2.0)
    tokens = torch.randn(2, 16, D)
    want = sinpe.add(tokens, grid, grid_shape=(3, 5), extra_tokens=1, scale=2.0)
    assert torch.equal(flat(tokens), want)
    assert torch.equal(
        flat(tokens, grid_shape=(5, 3)), sinpe.add(tokens, grid, grid_shape=(5, 3), extra_tokens=1, scale=2.0)
    )
    first = sinpe.SinusoidalPositionalEncoding(D, 0.0, encoding=grid, channel_dim=1)
    assert torch.equal(first(x.movedim(-1, 1)).movedim(1, -1), sinpe.add(x, grid))
    assert torch.equal(layer(x, start=(1, 2)), sinpe.add(x, grid, start=(1, 2)))
    for other in (copy.deepcopy(flat), pickle.loads(pickle.dumps(flat))):
        assert torch.equal(other(tokens), want) and not other.state_dict()
    assert "grid_shape=(3, 5), extra_tokens=1" in repr(flat) and "channel_dim=1" in repr(first)


def test_training(backend: str) -> None:
    grid = sinpe.convention("mae2d", D)
    layer = sinpe.SinusoidalPositionalEncoding(D, 0.5, encoding=grid, learned_alpha=True, alpha=0.3)
    x = torch.randn(2, 3, 5, D, requires_grad=True)
    torch.manual_seed(3)
    y = layer(x)
    torch.manual_seed(3)
    assert torch.equal(y, sinpe.add(x, grid, alpha=layer.alpha, dropout=0.5))
    assert 0.3 < float((y == 0).float().mean()) < 0.7
    y.sum().backward()
    assert layer.alpha.grad is not None and x.grad is not None


def test_extra_tokens_of_a_sequence(backend: str) -> None:
    layer = sinpe.SinusoidalPositionalEncoding(D, 0.0, max_len=6, extra_tokens=2).eval()
    x = torch.randn(2, 8, D)
    assert torch.equal(layer(x), torch.cat([x[:, :2], x[:, 2:] + sinpe.table(6, D)], 1))
    with pytest.raises(IndexError, match="x: expected at most 6 rows, which max_len allows, got 7"):
        layer(torch.randn(2, 9, D))
    with pytest.raises(IndexError, match="positions: expected 0 to 5"):
        layer(x, positions=torch.arange(6) + 1)


def test_tables_in_checkpoints(backend: str, recwarn: pytest.WarningsRecorder) -> None:
    layer = sinpe.SinusoidalPositionalEncoding(
        D, encoding="mae2d", grid_shape=(3, 5), extra_tokens=1, persistent_table=True
    )
    state = layer.state_dict()
    want = sinpe.table((3, 5), sinpe.convention("mae2d", D), extra_tokens=1)
    assert torch.equal(state["pe"], want[None])
    layer.load_state_dict(state)
    assert not [w for w in recwarn if "pe" in str(w.message)]
    state = layer.state_dict()
    state["pe"] = sinpe.table((3, 5), sinpe.convention("hf2d", D), extra_tokens=1)[None]
    with pytest.warns(UserWarning, match="row 2 differs by"):
        layer.load_state_dict(state)
    state = layer.state_dict()
    state["pe"] = state["pe"][:, 1:]
    with pytest.warns(UserWarning, match="it has 15 rows, not the 16"):
        layer.load_state_dict(state)


ERRORS = [
    ({"encoding": "mae2d", "max_len": 5}, "max_len: expected None for a grid"),
    ({"encoding": "mae2d", "persistent_table": True}, "pass grid_shape"),
    ({"grid_shape": (3, 5)}, "grid_shape: expected None for an encoding of one dimension"),
    ({"encoding": "mae2d", "grid_shape": (3,)}, "grid_shape: expected 2 lengths"),
    ({"encoding": sinpe.convention("mae2d", 8)}, "encoding: expected dim 16"),
    ({"extra_tokens": -1}, "extra_tokens: expected an int in 0"),
]


@pytest.mark.parametrize(("options", "message"), ERRORS)
def test_errors(options: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        sinpe.SinusoidalPositionalEncoding(D, **options)
    assert message in str(caught.value)

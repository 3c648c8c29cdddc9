"""Known bugs of other implementations, one test each."""

from __future__ import annotations

import inspect
import math
import warnings

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

import sinpe_ext as sinpe

FLOAT64 = 1e-13  # for float64 formulas written here, at positions below 100
LATTICE = (3, 4)  # rows, columns: not square


def pixels(dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, *LATTICE, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("name", ["t2t", "fairseq", "ctranslate2", "ddpm", "musicgen"])
def test_single_timescale_has_frequency_1(name: str, dim: int, backend: str) -> None:
    """h - 1 = 0: ZeroDivisionError in fairseq and M2M100, NaN in diffusers."""
    p = torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
    got = sinpe.encode(p, sinpe.convention(name, dim), dtype=torch.float64)
    pair = [p.cos(), p.sin()] if name == "musicgen" else [p.sin(), p.cos()]
    want = torch.stack(pair + [torch.zeros(3, dtype=torch.float64)] * (dim - 2), 1)
    assert torch.allclose(got, want, rtol=0, atol=FLOAT64)
    got.sum().backward()
    assert torch.isfinite(p.grad).all()
    for angle in ("float32_exp", "float32_pow"):
        rounded = sinpe.encode(p.detach(), sinpe.convention(name, dim, angle=angle))
        assert torch.allclose(rounded.double(), want.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "dim"), [("bigvision2d", 4), ("t2t2d", 4), ("t2t2d", 7)])
def test_grid_of_a_single_timescale(name: str, dim: int, backend: str) -> None:
    y, x = torch.meshgrid(torch.arange(3.0), torch.arange(4.0), indexing="ij")
    first, second = (x, y) if name == "bigvision2d" else (y, x)
    want = torch.stack([first.sin(), first.cos(), second.sin(), second.cos()], -1)
    got = sinpe.table(LATTICE, sinpe.convention(name, dim))
    assert torch.allclose(got[..., :4], want, rtol=0, atol=1e-6) and not got[..., 4:].any()


def test_min_timescale_multiplies(backend: str) -> None:
    """tensor2tensor: inv_timescales = min_timescale * exp(-i * log(max / min) / (h - 1)), so the first is min."""
    low, high, half = 4.0, 1e4, 5
    encoding = sinpe.convention("t2t", 2 * half, base=high / low, position_scale=low)
    increment = math.log(high / low) / (half - 1)
    want = [low * math.exp(-i * increment) for i in range(half)]
    assert encoding.frequencies_radians() == pytest.approx(want, rel=1e-14)
    rows = sinpe.table(3, encoding, dtype=torch.float64)
    assert rows[1, 0] == pytest.approx(math.sin(low), abs=FLOAT64)
    assert rows[1, half - 1] == pytest.approx(math.sin(low * low / high), abs=FLOAT64)


def test_fairseq_padding_row_and_first_position(backend: str) -> None:
    """The first token has position padding_idx + 1; padding is not counted and gets zeros. See test_positions.py."""
    padding = 1
    ids = torch.tensor([[7, 8, 9, 1, 1], [1, 1, 4, 5, 6], [2, 1, 3, 1, 2]])
    positions, mask = sinpe.positions.from_padding_idx(ids, padding)
    assert positions.tolist() == [[2, 3, 4, 1, 1], [1, 1, 2, 3, 4], [2, 1, 3, 1, 4]]
    weight = torch.randn(10, 6)
    got = sinpe.embed(ids, weight, "t2t", positions=positions, padding_mask=mask)
    rows = sinpe.table(5, sinpe.convention("t2t", 6))
    rows[padding] = 0.0  # as in fairseq's table
    assert torch.equal(got, weight[ids] + rows[positions])
    # Without padding, these are the implicit positions of "fairseq".
    assert torch.equal(sinpe.add(torch.zeros(1, 3, 6), "fairseq")[0], rows[2:5])


def test_ctranslate2_counts_from_1(backend: str) -> None:
    rows = sinpe.table(6, sinpe.convention("t2t", 8))
    encoding = sinpe.convention("ctranslate2", 8)
    assert torch.equal(sinpe.table(5, encoding), rows[1:])
    assert torch.equal(sinpe.table(2, encoding, start=3), rows[4:6])  # step 3 of decoding
    # Explicit positions are absolute.
    assert torch.equal(sinpe.encode(torch.arange(6), encoding), rows)


def test_mae_is_columns_first_and_transformers_rows_first(backend: str) -> None:
    """The same channels in another order; on a square grid one is the transpose of the other, of equal shape."""
    mae, hf = (sinpe.convention(name, 16) for name in ("mae2d", "hf2d"))
    ours, theirs = sinpe.table(LATTICE, mae), sinpe.table(LATTICE, hf)
    assert not torch.equal(ours, theirs)
    assert torch.equal(ours, torch.cat([theirs[..., 8:], theirs[..., :8]], -1))
    assert torch.equal(sinpe.table((5, 5), mae).transpose(0, 1), sinpe.table((5, 5), hf))
    column = sinpe.table(4, sinpe.Encoding(8, layout="sin_cos"))
    assert torch.equal(ours[0, :, :8], column) and torch.equal(theirs[0, :, 8:], column)


def test_detr_counts_from_1_and_is_rows_first(backend: str) -> None:
    grid, dim = sinpe.convention("detr2d", 16), 8
    got = sinpe.table(LATTICE, grid)
    rows, columns = (sinpe.table(n, sinpe.Encoding(dim), start=1) for n in LATTICE)
    assert torch.equal(got[..., :dim], rows[:, None].expand(*LATTICE, dim))
    assert torch.equal(got[..., dim:], columns[None].expand(*LATTICE, dim))
    mask = torch.zeros(1, *LATTICE, dtype=torch.bool)
    positions = sinpe.positions.from_mask_2d(mask)
    assert positions[0, 0, 0].tolist() == [1, 1] and positions[0, 2, 3].tolist() == [3, 4]
    assert torch.equal(sinpe.encode(positions, grid)[0], got)
    mask[0, :, 3], mask[0, 2] = True, True  # padding right and below: the count does not advance
    assert sinpe.positions.from_mask_2d(mask)[0, 2, 3].tolist() == [0, 0]
    assert sinpe.positions.from_mask_2d(mask)[0, 1, 3].tolist() == [0, 3]


@pytest.mark.bad_input(9, "compiled", "eager", "grid", "timestep")
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_zero_places(shape: tuple[int, int], backend: str) -> None:
    """S = 0. One dimension: test_edge_input.py."""
    grid = sinpe.convention("mae2d", 8)
    assert sinpe.table(shape, grid).shape == (*shape, 8)
    assert sinpe.table(shape, grid, extra_tokens=2).tolist() == [[0.0] * 8] * 2
    x = torch.empty(2, *shape, 8, requires_grad=True)
    y = sinpe.add(x, grid, dropout=0.5)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad.shape == x.shape
    token = torch.randn(2, 1, 8)
    assert torch.equal(sinpe.add(token, grid, grid_shape=shape, extra_tokens=1), token)
    assert sinpe.encode(torch.empty(0, 2), grid).shape == (0, 8)
    assert sinpe.TimestepEncoding(6)(torch.empty(0)).shape == (0, 6)


@pytest.mark.bad_input(11, "compiled", "eager", "grid")
def test_strides_are_not_assumed(backend: str) -> None:
    """Transposed, sliced, expanded and channels-last x. One dimension: test_edge_input.py."""
    pe = sinpe.table(LATTICE, sinpe.convention("mae2d", 8))
    forms = {
        "channels last in memory": pixels(8).movedim(-1, 1).to(memory_format=torch.channels_last).movedim(1, -1),
        "every other channel": pixels(16)[..., ::2],
        "columns first in memory": pixels(8).transpose(1, 2).contiguous().transpose(1, 2),
        "expanded batch": pixels(8)[:1].expand(3, *LATTICE, 8),
        "expanded pixels": torch.randn(2, 1, 1, 8).expand(2, *LATTICE, 8),
        "one number": torch.randn(1).expand(2, *LATTICE, 8),
    }
    for form, x in forms.items():
        before = x.clone()
        assert torch.equal(sinpe.add(x, "mae2d"), before + pe), form
        assert torch.equal(x, before), form
        first = x.movedim(-1, 1)
        assert torch.equal(sinpe.add(first, "mae2d", channel_dim=1), (before + pe).movedim(-1, 1)), form


def test_length_beyond_max_len(backend: str) -> None:
    """A max_len gives a clear error instead of a broadcast error or device assert; without one there is no limit."""
    x = torch.randn(1, 12, 6)
    for train in (False, True):
        with pytest.raises(IndexError, match="x: expected at most 10 rows, which max_len allows, got 12"):
            sinpe.SinusoidalPositionalEncoding(6, max_len=10).train(train)(x)
    got = sinpe.SinusoidalPositionalEncoding(6).eval()(x, start=10**12)
    assert torch.equal(got, x + sinpe.table(12, 6, start=10**12))


def test_timesteps_of_any_dtype(backend: str) -> None:
    """int64 and 0-d are used as they are; `encode` rejects 16 bits with the reason. See also test_timestep.py."""
    encoding = sinpe.convention("adm", 8)
    want = sinpe.encode(torch.tensor([999.0]), encoding)
    for dtype in (torch.int64, torch.int32, torch.float64):
        assert torch.equal(sinpe.encode(torch.tensor([999], dtype=dtype), encoding), want)
        assert torch.equal(sinpe.encode(torch.tensor(999, dtype=dtype), encoding), want[0])
    with pytest.raises(TypeError, match="bfloat16"):
        sinpe.encode(torch.tensor([998.39], dtype=torch.bfloat16), encoding)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = sinpe.TimestepEncoding(8, encoding="adm")(torch.tensor(998.39, dtype=torch.bfloat16))
    assert torch.equal(got, sinpe.encode(torch.tensor(1000.0), encoding))  # the value after rounding to bfloat16
    exact = sinpe.TimestepEncoding(8, encoding="adm", dtype=torch.bfloat16)(torch.tensor(998.39))
    assert torch.equal(exact, sinpe.encode(torch.tensor(998.39), encoding).bfloat16())


def test_autocast_does_not_round_positions(backend: str) -> None:
    """See also test_autocast.py."""
    x, p = pixels(8), torch.rand(*LATTICE, 2, dtype=torch.float64) * 5000
    t = torch.tensor([998.39])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        added, encoded = sinpe.add(x, "mae2d"), sinpe.encode(p, sinpe.convention("mae2d", 8))
        steps = sinpe.TimestepEncoding(8)(t)
    assert torch.equal(added, sinpe.add(x, "mae2d"))
    assert torch.equal(encoded, sinpe.encode(p, sinpe.convention("mae2d", 8)))
    assert steps.dtype == torch.float32 and torch.equal(steps, sinpe.TimestepEncoding(8)(t))


def test_dropout_of_0_and_1(backend: str) -> None:
    """1 / (1 - p) divides by zero for p = 1. See also test_dropout.py."""
    x = pixels(8).requires_grad_()
    assert torch.equal(sinpe.add(x, "mae2d", dropout=0.0, seed=1), sinpe.add(x, "mae2d"))
    gone = sinpe.add(x, "mae2d", dropout=1.0)
    assert not gone.any()
    gone.sum().backward()
    assert not x.grad.any()
    layer = sinpe.SinusoidalPositionalEncoding(8, dropout=1.0)
    assert not layer(x[0].detach()).any() and layer.eval()(x[0].detach()).any()


def test_eval_mode_applies_no_dropout_and_draws_no_seed(backend: str) -> None:
    x = torch.randn(2, 5, 8)
    layer = sinpe.SinusoidalPositionalEncoding(8, dropout=0.5)
    state = torch.get_rng_state()
    assert torch.equal(layer.eval()(x), x + sinpe.table(5, 8))
    assert torch.equal(torch.get_rng_state(), state)
    assert (layer.train()(x) == 0).any()
    assert not torch.equal(torch.get_rng_state(), state)


@pytest.mark.sampled("values")
@pytest.mark.bad_input(19, "compiled", "eager", "grid")
@pytest.mark.parametrize("name", ["mae2d", "timm2d", "detr2d", "multidim2d"])
def test_double_backward(name: str, backend: str) -> None:
    """Through coordinates, x and alpha of a grid. One dimension: test_autograd.py."""
    grid = sinpe.convention(name, 8)
    p = (torch.rand(2, *LATTICE, 2, dtype=torch.float64) * 9).requires_grad_()
    x = pixels(8).double().requires_grad_()
    alpha = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    for call, inputs in (
        (lambda p: sinpe.encode(p, grid, dtype=torch.float64), (p,)),
        (lambda x, p, alpha: sinpe.add(x, grid, positions=p, alpha=alpha), (x, p, alpha)),
        (lambda x, alpha: sinpe.add(x, grid, alpha=alpha), (x, alpha)),
    ):
        assert gradcheck(call, inputs, fast_mode=True)
        assert gradgradcheck(lambda *given, call=call: call(*given).sin(), inputs, fast_mode=True)


def test_wrong_number_of_channels_is_rejected(backend: str) -> None:
    """positional-encodings silently cuts 10 channels of encoding to 5 of data."""
    wrong = pixels(10)
    for call in (
        lambda: sinpe.add(wrong[0], 5),
        lambda: sinpe.add(wrong, sinpe.convention("multidim2d", 5)),
        lambda: sinpe.add(wrong, sinpe.convention("mae2d", 8)),
        lambda: sinpe.add(wrong.movedim(-1, 1), sinpe.convention("multidim2d", 5), channel_dim=1),
        lambda: sinpe.add(wrong.flatten(1, 2), sinpe.convention("mae2d", 8), grid_shape=LATTICE),
        lambda: sinpe.SinusoidalPositionalEncoding(5)(wrong[0]),
        lambda: sinpe.embed(torch.zeros(2, 3, dtype=torch.long), torch.zeros(4, 10), sinpe.Encoding(5)),
    ):
        with pytest.raises(ValueError, match="channels") as caught:
            call()
        numbers = {word.strip(",.();") for word in str(caught.value).split()}
        assert "10" in numbers and numbers & {"5", "8"}


def test_batch_is_not_the_sequence(backend: str) -> None:
    """speechbrain's dual path and many copies of the tutorial index the table by the batch dimension."""
    x = torch.zeros(4, 7, 6)
    assert torch.equal(sinpe.add(x), sinpe.table(7, 6).expand(4, 7, 6))
    assert torch.equal(sinpe.add(x, seq_dim=0), sinpe.table(4, 6)[:, None].expand(4, 7, 6))


def test_grid_coordinates_are_rows_then_columns(backend: str) -> None:
    """numpy.meshgrid's default, "xy", gives the reverse order."""
    grid = sinpe.convention("hf2d", 8)
    ij = np.stack(np.meshgrid(np.arange(3), np.arange(4), indexing="ij"), -1)
    assert torch.equal(sinpe.encode(torch.from_numpy(ij), grid), sinpe.table(LATTICE, grid))
    assert torch.equal(sinpe.encode(sinpe.positions.grid(LATTICE), grid), sinpe.table(LATTICE, grid))


def test_freed_arguments_draw_no_seed(backend: str) -> None:
    """A call that raises does not advance the generator."""
    x, positions, out = torch.zeros(2, 4, 8), torch.arange(8.0).view(2, 4), torch.zeros(2, 4, 8)
    positions.untyped_storage().resize_(0)
    out.untyped_storage().resize_(0)
    before = torch.get_rng_state()
    for arguments in ({"positions": positions}, {"out": out}):
        with pytest.raises(RuntimeError, match="memory holds its elements"):
            sinpe.add(x, sinpe.Encoding(8), dropout=0.5, **arguments)
    weight = x[1]
    x.untyped_storage().resize_(8)
    for call in (
        lambda: sinpe.add(x, dropout=0.5),
        lambda: sinpe.add_(x, dropout=0.5),
        lambda: sinpe.add(x, dropout=0.5, seq_dim=0),
        lambda: sinpe.add(x, dropout=0.5, out=torch.zeros(2, 4, 8)),
        lambda: sinpe.embed(torch.zeros(3, dtype=torch.int64), weight, dropout=0.5),
    ):
        with pytest.raises(RuntimeError, match="(x|weight): expected a tensor whose memory holds its elements"):
            call()
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_in_tensors_may_change(backend: str) -> None:
    """What is cached by value does not keep the value of a tensor that is used as a number."""
    encoding, grid = sinpe.Encoding(8), sinpe.GridEncoding((sinpe.Encoding(4), sinpe.Encoding(4)))
    number, other = torch.tensor(1), torch.tensor(4)
    for value in (1, 3, 0):
        number.fill_(value)
        want = sinpe.add(torch.zeros(1, 5, 8), encoding, extra_tokens=value)
        assert torch.equal(sinpe.add(torch.zeros(1, 5, 8), encoding, extra_tokens=number), want)
    for value in (-1, 1):
        number.fill_(value)
        want = sinpe.add(torch.zeros(1, 8, 8, 8), grid, channel_dim=value)
        assert torch.equal(sinpe.add(torch.zeros(1, 8, 8, 8), grid, channel_dim=number), want)
    for lengths in ((4, 4), (2, 8)):
        number.fill_(lengths[0]), other.fill_(lengths[1])
        want = sinpe.add(torch.zeros(1, 16, 8), grid, grid_shape=lengths)
        assert torch.equal(sinpe.add(torch.zeros(1, 16, 8), grid, grid_shape=(number, other)), want)
    for seq_dim in (0, 1):
        number.fill_(seq_dim)
        x, ids, weight = torch.zeros(3, 4, 8), torch.zeros(3, 4, dtype=torch.long), torch.ones(2, 8)
        assert torch.equal(sinpe.add(x, encoding, seq_dim=number), sinpe.add(x, encoding, seq_dim=seq_dim))
        assert torch.equal(sinpe.embed(ids, weight, seq_dim=number), sinpe.embed(ids, weight, seq_dim=seq_dim))


def test_make_fx_before_dispatch_records_operators(backend: str) -> None:
    encoding = sinpe.Encoding(8)
    for call in (
        lambda x: sinpe.add(x, encoding),
        lambda x: sinpe.add(x, encoding, dropout=0.5, seed=1),
        lambda x: sinpe.encode(x[0, :, 0], encoding),
        lambda x: x + sinpe.table(3, encoding),
    ):
        graph = make_fx(call, pre_dispatch=True)(torch.ones(1, 3, 8))
        assert "sinpe_ext" in graph.code and torch.equal(graph(torch.zeros(1, 3, 8)), call(torch.zeros(1, 3, 8)))


def test_functional_tensors_reach_the_dispatcher(backend: str) -> None:
    """The tensors of functionalization have no memory of their own, and no mode reports them."""
    x, encoding = torch.ones(1, 3, 8), sinpe.Encoding(8)
    torch._enable_functionalization(reapply_views=True)
    try:
        wrapped = sinpe.add(torch._to_functional_tensor(x), encoding)
        torch._sync(wrapped)
    finally:
        torch._disable_functionalization()
    assert torch.equal(torch._from_functional_tensor(wrapped), sinpe.add(x, encoding))


# What users try first, with names and habits of other libraries.

MISTAKES = {
    "a table that is not stored": (
        lambda: sinpe.SinusoidalPositionalEncoding(16).pe,
        AttributeError,
        "no attribute 'pe'; it stores no table: pass persistent_table=True and max_len",
    ),
    "another name": (
        lambda: sinpe.SinusoidalEmbedding(10, 16, colour=1),
        TypeError,
        r"unexpected keyword argument 'colour'$",
    ),
    "phase": (lambda: sinpe.Encoding(16, phase=1), TypeError, "phase: expected a field of Encoding, which are dim, "),
    "half a pixel": (
        lambda: sinpe.table((4, 4), "mae2d", dim=16, start=0.5),
        TypeError,
        r"start: expected int, got float; .* positions.grid\(shape\) \+ 0.5",
    ),
    "start beyond max_len": (
        lambda: sinpe.SinusoidalPositionalEncoding(16, 0.0, max_len=8)(torch.zeros(1, 4, 16), start=6),
        IndexError,
        "start: expected rows at positions 0 to 7, which max_len allows, got 9",
    ),
    "starts beyond max_len": (
        lambda: sinpe.SinusoidalPositionalEncoding(16, 0.0, max_len=8)(torch.zeros(1, 4, 16), start=torch.tensor([6])),
        IndexError,
        "start: expected rows at positions 0 to 7, which max_len allows, got 9",
    ),
    "positions without the encoding's start": (
        lambda: sinpe.SinusoidalPositionalEncoding(16, 0.0, max_len=8, encoding="fairseq")(
            torch.zeros(1, 4, 16), positions=torch.arange(4)
        ),
        IndexError,
        "positions: expected 2 to 9, .* got 0; add encoding.start, 2, to them",
    ),
    "start before the encoding's": (
        lambda: sinpe.SinusoidalPositionalEncoding(16, 0.0, max_len=8)(torch.zeros(1, 4, 16), start=-2),
        IndexError,
        "start: expected .* got -2; pass a start of 0 or more",
    ),
    "too many rows": (
        lambda: sinpe.SinusoidalEmbedding(10, 16, max_len=3)(torch.zeros(1, 4, dtype=torch.long)),
        IndexError,
        "ids: expected at most 3 rows, which max_len allows, got 4",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_message_of_a_mistake(name: str, backend: str) -> None:
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()


def test_names_of_other_libraries_do_not_change_the_signature() -> None:
    for layer in (sinpe.SinusoidalPositionalEncoding, sinpe.SinusoidalEmbedding):
        parameters = inspect.signature(layer).parameters
        assert "dropout" in parameters and all(p.kind is not p.VAR_KEYWORD for p in parameters.values())
    assert not hasattr(sinpe.SinusoidalPositionalEncoding(16), "pe")


def test_table_of_a_grid_behind_a_class_token() -> None:
    """The checkpoint of MAE has 197 rows for 14 x 14 patches."""
    layer = sinpe.SinusoidalPositionalEncoding(16, 0.0, encoding="mae2d", grid_shape=(14, 14), persistent_table=True)
    pe = sinpe.table((14, 14), "mae2d", dim=16, extra_tokens=1)
    message = (
        r"it has 197 rows, not the 196 of grid_shape \(14, 14\) with extra_tokens 0.*; pass the grid_shape= and extra"
    )
    with pytest.warns(UserWarning, match=message):
        layer.load_state_dict({"pe": pe})


@pytest.mark.parametrize("shape", [(16, 16), (8, 32), (1, 7)])
@pytest.mark.parametrize("extra_tokens", [0, 1])
def test_table_of_a_grid_of_another_size(shape: tuple[int, int], extra_tokens: int) -> None:
    layer = sinpe.SinusoidalPositionalEncoding(
        16, 0.0, encoding="mae2d", grid_shape=(32, 32), extra_tokens=extra_tokens, persistent_table=True
    )
    pe = sinpe.table(shape, "mae2d", dim=16, flatten=True, extra_tokens=extra_tokens).unsqueeze(0)
    rows = shape[0] * shape[1] + extra_tokens
    with pytest.warns(UserWarning, match=f"it has {rows} rows, not the {1024 + extra_tokens} of grid_shape"):
        layer.load_state_dict({"pe": pe})

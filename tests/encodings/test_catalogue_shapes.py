"""The bad-input catalogue, classes 8 to 11, 13, 14 and 17: channels, sizes, layouts, shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from interfaces import check_error, everywhere, interfaces, message_of
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext import numpy as sinpe_numpy
from sinpe_ext.encodings.plan import plan
from sinpe_ext.reference import exact

B, S, D = 2, 5, 8
MAX = 2**63 - 1
GRID = sinpe.convention("mae2d", D)
FRONTS = "compiled", "eager", "meta", "CUDA"
LAYERS = "layer", "embedding"


def x(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape or (B, S, D), dtype=dtype, device=device)


def whole(device: str, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def layer(device: str, dim: int = D, **options: Any) -> sinpe.SinusoidalPositionalEncoding:
    return sinpe.SinusoidalPositionalEncoding(dim, 0.0, **options).to(device)


@pytest.mark.bad_input(8, "NumPy", *LAYERS, "timestep")
@pytest.mark.parametrize("dim", [0, -1, 2**63, 10**5000], ids=["0", "-1", "2**63", "10**5000"])
def test_invalid_number_of_channels_is_rejected(dim: int) -> None:
    for name, call in {
        "dim": lambda: sinpe.Encoding(dim),
        "dim ": lambda: sinpe.table(3, dim),
        "dim  ": lambda: sinpe.encode(torch.zeros(3), dim),
        "dim   ": lambda: sinpe_numpy.table(3, dim),
        "dim    ": lambda: sinpe.add(torch.zeros(3, 4), dim),
        "d_model": lambda: sinpe.SinusoidalPositionalEncoding(dim),
        "embedding_dim": lambda: sinpe.SinusoidalEmbedding(3, dim),
        "dim     ": lambda: sinpe.TimestepEncoding(dim),
    }.items():
        assert message_of(ValueError, call, name).startswith(f"{name.strip()}: expected an int in 1..")


@pytest.mark.bad_input(8, *FRONTS, "NumPy", "timestep")
@pytest.mark.parametrize("base", [0, 0.0, -1.0, math.inf, -math.inf, math.nan], ids=str)
def test_invalid_base_is_rejected(base: float) -> None:
    """Checked by Encoding, which all interfaces use."""
    for call in (
        lambda: sinpe.Encoding(D, base=base),
        lambda: sinpe_numpy.Encoding(D, base=base),
        lambda: sinpe.convention("t2t", D, base=base),
        lambda: sinpe.TimestepEncoding(D, base=base),
    ):
        message = message_of(ValueError, call)
        assert message.startswith("base: expected"), message
    tiny, huge = (everywhere(lambda d, b=b: sinpe.table(9, sinpe.Encoding(D, base=b), device=d)) for b in (1.0, 1e38))
    assert torch.equal(tiny[:, 0], tiny[:, 6]) and bool(huge.isfinite().all())  # base 1: all frequencies equal


@pytest.mark.bad_input(8, *FRONTS, "NumPy", *LAYERS, "grid")
@pytest.mark.parametrize("dim", [1, 2, 3, 7, 33, 66])
def test_odd_and_narrow_channels(dim: int) -> None:
    want = everywhere(lambda d: sinpe.table(S, dim, device=d))
    assert want[:, dim - 1].tolist() == [exact.float32(plan(sinpe.Encoding(dim)), row, dim - 1) for row in range(S)]
    assert np.array_equal(sinpe_numpy.table(S, dim), want.numpy())
    zeros = torch.zeros(B, S, dim)
    assert torch.equal(everywhere(lambda d: layer(d, dim).eval()(zeros.to(d)))[1], want)
    assert torch.equal(everywhere(lambda d: sinpe.embed(whole(d, B, S), zeros[0].to(d), dim))[1], want)
    grid = sinpe.GridEncoding((sinpe.Encoding(dim), sinpe.Encoding(1)))
    placed = everywhere(lambda d: sinpe.table((S, 2), grid, device=d))
    assert torch.equal(placed[:, 1, :dim], want)
    assert np.array_equal(sinpe_numpy.table((S, 2), grid), placed.numpy())


@pytest.mark.bad_input(9, *FRONTS, "NumPy", *LAYERS, "grid", "timestep")
def test_empty_inputs_give_empty_results() -> None:
    for shape in ((0, S, D), (B, 0, D), (0, D), (0, 0, D)):
        got = everywhere(lambda d, shape=shape: layer(d).eval()(x(d, *shape)))
        assert got.shape == shape
        assert everywhere(lambda d, shape=shape: sinpe.embed(whole(d, *shape[:-1]), x(d, 3, D))).shape == shape
    assert everywhere(lambda d: sinpe.add(x(d, B, 0, 4, D), GRID)).shape == (B, 0, 4, D)
    assert everywhere(lambda d: sinpe.encode(torch.empty(0, device=d), D)).shape == (0, D)
    assert everywhere(lambda d: sinpe.TimestepEncoding(D)(torch.empty(0, device=d))).shape == (0, D)
    assert everywhere(lambda d: sinpe.table(0, D, start=MAX, device=d)).shape == (0, D)
    assert sinpe_numpy.table(0, D).shape == (0, D) and sinpe_numpy.encode([], D).shape == (0, D)
    assert sinpe_numpy.table((0, 3), GRID).shape == (0, 3, D)
    # The most elements that PyTorch supports next to a dimension of 0.
    wide = everywhere(lambda d: sinpe.encode(torch.empty(0, 2**40, device=d), D))
    assert wide.shape == (0, 2**40, D)


@pytest.mark.bad_input(10, "meta")
def test_huge_empty_and_meta_sizes() -> None:
    given = torch.empty(1, 2**22, 2**20, dtype=torch.bfloat16, device="meta")
    for made in (sinpe.add(given), sinpe.SinusoidalPositionalEncoding(2**20).eval()(given)):
        assert made.shape == given.shape and made.dtype == given.dtype
    assert sinpe.table(2**40, D, device="meta").shape == (2**40, D)


@pytest.mark.bad_input(11, "compiled", "eager", "CUDA", "NumPy", "layer", "embedding", "grid")
def test_unusual_strides() -> None:
    """Permuted, overlapping, with an offset, and a stride of 2**62 for a single element."""
    flat, ids = torch.arange(200.0), torch.arange(200) % 3
    for view in (
        lambda t: t.as_strided((1, S, D), (2**62, D, 1)),
        lambda t: t.as_strided((1, S, 1), (2**62, 3, 2**61)),
        lambda t: t.as_strided((B, S, D), (1, B, B * S)),
        lambda t: t.as_strided((B, S, D), (7, 3, 1), 5),
        lambda t: t[3:4].expand(B, S, D),
    ):
        dense = view(flat).clone(memory_format=torch.contiguous_format)
        wide, channels = flat.double(), dense.shape[-1]
        for cast in (flat, wide, flat.bfloat16()):
            got = everywhere_with_data(lambda d, cast=cast, view=view: sinpe.add(view(cast.to(d))))
            assert torch.equal(got, sinpe.add(view(cast).clone(memory_format=torch.contiguous_format)))
        got = everywhere_with_data(lambda d, view=view, n=channels: layer(d, n).eval()(view(flat.to(d))))
        assert torch.equal(got, sinpe.add(dense))
        got = everywhere_with_data(lambda d, view=view: sinpe.embed(view(ids.to(d))[0], flat[: 3 * D].view(3, D).to(d)))
        assert torch.equal(
            got, sinpe.embed(view(ids)[0].clone(memory_format=torch.contiguous_format), flat[:24].view(3, D))
        )
    picture = torch.randn(2, D, 3, 4).to(memory_format=torch.channels_last).movedim(1, -1)[:, :, ::2]
    got = everywhere_with_data(lambda d: sinpe.add(picture.to(d), GRID))
    assert torch.equal(got, sinpe.add(picture.contiguous(), GRID))


def everywhere_with_data(call: Any) -> Tensor:
    results = []
    for interface in interfaces(with_data=True):
        with interface.in_use() as device:
            results.append(call(device).detach().cpu())
    assert all(torch.equal(results[0], other) for other in results[1:])
    return results[0]


@pytest.mark.bad_input(11, "NumPy")
def test_numpy_arrays_of_any_layout() -> None:
    p = np.arange(60.0).reshape(3, 4, 5)
    want = sinpe_numpy.encode(p.copy(), D)
    raw = np.frombuffer(b"\0" + p.tobytes(), np.uint8)[1:].view(np.float64).reshape(p.shape)
    assert not raw.flags.aligned
    for same in (np.asfortranarray(p), p[::-1][::-1], p.astype(">f8"), np.repeat(p, 2, axis=1)[:, ::2], raw):
        assert np.array_equal(sinpe_numpy.encode(same, D), want)
    rows = sinpe_numpy.table(4, D)
    unaligned = np.zeros(rows.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(rows.shape)
    for out in (np.empty((D, 4), np.float32).T, np.empty((4, 2 * D), np.float32)[::-1, ::-2], unaligned):
        assert sinpe_numpy.table(4, D, out=out) is out and np.array_equal(out, rows)
    for call in (
        lambda: sinpe_numpy.table(4, D, out=np.broadcast_to(np.float32(0), (4, D))),
        lambda: sinpe_numpy.table((2, 2), GRID, out=np.broadcast_to(np.float32(0), (2, 2, D))),
    ):
        assert "read-only" in message_of(ValueError, call)


@pytest.mark.bad_input(13, *FRONTS, *LAYERS, "grid")
def test_result_is_never_the_input() -> None:
    """Not even if nothing is added, dropped or present: the caller may modify the result."""
    for interface in interfaces():
        with interface.in_use() as device:
            for shape in ((B, S, D), (0, D), (B, 0, D)):
                given = x(device, *shape)
                for made in (
                    sinpe.add(given, alpha=0.0),
                    sinpe.add(given, padding_mask=torch.ones(shape[-2], dtype=torch.bool, device=device)),
                    sinpe.add(given, dropout=0.0, seed=1),
                    layer(device).eval()(given),
                    layer(device, alpha=0.0)(given),
                ):
                    assert made is not given and made._base is not given, interface
                    apart = made.untyped_storage()._cdata != given.untyped_storage()._cdata
                    assert apart, interface
            places = x(device, B, 3, 4, D)
            assert sinpe.add(places, GRID, alpha=0.0).untyped_storage()._cdata != places.untyped_storage()._cdata
            weight = x(device, 3, D)
            got = sinpe.embed(whole(device, B, S), weight, alpha=0.0)
            assert got.untyped_storage()._cdata != weight.untyped_storage()._cdata
            positions = torch.ones(S, device=device)
            assert sinpe.encode(positions, 1).untyped_storage()._cdata != positions.untyped_storage()._cdata


@pytest.mark.bad_input(14, *FRONTS, *LAYERS, "grid")
def test_mismatched_shapes_are_rejected() -> None:
    """The message names both shapes, and nothing is broadcast unintentionally."""
    check_error(
        ValueError,
        r"positions: expected shape \(5,\) or \(2, 5\), .* got \(4,\) for x of shape \(2, 5, 8\)",
        lambda d: sinpe.add(x(d), positions=whole(d, 4)),
        lambda d: sinpe.add_(x(d), positions=whole(d, 4)),
        lambda d: sinpe.add(x(d), positions=whole(d, 4), out=x(d)),
        lambda d: layer(d)(x(d), positions=whole(d, 4)),
        lambda d: layer(d).eval()(x(d), positions=whole(d, 4)),
    )
    check_error(
        ValueError,
        r"padding_mask: expected shape \(5,\) or \(2, 5\), .* got \(3, 5\) for ids of shape \(2, 5\)",
        lambda d: sinpe.embed(whole(d, B, S), x(d, 3, D), padding_mask=whole(d, 3, S) > 0),
        lambda d: sinpe.SinusoidalEmbedding(3, D, device=d)(whole(d, B, S), padding_mask=whole(d, 3, S) > 0),
    )
    check_error(
        ValueError,
        r"x: expected 8 channels, those of the encoding, got 6 in shape \(2, 5, 6\); pass an encoding of dim 6,",
        lambda d: sinpe.add(x(d, B, S, 6), D),
        lambda d: layer(d)(x(d, B, S, 6)),
        lambda d: layer(d).eval()(x(d, B, S, 6)),
    )
    for rank in ((D,), (1,) * 16 + (D,)):
        check_error(
            ValueError,
            r"x: expected 2 to 16 dimensions, .* got shape",
            lambda d, rank=rank: sinpe.add(x(d, *rank)),
            lambda d, rank=rank: layer(d).eval()(x(d, *rank)),
        )
    check_error(
        ValueError,
        r"positions: expected shape \(3, 4, 2\) .* got \(4, 3, 2\) for x of shape \(1, 3, 4, 8\)",
        lambda d: sinpe.add(x(d, 1, 3, 4, D), GRID, positions=whole(d, 4, 3, 2)),
        lambda d: layer(d, encoding="mae2d")(x(d, 1, 3, 4, D), positions=whole(d, 4, 3, 2)),
    )
    check_error(
        ValueError,
        r"out: expected shape \(4, 8\), \(length, dim\), got \(8, 4\); pass a tensor of that shape",
        lambda d: sinpe.table(4, D, out=x(d, D, 4)),
    )
    assert "expected shape (4, 8), got (8, 4)" in message_of(
        ValueError, lambda: sinpe_numpy.table(4, D, out=np.empty((D, 4), np.float32))
    )


@pytest.mark.bad_input(17, *FRONTS, "NumPy", *LAYERS, "grid")
def test_sizes_beyond_addressable_memory_are_rejected() -> None:
    """Rejected before sizes overflow, and existing tensors are unchanged."""
    before = sinpe.table(3, D)
    most = r"length: expected at most \d+ rows of 8 channels, what memory can address, got 4611686018427387904; ask"
    message = check_error(ValueError, most, lambda d: sinpe.table(2**62, D, device=d))
    assert message_of(ValueError, lambda: sinpe_numpy.table(2**62, D)) == message
    square = check_error(ValueError, "length: .* 8 channels", lambda d: sinpe.table((2**30, 2**32), GRID, device=d))
    assert message_of(ValueError, lambda: sinpe_numpy.table((2**30, 2**32), GRID)) == square
    check_error(
        ValueError,
        r"positions: expected at most \d+ rows of 8 channels",
        lambda d: sinpe.encode(torch.zeros(1, device=d).expand(2**60), D),
        lambda d: sinpe.TimestepEncoding(D)(torch.zeros(1, device=d).expand(2**60)),
    )
    for call in (lambda: sinpe.table(2**45, D), lambda: sinpe.add(torch.zeros(1, 1, 1).expand(2**45, 1, D))):
        for interface in interfaces(with_data=True):
            with interface.in_use(), pytest.raises(RuntimeError, match="allocate|memory"):
                call()
    with pytest.raises(MemoryError):
        sinpe_numpy.table(2**45, D)
    assert torch.equal(sinpe.table(3, D), before)
    for make in (
        lambda: sinpe.SinusoidalPositionalEncoding(D, 0.1, -1),
        lambda: sinpe.SinusoidalEmbedding(3, D, max_len=-1),
        lambda: sinpe.SinusoidalPositionalEncoding(D, 0.1, 2**63),
        lambda: sinpe.SinusoidalEmbedding(MAX, D),
        lambda: sinpe.SinusoidalPositionalEncoding(D, encoding="mae2d", grid_shape=(3, -1)),
    ):
        message_of(ValueError, make)


@pytest.mark.bad_input(17, *FRONTS, *LAYERS, "grid")
@pytest.mark.parametrize("bytes_left", [0, 8])
def test_storage_too_small_is_rejected(bytes_left: int) -> None:
    """A resized storage, as FSDP does: PyTorch's operations access memory out of bounds."""

    def shrunk(t: Tensor) -> Tensor:
        t.untyped_storage().resize_(bytes_left)
        return t

    for name, calls in {
        "x": (
            lambda d: sinpe.add(shrunk(x(d))),
            lambda d: layer(d).eval()(shrunk(x(d))),
            lambda d: sinpe.add_(shrunk(x(d))),
        ),
        "x ": (lambda d: sinpe.add(shrunk(x(d, 1, 3, 4, D)), GRID),),
        "out": (
            lambda d: sinpe.add(x(d), out=shrunk(x(d))),
            lambda d: sinpe.add(x(d), sinpe.Encoding(D, angle="float32_exp"), out=shrunk(x(d))),
            lambda d: sinpe.add(x(d), extra_tokens=1, out=shrunk(x(d))),
            lambda d: sinpe.table(B * S, D, out=shrunk(x(d, B * S, D))),
        ),
        "out ": (lambda d: sinpe.add(x(d, 1, 3, 4, D), GRID, out=shrunk(x(d, 1, 4, 3, D).transpose(1, 2))),),
        "positions ": (
            lambda d: sinpe.encode(shrunk(whole(d, 2 * S)[::2]), D),
            lambda d: sinpe.encode(shrunk(whole(d, 2 * S).double()[::2]).requires_grad_(), D),
        ),
        "positions": (
            lambda d: sinpe.add(x(d), positions=shrunk(whole(d, S))),
            lambda d: sinpe.encode(shrunk(whole(d, S)), D),
            lambda d: sinpe.TimestepEncoding(D)(shrunk(whole(d, S))),
            lambda d: layer(d, max_len=9)(x(d), positions=shrunk(whole(d, S))),
        ),
        "start": (lambda d: sinpe.add(x(d), start=shrunk(whole(d, B))),),
        "padding_mask": (lambda d: sinpe.add(x(d, 16, D), padding_mask=shrunk(whole(d, 16).bool())),),
        "alpha": (lambda d: sinpe.add(x(d), alpha=shrunk(torch.ones(3, device=d)[2:])),),
        "seed": (lambda d: sinpe.add(x(d), dropout=0.5, seed=shrunk(whole(d, 2)[1:])),),
        "weight": (lambda d: sinpe.embed(whole(d, S), shrunk(x(d, 3, D))),),
        "ids": (
            lambda d: sinpe.embed(shrunk(whole(d, S)), x(d, 3, D)),
            lambda d: sinpe.SinusoidalEmbedding(3, D).to(d).eval()(shrunk(whole(d, S))),
        ),
    }.items():
        wanted = (
            rf"{name.strip()}: expected a tensor whose memory holds its elements, got {bytes_left} bytes where \d+ are"
        )
        check_error(RuntimeError, wanted, *calls, with_data=True)

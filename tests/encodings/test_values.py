"""The bad-input catalogue (docs/reliability.md): all interfaces give the same results, and reject the same arguments
with the same message.
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
FRONTS = "compiled", "eager", "meta", "CUDA"
LAYERS = "layer", "embedding"
ALL = "compiled", "eager", "meta", "CUDA", "NumPy", "layer", "embedding", "grid"

X, PICTURE, WEIGHT = torch.zeros(B, S, D), torch.zeros(B, 3, 4, D), torch.zeros(3, D)
IDS, AT = torch.zeros(B, S, dtype=torch.int64), torch.arange(S)


def layer(x: Tensor, dim: int = D, train: bool = False, encoding: Any = None, **named: Any) -> Tensor:
    """SinusoidalPositionalEncoding; arguments of the constructor by name, the others are those of the call."""
    options = {name: named.pop(name) for name in ("max_len", "alpha", "dropout") if name in named}
    made = sinpe.SinusoidalPositionalEncoding(dim, options.pop("dropout", 0.0), encoding=encoding, **options)
    return made.to(x.device).train(train)(x, **named)


def embedding(ids: Tensor, train: bool = False, max_len: int | None = None, **named: Any) -> Tensor:
    made = sinpe.SinusoidalEmbedding(3, D, dropout=0.0, device=ids.device, max_len=max_len)
    torch.nn.init.zeros_(made.weight)
    return made.train(train)(ids, **named).detach()


def timestep(t: Tensor, dim: int = D, **named: Any) -> Tensor:
    return sinpe.TimestepEncoding(dim, encoding="paper", **named)(t)


def call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[[str], Any]:
    """A call as a function of the device of its tensors."""

    def called(device: str) -> Any:
        moved = [a.to(device) if isinstance(a, Tensor) else a for a in (*arguments, *named.values())]
        options = dict(zip(named, moved[len(arguments) :], strict=True))
        return function(*moved[: len(arguments)], **options, **({"device": device} if function is sinpe.table else {}))

    return called


def rows_at(positions: list[int], dim: int = D) -> Tensor:
    return torch.tensor([[exact.float32(plan(sinpe.Encoding(dim)), p, c) for c in range(dim)] for p in positions])


@pytest.mark.bad_input(15, "meta", *LAYERS, "grid", "timestep")
@pytest.mark.bad_input(1, *ALL, "timestep")
@pytest.mark.bad_input(2, *ALL, "timestep")
@pytest.mark.bad_input(3, *ALL)
@pytest.mark.bad_input(7, *ALL)
@pytest.mark.parametrize("first", [10**12, -3, -S, 2**24 + 1, 2**31 - 2, MAX - S + 1, -MAX - 1])
def test_any_int64_position_is_exact(first: int, nan_filled_empty: None) -> None:
    """Past any table, below zero (W[-1] would be a table's last row), and at both ends of int64."""
    at, want = torch.arange(S) + first, rows_at(list(range(first, first + S)))
    for made in (
        call(sinpe.table, S, D, start=first),
        call(sinpe.encode, at, D),
        call(lambda x: sinpe.add(x, start=first)[1], X),
        call(lambda x, start: sinpe.add(x, start=start)[1], X, start=torch.tensor([0, first])),
        call(lambda x, p: sinpe.add(x, positions=p)[1], X, at),
        call(lambda x: layer(x, start=first)[1], X),
        call(lambda ids, p: embedding(ids, positions=p)[1], IDS, at),
        call(timestep, at),
        call(lambda p: sinpe.encode(p, TWICE)[:, :D], torch.stack([at, AT], -1)),
    ):
        assert torch.equal(everywhere(made), want)
    assert torch.equal(everywhere(call(sinpe.table, (S, 1), TWICE, start=(first, 0)))[:, 0, :D], want)
    assert np.array_equal(sinpe_numpy.table(S, D, start=first), want.numpy())
    assert np.array_equal(sinpe_numpy.encode(at.numpy(), D), want.numpy())
    assert np.array_equal(sinpe_numpy.table((S, 2), TWICE, start=(first, 0))[:, 1, :D], want.numpy())


@pytest.mark.bad_input(4, *ALL, "timestep")
def test_nan_and_inf_positions_affect_only_their_rows() -> None:
    at = torch.tensor([1.5, math.nan, -2.0, math.inf, -math.inf])
    good = at.isfinite()
    rows = everywhere(call(sinpe.encode, at, D))
    assert bool(rows[~good].isnan().all()) and bool(rows[good].isfinite().all())
    assert np.array_equal(sinpe_numpy.encode(at.numpy(), D), rows.numpy(), equal_nan=True)
    for made in (
        call(lambda x, p: sinpe.add(x, positions=p)[1], X, at),
        call(lambda x, p: layer(x, positions=p)[1], X, at),
        call(lambda ids, p: embedding(ids, positions=p)[1], IDS, at),
        call(timestep, at),
    ):
        same_bits([("encode", rows), ("other", everywhere(made))])
    pair = torch.stack([at, torch.ones(S)], -1)
    grid = everywhere(call(sinpe.encode, pair, GRID))
    assert grid[~good].isnan().sum() == int((~good).sum()) * D // 2 and bool(grid[good].isfinite().all())
    assert np.array_equal(sinpe_numpy.encode(pair.numpy(), GRID), grid.numpy(), equal_nan=True)
    assert everywhere(call(sinpe.encode, torch.tensor([0.0, -0.0]), D)).tolist() == [[0.0, 1.0] * (D // 2)] * 2


@pytest.mark.bad_input(5, *ALL, "timestep")
def test_stored_16_bit_values_on_request() -> None:
    for half in (torch.bfloat16, torch.float16):
        taken = everywhere(call(sinpe.encode, AT.to(half), D, allow_16bit=True))
        assert torch.equal(taken, sinpe.encode(AT, D))
    with pytest.warns(UserWarning, match="bfloat16"):
        assert torch.equal(timestep(torch.tensor([998.39]).bfloat16()), timestep(torch.tensor([1000.0])))


@pytest.mark.bad_input(8, *ALL)
@pytest.mark.bad_input(9, *ALL, "timestep")
@pytest.mark.bad_input(10, "meta")
def test_widths_and_sizes() -> None:
    """Odd and narrow widths, bases 1 and 1e38; nothing at all, also next to 2^40; the largest on meta."""
    for dim in (1, 2, 3, 7, 33):
        want, x = everywhere(call(sinpe.table, S, dim)), torch.zeros(B, S, dim)
        assert torch.equal(want, rows_at(list(range(S)), dim)) and np.array_equal(sinpe_numpy.table(S, dim), want)
        assert torch.equal(everywhere(call(layer, x, dim))[1], want)
        assert torch.equal(everywhere(call(sinpe.embed, IDS, x[0], dim))[1], want)
        grid = sinpe.GridEncoding((sinpe.Encoding(dim), sinpe.Encoding(1)))
        assert torch.equal(everywhere(call(sinpe.table, (S, 2), grid))[:, 1, :dim], want)
    ones, huge = (everywhere(call(sinpe.table, 9, sinpe.Encoding(D, base=base))) for base in (1.0, 1e38))
    assert torch.equal(ones[:, 0], ones[:, 6]) and bool(huge.isfinite().all())  # base 1: all frequencies equal
    for shape in ((0, S, D), (B, 0, D), (0, D)):
        assert everywhere(call(layer, torch.zeros(shape))).shape == shape
        assert everywhere(call(sinpe.embed, torch.zeros(shape[:-1]).long(), WEIGHT)).shape == shape
    assert everywhere(call(sinpe.add, torch.zeros(B, 0, 4, D), GRID)).shape == (B, 0, 4, D)
    assert everywhere(call(sinpe.table, 0, D, start=MAX)).shape == (0, D) == sinpe_numpy.encode([], D).shape
    for empty in (torch.empty(0), torch.empty(0, 2**40)):
        assert everywhere(call(sinpe.encode, empty, D)).shape == (*empty.shape, D)
    given = torch.empty(1, 2**22, 2**20, dtype=torch.bfloat16, device="meta")
    assert sinpe.add(given).shape == given.shape and sinpe.table(2**40, D, device="meta").shape == (2**40, D)


@pytest.mark.bad_input(11, "compiled", "eager", "CUDA", "NumPy", "layer", "grid")
def test_unusual_strides() -> None:
    """A stride of 2**62 for a single element, overlapping reads; arrays also unaligned, and big-endian."""
    for size, stride in (((1, S, D), (2**62, D, 1)), ((B, S, D), (7, 3, 1))):
        view = torch.arange(200.0).as_strided(size, stride)
        for function in (sinpe.add, layer, lambda x: sinpe.add(x.unsqueeze(1), GRID)):
            want = function(view.clone(memory_format=torch.contiguous_format))
            for interface in interfaces(with_data=True):
                with interface.in_use() as device:
                    base = torch.arange(200.0, device=device)
                    assert torch.equal(function(base.as_strided(size, stride)).cpu(), want), interface
    p = np.arange(60.0).reshape(3, 4, 5)
    raw = np.frombuffer(b"\0" + p.tobytes(), np.uint8)[1:].view(np.float64).reshape(p.shape)
    for same in (np.asfortranarray(p), p[::-1][::-1], p.astype(">f8"), np.repeat(p, 2, axis=1)[:, ::2], raw):
        assert np.array_equal(sinpe_numpy.encode(same, D), sinpe_numpy.encode(p.copy(), D))
    unaligned = np.zeros(4 * 4 * D + 1, np.uint8)[1:].view(np.float32).reshape(4, D)
    for out in (np.empty((D, 4), np.float32).T, np.empty((4, 2 * D), np.float32)[::-1, ::-2], unaligned):
        assert sinpe_numpy.table(4, D, out=out) is out and np.array_equal(out, sinpe_numpy.table(4, D))


@pytest.mark.bad_input(12, "compiled", "eager", "CUDA", "grid")
@pytest.mark.bad_input(13, *FRONTS, *LAYERS, "grid")
def test_writes_count_and_results_are_new() -> None:
    """Backward detects a write by the version counter; a result is never the input, even if nothing is to be done."""
    mask = torch.ones(S, dtype=torch.bool)
    for interface in interfaces():
        with interface.in_use() as device:
            for write in (lambda t: sinpe.add_(t), lambda t: sinpe.table(S, D, out=t[0]),
                          lambda t: sinpe.add_(t.view(B, S, 1, D), GRID)):  # fmt: skip
                saved, factor = X.to(device) + 1, (X.to(device) + 1).requires_grad_()
                product = saved * factor  # backward needs the original values of `saved`
                with torch.no_grad():
                    write(saved)
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    product.sum().backward()
            x, ids, weight = X.to(device), IDS.to(device), WEIGHT.to(device)
            made = [sinpe.add(x, alpha=0.0), sinpe.add(x, padding_mask=mask.to(device)), layer(x, alpha=0.0)]
            made += [sinpe.add(x.view(B, S, 1, D), GRID, alpha=0.0), sinpe.embed(ids, weight, alpha=0.0)]
            of = {t.untyped_storage()._cdata for t in (x, weight)}
            assert not of & {t.untyped_storage()._cdata for t in made}, interface


@pytest.mark.bad_input(18, *FRONTS, *LAYERS, "grid")
@pytest.mark.bad_input(20, "compiled", "eager", "CUDA", *LAYERS, "grid", "timestep")
def test_dropout_of_1_and_infinite_factors(nan_filled_empty: None) -> None:
    for interface in interfaces(with_data=True):
        with interface.in_use() as device:
            for made in (
                lambda t: layer(t, train=True, dropout=1.0),
                lambda t: sinpe.add(t.unsqueeze(2), GRID, dropout=1.0),
                lambda t: sinpe.embed(IDS.to(t.device), t[0], dropout=1.0),
            ):
                given = torch.full((B, S, D), math.inf, device=device).requires_grad_()
                got = made(given)
                got.sum().backward()
                assert not got.any() and not given.grad.any(), interface  # not inf * 0
    for made in (call(sinpe.add, X + 1, scale=math.inf), call(sinpe.add, X, alpha=math.nan)):
        assert not bool(everywhere(made).isfinite().any())


# ------------------------------------------------------------------------------------------------- rejected arguments

LONG, UINT64 = torch.zeros(1).expand(2**60), torch.tensor([1, 2**63], dtype=torch.uint64)
PAST = "start: .* within int64, got .* to .*; lower start or length"
LIMITED = [(layer, X), (embedding, IDS)]


def shrunk(t: Tensor) -> Tensor:
    """With a storage that holds less, as FSDP makes it: PyTorch's operations access memory out of bounds."""
    t = t.clone()
    t.untyped_storage().resize_(8)
    return t


def of_all(x: Tensor = X, ids: Tensor = IDS, **named: Any) -> list[Callable[[str], Any]]:
    """The functions and layers with one argument in common."""
    calls = [call(sinpe.add, x, **named), call(lambda x, **n: sinpe.add_(x.clone(), **n), x, **named)]
    calls += [call(layer, x, **named), call(layer, x, train=True, **named), call(sinpe.embed, ids, WEIGHT, **named)]
    return [*calls, call(embedding, ids, **named), call(embedding, ids, train=True, **named)]


REJECTED: list[tuple[type[Exception], str, list[Callable[[str], Any]]]] = [
    (IndexError, "max_len allows, got [45]; raise max_len", [call(f, t, max_len=4) for f, t in LIMITED]),
    (IndexError, "start: .*allows, got -2; pass a start of 0", [call(f, t, max_len=9, start=-2) for f, t in LIMITED]),
    *[(TypeError, f"got {kind}; .* cannot hold integers above {most} exactly, pass int64",
       [*of_all(positions=AT.to(kind)), call(sinpe.encode, AT.to(kind), D),
        call(sinpe.encode, AT.to(kind).view(S, 1).expand(S, 2), GRID)])
      for kind, most in ((torch.bfloat16, 256), (torch.float16, 2048))],
    *[(TypeError, f"positions: expected an integer dtype or float32/float64, got {kind}; pass int64",
       [*of_all(positions=torch.ones(S).to(kind)), call(sinpe.encode, torch.ones(S, 2).to(kind), GRID)])
      for kind in (torch.bool, torch.complex64, torch.float8_e4m3fn)],
    (TypeError, "t: .* got torch.bool; conv", [call(timestep, AT > 1)]),
    *[(ValueError, "(dim|d_model|embedding_dim): expected an int in 1..",
       [call(f, n) for f in (sinpe.SinusoidalPositionalEncoding, lambda n: sinpe.SinusoidalEmbedding(3, n),
                             sinpe.Encoding, sinpe.TimestepEncoding, lambda n: sinpe_numpy.table(3, n))])
      for n in (0, -1, 2**63)],
    (ValueError, PAST, [*of_all(start=MAX - S + 2), call(sinpe.table, S, D, start=MAX),
                        call(sinpe.table, (2, S), GRID, start=(0, MAX))]),
    *[(TypeError, f"(x|weight|dtype): expected torch.float32, float64, bfloat16 or float16, got {kind}",
       [*of_all(X.to(kind))[:4], call(sinpe.add, PICTURE.to(kind), GRID), call(sinpe.embed, IDS, WEIGHT.to(kind)),
        call(sinpe.table, S, D, dtype=kind), call(sinpe.encode, AT, D, dtype=kind)])
      for kind in (torch.int64, torch.bool, torch.complex64, torch.float8_e5m2)],
    *[(ValueError, "dropout: expected 0 to 1", [*of_all(dropout=p)[:3], call(sinpe.embed, IDS, WEIGHT, dropout=p),
                                                call(sinpe.add, PICTURE, GRID, dropout=p)])
      for p in (-0.1, 1.1, math.nan, math.inf)],
    (ValueError, r"positions: .*\(5,\) or \(2, 5\), .* got \(4,\) for (x|ids) of", of_all(positions=AT[1:])),
    (ValueError, r"padding_mask: .*\(2, 5\), .* got \(3, 5\)", of_all(padding_mask=torch.zeros(3, S) > 0)),
    (ValueError, "x: expected 8 channels, .* got 6 in", [call(sinpe.add, X[..., :6], D), call(layer, X[..., :6])]),
    (ValueError, "x: expected 2 to 16 dim", [call(f, X.view((1,) * n + (-1,))) for f in (sinpe.add, layer)
                                             for n in (0, 16)]),
    (ValueError, r"\(3, 4, 2\) .* got \(4, 3, 2\)", [call(sinpe.add, PICTURE, GRID, positions=torch.zeros(4, 3, 2))]),
    (ValueError, r"out: expected shape \(5, 8\)", [call(lambda x: sinpe.table(S, D, out=x), torch.zeros(D, S))]),
    (ValueError, "length: expected at most .* rows of 8", [call(sinpe.table, 2**62, D),
                                                           call(sinpe.table, (2**30, 2**32), GRID)]),
    (ValueError, "positions: expected at most .* rows of 8", [call(sinpe.encode, LONG, D), call(timestep, LONG)]),
    (RuntimeError, "x: .* a leaf Variable that requires grad",
     [call(lambda x, *of: sinpe.add_(x.detach().clone().requires_grad_(), *of), *a) for a in ((X,), (PICTURE, GRID))]),
    (RuntimeError, "more than one element of the written-to tensor",
     [call(lambda x: sinpe.add_(x[:1].expand(x.shape)), X),
      call(lambda x: sinpe.add(x, GRID, out=x[:1].expand(x.shape)), PICTURE),
      call(lambda x: sinpe.table(B, D, out=x[0, 0].expand(B, D)), X)]),
    (RuntimeError, "no gradient to be needed", [call(lambda x: sinpe.add(x, out=x.clone().requires_grad_()), X)]),
]  # fmt: skip


@pytest.mark.bad_input(1, *FRONTS, *LAYERS)
@pytest.mark.bad_input(2, *FRONTS, *LAYERS)
@pytest.mark.bad_input(5, *ALL)
@pytest.mark.bad_input(6, *ALL, "timestep")
@pytest.mark.bad_input(7, *ALL)
@pytest.mark.bad_input(8, *FRONTS, "NumPy", *LAYERS, "timestep")
@pytest.mark.bad_input(12, *FRONTS, "grid")
@pytest.mark.bad_input(14, *FRONTS, *LAYERS, "grid")
@pytest.mark.bad_input(16, *FRONTS, *LAYERS, "grid")
@pytest.mark.bad_input(17, *FRONTS, *LAYERS, "grid")
@pytest.mark.bad_input(18, *FRONTS, *LAYERS, "grid")
@pytest.mark.parametrize(("error", "pattern", "calls"), REJECTED, ids=[case[1][:50] for case in REJECTED])
def test_rejected_alike(error: type[Exception], pattern: str, calls: list[Any]) -> None:
    check_error(error, pattern, *calls, alike=False)


@pytest.mark.bad_input(1, "compiled", "eager", *LAYERS)
@pytest.mark.bad_input(7, "compiled", "eager", *LAYERS)
@pytest.mark.bad_input(17, "compiled", "eager", "CUDA", *LAYERS, "grid")
def test_rejected_by_their_values() -> None:
    """Values and freed storages, which the meta device does not have."""
    small = {"positions": AT, "start": AT[:2], "padding_mask": torch.zeros(B, S) > 0}
    for error, pattern, calls in (
        (ValueError, "start: expected every position .* within int64", of_all(start=torch.tensor([0, MAX - S + 2]))),
        (ValueError, r"positions: .* up to 2\*\*63 - 1", of_all(X[0, :2], IDS[0, :2], positions=UINT64)),
        (IndexError, "got 13", [call(f, t, max_len=4, start=torch.tensor([0, 9])) for f, t in LIMITED]),
        (IndexError, "positions: .* got -2", [call(f, t, max_len=9, positions=AT - 2) for f, t in LIMITED]),
        (RuntimeError, "x: .* memory holds", [lambda d: sinpe.add(shrunk(PICTURE.to(d)), GRID),
                                              *[lambda d, f=f: f(shrunk(X.to(d))) for f in (sinpe.add_, layer)]]),
        (RuntimeError, "out: .* memory holds", [lambda d: sinpe.add(X.to(d), out=shrunk(X.to(d))),
                                                lambda d: sinpe.table(B, D, out=shrunk(X[0, :B].to(d)))]),
        (RuntimeError, "(positions|start|padding_mask): .* memory holds",
         [lambda d, n=n: sinpe.add(X.to(d), **{n: shrunk(small[n].to(d))}) for n in small]),
        (RuntimeError, "weight: .* memory", [lambda d: sinpe.embed(IDS.to(d), shrunk(WEIGHT.to(d)))]),
        (RuntimeError, "ids: .* memory", [lambda d: embedding(shrunk(IDS.to(d)))]),
        (RuntimeError, "positions: .* memory", [lambda d: sinpe.encode(shrunk(AT.to(d)), D)]),
    ):  # fmt: skip
        check_error(error, pattern, *calls, with_data=True, alike=False)


FORMS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "sparse": (lambda: X[0].to_sparse(), "layout torch.sparse_coo; convert it to a dense one first"),
    "compressed": (lambda: X[0].to_sparse_csr(), "layout torch.sparse_csr; convert it to a dense one first"),
    "mkldnn": (lambda: X.to_mkldnn(), "layout torch._mkldnn; convert it to a dense one first"),
    "quantized": (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), "torch.quint8; convert it"),
    "nested": (lambda: torch.nested.nested_tensor([X[0, :2], X[0]]), "a nested tensor; convert it"),
    "masked": (lambda: torch.masked.as_masked_tensor(X, X > 0), "a MaskedTensor; pass its get_data()"),
}


@pytest.mark.bad_input(16, "compiled", "eager", *LAYERS, "grid", "timestep")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
def test_non_dense_tensors_are_rejected(form: str) -> None:
    """In place of a number, too, where the message does not print the tensor."""
    make, got = FORMS[form]
    for name, function in {
        "x": lambda t: sinpe.add(t),
        "x ": lambda t: layer(t),
        "x  ": lambda t: sinpe.add(t, GRID),
        "out": lambda t: sinpe.table(S, D, out=t),
        "positions": lambda t: sinpe.encode(t, D),
        "positions ": lambda t: sinpe.add(PICTURE, GRID, positions=t),
        "alpha": lambda t: sinpe.add(X, alpha=t),
        "padding_mask": lambda t: sinpe.add(X, padding_mask=t),
        "start": lambda t: sinpe.add(X, start=t),
        "weight": lambda t: sinpe.embed(IDS, t),
        "ids": lambda t: embedding(t),
    }.items():
        message = message_of(TypeError, lambda function=function: function(make()), name)
        assert message.startswith(f"{name.strip()}: expected a dense strided tensor, got {got}"), message
    message_of(TypeError, lambda: timestep(make()))
    for number in ({"scale": make()}, {"dropout": make()}, {"seq_dim": make()}):
        message_of(TypeError, lambda number=number: sinpe.add(X, **number))
    for number in (make(), shrunk(X)):  # printing a tensor without storage would crash the process
        message_of(TypeError, lambda number=number: sinpe.Encoding(D, base=number))


@pytest.mark.bad_input(5, "NumPy")
@pytest.mark.bad_input(6, "NumPy")
@pytest.mark.bad_input(7, "NumPy")
@pytest.mark.bad_input(16, "NumPy")
@pytest.mark.bad_input(17, "NumPy")
def test_rejected_by_numpy() -> None:
    """As the tensors' functions reject them; other arguments in tests/arrays."""
    for pattern, function in (
        (PAST, lambda m: m.table(S, D, start=MAX)),
        (PAST, lambda m: m.table((2, S), GRID, start=(0, MAX))),
        ("length: ", lambda m: m.table(2**62, D)),
    ):
        message = check_error(ValueError, pattern, lambda d, function=function: function(sinpe))
        assert message == message_of(ValueError, lambda function=function: function(sinpe_numpy))
    for error, words, given in (
        (TypeError, "float16 cannot hold integers above 2048", np.float16([1])),
        (TypeError, "got bool; pass int64", np.ones(3, bool)),
        (ValueError, "within int64, got 9223372036854775808", UINT64.numpy()),
    ):
        assert words in message_of(error, lambda given=given: sinpe_numpy.encode(given, D))
    assert "got int64" in message_of(TypeError, lambda: sinpe_numpy.table(S, D, dtype=np.int64))


def test_available_interfaces(request: pytest.FixtureRequest) -> None:
    """Fails if the required backend is not among the tested interfaces."""
    names = {interface.name for interface in interfaces()}
    assert {"eager", "meta"} <= names
    required = request.config.getoption("--require-backend")
    assert required not in ("compiled", "cuda", "emulated") or ("cuda" if required == "cuda" else "compiled") in names

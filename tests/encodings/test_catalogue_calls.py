"""The bad-input catalogue, classes 12, 15, 16, 18 and 20: writes, devices, dtypes, layouts, dropout, determinism."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from interfaces import check_error, everywhere, interfaces, message_of
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext import numpy as sinpe_numpy
from sinpe_ext.modules import timestep

B, S, D = 2, 5, 8
GRID = sinpe.convention("mae2d", D)
FRONTS = "compiled", "eager", "meta", "CUDA"
LAYERS = "layer", "embedding"


def x(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape or (B, S, D), device=device).to(dtype)


def whole(device: str, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def layer(device: str, dropout: float = 0.0, **options: Any) -> sinpe.SinusoidalPositionalEncoding:
    return sinpe.SinusoidalPositionalEncoding(D, dropout, **options).to(device)


@pytest.mark.bad_input(12, *FRONTS, "grid")
def test_unsafe_writes_are_rejected() -> None:
    for encoding, shape in ((None, (B, S, D)), (GRID, (B, 3, 4, D))):
        add = lambda d, e=encoding, s=shape: sinpe.add_(x(d, *s).requires_grad_(), e)  # noqa: E731
        check_error(RuntimeError, "x: .* a leaf Variable that requires grad, which cannot be used in an in-place", add)
        expanded = lambda d, e=encoding, s=shape: sinpe.add_(x(d, *s)[:1].expand(s), e)  # noqa: E731
        check_error(RuntimeError, "x: .* more than one element of the written-to tensor refers to a single", expanded)
        out = lambda d, e=encoding, s=shape: sinpe.add(x(d, *s), e, out=x(d, *s)[:1].expand(s))  # noqa: E731
        check_error(RuntimeError, "out: .* more than one element of the written-to tensor refers to a single", out)
        grad = lambda d, e=encoding, s=shape: sinpe.add(x(d, *s), e, out=x(d, *s).requires_grad_())  # noqa: E731
        check_error(RuntimeError, "out: expected no gradient to be needed, got an argument that requires it", grad)
        zero = lambda d, e=encoding, s=shape: sinpe.add_(torch._efficientzerotensor(s, device=d), e)  # noqa: E731
        check_error(RuntimeError, "x: expected a tensor that may be written to, got an immutable zero; clone", zero)
    check_error(RuntimeError, "out: .* more than one", lambda d: sinpe.table(S, D, out=x(d, 1, D).expand(S, D)))
    check_error(RuntimeError, "out: .* more than", lambda d: sinpe.table((3, 4), GRID, out=x(d, D).expand(3, 4, D)))


@pytest.mark.bad_input(12, "compiled", "eager", "CUDA", "grid")
def test_writes_increment_the_version_counter() -> None:
    for interface in interfaces(with_data=True):
        with interface.in_use() as device:
            for write in (
                lambda t: sinpe.add_(t),
                lambda t: sinpe.add_(t, dropout=0.5, seed=1),
                lambda t: sinpe.add(torch.zeros_like(t), out=t),
                lambda t: sinpe.table(S, D, out=t[0]),
                lambda t: sinpe.add_(t.view(B, S, 1, D), GRID),
            ):
                saved = x(device)
                version = saved._version
                factor = x(device).requires_grad_()
                product = saved * factor  # backward needs the original values of `saved`
                with torch.no_grad():
                    write(saved)
                assert saved._version > version, interface
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    product.sum().backward()
            with torch.inference_mode():
                inference = x(device)
            outside = (
                "got an inference tensor outside of inference mode, where an in-place update is not allowed; clone"
            )
            for call in (lambda t: sinpe.add_(t), lambda t: sinpe.add(x(device), out=t)):
                assert outside in message_of(RuntimeError, lambda call=call, t=inference: call(t))


@pytest.mark.bad_input(15, "meta", *LAYERS, "grid", "timestep")
def test_meta_tensors_give_meta_results() -> None:
    made = (
        sinpe.table(S, D, device="meta"),
        sinpe.encode(whole("meta", S), D),
        sinpe.add(x("meta"), start=whole("meta", B)),
        sinpe.add(x("meta"), positions=whole("meta", S), dropout=0.5, seed=1),
        sinpe.embed(whole("meta", B, S), x("meta", 3, D)),
        layer("meta", 0.1, max_len=9)(x("meta")),
        sinpe.SinusoidalEmbedding(3, D, device="meta")(whole("meta", B, S)),
        sinpe.TimestepEncoding(D)(whole("meta", S)),
        sinpe.add(x("meta", B, 3, 4, D), GRID, start=whole("meta", B, 2)),
        sinpe.encode(x("meta", S, 2), GRID),
    )
    assert all(t.is_meta for t in made)


@pytest.mark.bad_input(15, "compiled", "eager", "meta", *LAYERS, "grid")
@pytest.mark.parametrize("here, there", [("cpu", "meta"), ("meta", "cpu")])
def test_operands_of_another_device(here: str, there: str, backend: str) -> None:
    mixed: dict[str, list[Callable[[], Any]]] = {
        "positions": [
            lambda: sinpe.add(x(here), positions=whole(there, S)),
            lambda: layer(here)(x(here), positions=whole(there, S)),
            lambda: layer(here, max_len=9).eval()(x(here), positions=whole(there, S)),
            lambda: sinpe.add(x(here, B, 3, 4, D), GRID, positions=whole(there, 3, 4, 2)),
        ],
        "padding_mask": [
            lambda: sinpe.add(x(here), padding_mask=whole(there, S) > 0),
            lambda: layer(here).eval()(x(here), padding_mask=whole(there, S) > 0),
        ],
        "start": [
            lambda: sinpe.add(x(here), start=whole(there, B)),
            lambda: layer(here)(x(here), start=whole(there, B)),
        ],
        "alpha": [lambda: sinpe.add(x(here), alpha=x(there, 1)), lambda: sinpe.add_(x(here), alpha=x(there, 1))],
        "ids": [
            lambda: sinpe.embed(whole(there, S), x(here, 3, D)),
            lambda: sinpe.SinusoidalEmbedding(3, D, device=here)(whole(there, S)),
            lambda: sinpe.SinusoidalEmbedding(3, D, device=here).eval()(whole(there, S)),
        ],
    }
    for name, calls in mixed.items():
        messages = {message_of(RuntimeError, call, name) for call in calls}
        of = "weight" if name == "ids" else "x"
        assert messages == {
            f"{name}: expected the device of {of}, {here}, got {there}; move it with {name}.to({of}.device)"
        }


TYPES = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.bad_input(16, *FRONTS, "NumPy", *LAYERS, "grid")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_unsupported_dtypes_of_x_are_rejected(dtype: torch.dtype) -> None:
    floats = f"expected torch.float32, float64, bfloat16 or float16, got {dtype}"
    check_error(
        TypeError,
        f"x: {floats}; convert it, say with x.float",
        lambda d: sinpe.add(x(d, dtype=dtype)),
        lambda d: sinpe.add_(x(d, dtype=dtype)),
        lambda d: layer(d)(x(d, dtype=dtype)),
        lambda d: layer(d).eval()(x(d, dtype=dtype)),
        lambda d: sinpe.add(x(d, B, 3, 4, D, dtype=dtype), GRID),
        lambda d: layer(d, encoding="mae2d").eval()(x(d, B, 3, 4, D, dtype=dtype)),
    )
    check_error(TypeError, f"weight: {floats}", lambda d: sinpe.embed(whole(d, S), x(d, 3, D, dtype=dtype)))
    check_error(TypeError, f"dtype: {floats}", lambda d: sinpe.table(S, D, device=d, dtype=dtype))
    check_error(TypeError, f"dtype: {floats}", lambda d: sinpe.encode(whole(d, S), D, dtype=dtype))
    if not dtype.is_floating_point:
        kind = np.dtype(str(dtype)[6:])
        assert f"got {kind}" in message_of(TypeError, lambda: sinpe_numpy.table(S, D, dtype=kind))


FORMS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "sparse": (lambda: x("cpu", S, D).to_sparse(), "layout torch.sparse_coo; convert it to a dense one first"),
    "compressed": (lambda: x("cpu", S, D).to_sparse_csr(), "layout torch.sparse_csr; convert it to a dense one first"),
    "mkldnn": (lambda: x("cpu").to_mkldnn(), "layout torch._mkldnn; convert it to a dense one first"),
    "quantized": (lambda: torch.quantize_per_tensor(x("cpu"), 0.1, 0, torch.quint8), "torch.quint8; convert it"),
    "nested": (lambda: torch.nested.nested_tensor([x("cpu", 2, D), x("cpu", 3, D)]), "a nested tensor; convert it"),
    "masked": (lambda: torch.masked.as_masked_tensor(x("cpu"), x("cpu") > 0), "a MaskedTensor; pass its get_data()"),
}


@pytest.mark.bad_input(16, "compiled", "eager", *LAYERS, "grid", "timestep")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
def test_non_dense_tensors_are_rejected(form: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, got = FORMS[form]
    monkeypatch.setattr(timestep, "_range_checks", 1)  # as in the first calls of a process
    wanted = f"expected a dense strided tensor, got {got}"
    for name, call in (
        ("x", lambda t: sinpe.add(t)),
        ("x", lambda t: sinpe.add_(t)),
        ("x", lambda t: layer("cpu")(t)),
        ("x", lambda t: layer("cpu").eval()(t)),
        ("x", lambda t: sinpe.add(t, GRID)),
        ("out", lambda t: sinpe.add(x("cpu"), out=t)),
        ("out", lambda t: sinpe.table(S, D, out=t)),
        ("positions", lambda t: sinpe.encode(t, D)),
        ("positions", lambda t: sinpe.encode(t, GRID)),
        ("positions", lambda t: sinpe.add(x("cpu"), positions=t)),
        ("positions", lambda t: sinpe.add(x("cpu", B, 3, 4, D), GRID, positions=t)),
        ("alpha", lambda t: sinpe.add(x("cpu"), alpha=t)),
        ("padding_mask", lambda t: sinpe.add(x("cpu"), padding_mask=t)),
        ("start", lambda t: sinpe.add(x("cpu"), start=t)),
        ("weight", lambda t: sinpe.embed(whole("cpu", S), t)),
        ("ids", lambda t: sinpe.embed(t, x("cpu", 3, D))),
        ("ids", lambda t: sinpe.SinusoidalEmbedding(3, D).eval()(t)),
    ):
        message = message_of(TypeError, lambda call=call: call(make()), name)
        assert message.startswith(f"{name}: {wanted}"), message
    message_of(TypeError, lambda: sinpe.TimestepEncoding(D)(make()))
    for name, call in (  # these accept one element only
        ("scale", lambda t: sinpe.add(x("cpu"), scale=t)),
        ("dropout", lambda t: sinpe.add(x("cpu"), dropout=t)),
        ("length", lambda t: sinpe.table(t, D)),
        ("encoding", lambda t: sinpe.table(S, t)),
        ("seq_dim", lambda t: sinpe.add(x("cpu"), seq_dim=t)),
        ("d_model", lambda t: sinpe.SinusoidalPositionalEncoding(t)),
        ("flatten", lambda t: sinpe.table((3, 4), GRID, flatten=t)),
        ("sparse", lambda t: sinpe.embed(whole("cpu", S), x("cpu", 3, D), sparse=t)),
        ("batch_first", lambda t: layer("cpu", batch_first=t)),
        ("dtype", lambda t: sinpe.table(S, D, dtype=t)),
    ):
        assert message_of(TypeError, lambda call=call: call(make()), name).startswith(f"{name}: expected")


@pytest.mark.bad_input(18, *FRONTS, *LAYERS, "grid")
@pytest.mark.parametrize("p", [-0.1, 1.1, 5000, math.nan, math.inf], ids=str)
def test_dropout_outside_0_to_1_is_rejected(p: float) -> None:
    wanted = "dropout: expected 0 to 1, got .*; pass a probability"
    check_error(
        ValueError,
        wanted,
        lambda d: sinpe.add(x(d), dropout=p),
        lambda d: sinpe.add_(x(d), dropout=p),
        lambda d: sinpe.embed(whole(d, S), x(d, 3, D), dropout=p),
        lambda d: sinpe.add(x(d, B, 3, 4, D), GRID, dropout=p),
        lambda d: sinpe.SinusoidalEmbedding(3, D, dropout=p),
    )
    check_error(ValueError, "dropout: expected 0 to 1, got", lambda d: layer(d, p))


@pytest.mark.bad_input(18, *FRONTS, *LAYERS, "grid")
def test_dropout_of_0_and_1_and_non_finite_factors() -> None:
    plain = everywhere(lambda d: sinpe.add(x(d)))
    for none in (
        lambda d: sinpe.add(x(d), dropout=0.0, seed=3),
        lambda d: layer(d, 0.5).eval()(x(d)),
        lambda d: layer(d, 0.0)(x(d)),
    ):
        assert torch.equal(everywhere(none), plain)
    for interface in interfaces(with_data=True):
        with interface.in_use() as device:
            for made in (
                lambda t: sinpe.add(t, dropout=1.0),
                lambda t, d=device: layer(d, 1.0)(t),
                lambda t: sinpe.add(t.unsqueeze(2), GRID, dropout=1.0),
                lambda t, d=device: sinpe.embed(whole(d, S), t[0], dropout=1.0),
            ):
                given = torch.full((B, S, D), math.inf, device=device).requires_grad_()
                got = made(given)
                got.sum().backward()
                assert not got.any() and not given.grad.any(), interface  # not inf * 0
    for factor in (math.nan, math.inf, -math.inf):
        assert not bool(everywhere(lambda d, f=factor: sinpe.add(x(d), scale=f)).isfinite().any())
        weighed = everywhere(lambda d, f=factor: sinpe.add(x(d), alpha=f))
        assert not bool(weighed.isfinite().any())  # inf * 0 is NaN, as in PyTorch


@pytest.mark.bad_input(20, "compiled", "eager", "CUDA", *LAYERS, "grid", "timestep")
def test_deterministic_mode_gives_the_same_bits() -> None:
    """In this mode, new memory is filled with NaN: an element that is not written shows."""
    calls = (
        lambda d: sinpe.table(70, 33, device=d),
        lambda d: sinpe.encode(torch.rand(7, 3, generator=torch.Generator().manual_seed(0)).to(d) * 99, 33),
        lambda d: sinpe.add(x(d, 3, 70, 33), start=whole(d, 3), dropout=0.3, seed=5),
        lambda d: sinpe.embed(whole(d, 3, 70), x(d, 3, 33)),
        lambda d: sinpe.add(x(d, 2, 3, 4, D), GRID, extra_tokens=0),
        lambda d: sinpe.table((3, 4), sinpe.GridEncoding((sinpe.Encoding(4),) * 2, dim=11), device=d, extra_tokens=1),
        lambda d: layer(d, 0.0)(x(d)),
        lambda d: sinpe.TimestepEncoding(33)(whole(d, 70)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = [everywhere(call) for call in calls]
        torch.use_deterministic_algorithms(True)
        try:
            after = [everywhere(call) for call in calls]
        finally:
            torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) and not a.isnan().any() for a, b in zip(before, after, strict=True))


@pytest.mark.bad_input(16, "compiled", "eager", "grid", "layer")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["nested", "sparse", "freed"])
def test_tensor_in_place_of_a_number_is_rejected(form: str) -> None:
    """The message does not print the tensor: printing one without storage crashes the process."""

    def make() -> Tensor:
        if form != "freed":
            return FORMS[form][0]()
        gone = x("cpu")
        gone.untyped_storage().resize_(0)
        return gone

    for name, call in (
        ("base", lambda: sinpe.Encoding(D, base=make())),
        ("frequencies", lambda: sinpe.Encoding(D, frequencies=make())),
        ("axes", lambda: sinpe.GridEncoding(make())),
        ("grid_shape", lambda: sinpe.add(x("cpu"), grid_shape=make())),
        ("grid_shape", lambda: layer("cpu", grid_shape=make())),
        ("shape", lambda: sinpe.positions.grid(make())),
        ("alpha", lambda: layer("cpu", alpha=make())),
    ):
        error = (
            ValueError
            if name == "grid_shape"
            else RuntimeError
            if (name, form) == ("frequencies", "freed")
            else TypeError
        )
        assert message_of(error, call, name).startswith(f"{name}: expected"), name

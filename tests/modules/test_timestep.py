"""`TimestepEncoding`: diffusers' timestep embedding at exact values, in the chosen dtype."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext import TimestepEncoding
from sinpe_ext.modules import timestep

D = 12
FLOAT64 = 1e-12  # the float64 formula rounds a frequency and an angle up to 1000: a few times 1000 * 2**-52
T = torch.tensor([0.0, 1.0, 37.5, 500.0, 998.39, 999.0])


@pytest.fixture(autouse=True)
def warned_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suppresses the warning that is given once per process."""
    monkeypatch.setattr(timestep, "_warned", True)


def diffusers(
    t: Tensor, dim: int, flip: bool = False, shift: float = 1, scale: float = 1, max_period: int = 10000
) -> Tensor:
    """The formula of diffusers' get_timestep_embedding, in float64."""
    half = dim // 2
    w = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float64) / (half - shift))
    angle = scale * t.double()[..., None] * w
    parts = [angle.cos(), angle.sin()] if flip else [angle.sin(), angle.cos()]
    return torch.cat([*parts, *([torch.zeros_like(angle[..., :1])] if dim % 2 else [])], -1)


# Arguments of the layer, of diffusers, timesteps.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Tensor]] = {
    "ddpm": ({}, {}, T),
    "adm": ({"encoding": "adm"}, {"flip": True, "shift": 0}, T),
    "flux": ({"encoding": "flux"}, {"flip": True, "shift": 0, "scale": 1000}, T / 1000),
    "scale": ({"position_scale": 1000}, {"scale": 1000}, T / 1000),
    "base": ({"encoding": "adm", "base": 100}, {"flip": True, "shift": 0, "max_period": 100}, T),
    "flip": ({"layout": "cos_sin"}, {"flip": True}, T),
    "shift": ({"shift": 0}, {"shift": 0}, T),
    "encoding": ({"encoding": lambda dim: sinpe.Encoding(dim, layout="sin_cos", odd="pad"), "shift": 1}, {}, T),
    "start is not added": ({"start": 5}, {}, T),
    "int64": ({}, {}, torch.tensor([[0, 1], [500, 999]])),
    "float64": ({}, {}, torch.tensor([998.39, 1e-7, 0.5], dtype=torch.float64)),
    "close": ({"encoding": "flux"}, {"flip": True, "shift": 0, "scale": 1000}, torch.tensor([0.5, 0.5 + 2**-24])),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("dim", [D + 1, 256])
def test_values(case: Any, dim: int, backend: str) -> None:
    fields, same, t = case
    fields = {name: value(dim) if callable(value) else value for name, value in fields.items()}
    want = diffusers(t, dim, **same)
    double, single = TimestepEncoding(dim, dtype=torch.float64, **fields)(t), TimestepEncoding(dim, **fields)(t)
    assert torch.allclose(double, want, rtol=0, atol=FLOAT64) and not torch.equal(double[0], double[1])
    assert single.dtype == torch.float32 and torch.allclose(single.double(), want, rtol=0, atol=2**-25 + FLOAT64)


@pytest.mark.bad_input(6, "compiled", "eager", "timestep")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtype_argument(dtype: torch.dtype, backend: str) -> None:
    layer = TimestepEncoding(D, dtype=dtype)
    for t in (T, T.double(), T.long(), T.int(), T.to(torch.uint8), T.bfloat16(), T.half(), T[0], T[:0]):
        rows = layer(t)
        assert rows.dtype == dtype and torch.equal(rows, sinpe.encode(t, layer.encoding, dtype=dtype, allow_16bit=True))
    for other in (layer.half(), layer.to(torch.bfloat16), layer.double()):  # casts of the layer do not change it
        assert other is layer and layer(T).dtype == dtype


CASTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "none": lambda model: model,
    "to(device, dtype)": lambda model: model.to("cpu", torch.float16),
    "to(tensor)": lambda model: model.to(torch.ones((), dtype=torch.float64)),
    "there and back": lambda model: model.half().float(),
    "a copy": lambda model: copy.deepcopy(model.half()),
    "a pickle": lambda model: pickle.loads(pickle.dumps(model.half())),
    "meta, to_empty": lambda model: model.half().to("meta").to_empty(device="cpu"),
    "compiled before": lambda model: torch.compile(model, fullgraph=True, backend="eager").bfloat16(),
    "exported": lambda model: torch.export.export(model.half(), (T,)).module(),
}


@pytest.mark.parametrize("cast", CASTS)
def test_by_default_the_result_follows_the_model(cast: str, backend: str) -> None:
    """So that a Linear layer accepts it; the encoding stays exact."""
    model = nn.Sequential(TimestepEncoding(32), nn.Linear(32, 8))
    exact = model[0].encoding
    cast_model = CASTS[cast](model)
    weight = next(iter(cast_model.state_dict().values()))
    assert cast_model(T).dtype == weight.dtype
    if isinstance(cast_model, nn.Sequential):
        for t in (T, T.long()):
            assert torch.equal(cast_model[0](t), sinpe.encode(t, exact, dtype=weight.dtype))


def test_repr() -> None:
    layer = TimestepEncoding(D, encoding="flux", dtype=torch.float16, base=500)
    assert layer.dim == D and repr(layer) == f"TimestepEncoding({layer.encoding!r}, dtype=torch.float16)"
    assert "dtype=None" in repr(TimestepEncoding(D, dtype=None))


def test_default_dtype(backend: str) -> None:
    try:
        torch.set_default_dtype(torch.float64)
        layers = TimestepEncoding(D), TimestepEncoding(D, dtype=torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)
    assert [layer(T).dtype for layer in layers] == [torch.float64, torch.float32]
    with pytest.raises(TypeError, match="dtype: expected .*which then keeps it"):
        TimestepEncoding(D).to(torch.float8_e4m3fn)


@pytest.mark.bad_input(5, "compiled", "eager", "timestep")
@pytest.mark.parametrize("dtype, stored", [(torch.bfloat16, 1000.0), (torch.float16, 998.5)])
def test_16_bit_timesteps_are_used_as_stored(
    dtype: torch.dtype, stored: float, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(timestep, "_warned", False)
    layer, t = TimestepEncoding(D), torch.tensor([998.39], dtype=dtype)
    with pytest.warns(UserWarning, match=f"got {dtype}.* 998.39 is stored as {stored:g}. .*in float32") as caught:
        rows = layer(t)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert torch.equal(rows, layer(torch.tensor([stored]))) and not torch.equal(rows, layer(torch.tensor([998.39])))
    wide = t.float().requires_grad_()
    layer(t.requires_grad_()).sum().backward()
    layer(wide).sum().backward()
    assert t.grad.dtype == dtype and torch.equal(t.grad, wide.grad.to(dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once per process, for either dtype
        layer(t), TimestepEncoding(D)(t.half()), layer(t.bfloat16())


@pytest.mark.parametrize("name", ["ddpm", "adm"])
def test_fractions_warn_once(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timesteps of a model that was trained on fractions, as Flux, for an encoding of steps up to 1000."""
    t, layer, one = torch.rand(8), TimestepEncoding(16, encoding=name), torch.tensor([1.0])

    def warnings_of(*given: torch.Tensor, encoding: TimestepEncoding = layer) -> list[str]:
        monkeypatch.setattr(timestep, "_range_checks", timestep._RANGE_CHECKS)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for each in given:
                rows = encoding(each), sinpe.encode(each, encoding.encoding)
                assert torch.equal(*(one.nan_to_num() for one in rows))
        assert all(each.filename == __file__ for each in caught)
        return [str(each.message) for each in caught]

    (message,) = warnings_of(t, t)
    assert 'encoding="flux"' in message and "between 0 and 1" in message
    nan, steps = torch.full((2,), torch.nan), torch.tensor([0.0, 1.0])
    for others in (t * 1000, nan, steps, torch.arange(2), -t, torch.empty(0), torch.tensor([999.0])):
        assert warnings_of(others) == []
    assert warnings_of(t * 1000, t) == []  # other timesteps have been seen
    assert len(warnings_of(one, t)) == 1
    assert warnings_of(*[one] * timestep._RANGE_CHECKS, t) == []  # no further checks
    monkeypatch.setattr(timestep, "_range_checks", timestep._RANGE_CHECKS)
    for refused in (t.to(torch.float8_e4m3fn), t.to_sparse()):
        with pytest.raises(TypeError, match="t: expected|positions: expected"):
            layer(refused)
    assert warnings_of(t, encoding=TimestepEncoding(16, encoding="flux")) == []
    assert warnings_of(t, encoding=TimestepEncoding(16, encoding=name, position_scale=1000)) == []


@pytest.mark.usefixtures("reset_dynamo")
def test_compiled(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(timestep, "_warned", False)
    model = nn.Sequential(TimestepEncoding(D, dtype=torch.float16), nn.SiLU())
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none inside a graph
        for t in (T, T.long(), T.bfloat16()):
            rows = sinpe.encode(t.double(), model[0].encoding, dtype=torch.float16)
            assert torch.equal(compiled(t), nn.functional.silu(rows))


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "float": (lambda: TimestepEncoding(D)(998.39), TypeError, r"t: expected a torch.Tensor, got float; pass torch.ten"),
    "bool": (lambda: TimestepEncoding(D)(T > 1), TypeError, "t: expected float32, float64 or an integer .* torch.bool"),
    "complex": (lambda: TimestepEncoding(D)(T + 1j), TypeError, "t: expected float32.* torch.complex64"),
    "dim": (lambda: TimestepEncoding(0), ValueError, "dim: expected an int in 1"),
    "dim twice": (lambda: TimestepEncoding(D, encoding=sinpe.Encoding(8)), ValueError, "encoding: expected dim 12.* 8"),
    "name": (lambda: TimestepEncoding(D, encoding="ddmp"), ValueError, 'got "ddmp"; pass one of paper'),
    "no encoding": (lambda: TimestepEncoding(D, encoding=None), TypeError, "encoding: expected an Encoding .* NoneTyp"),
    "a grid": (lambda: TimestepEncoding(D, encoding="mae2d"), TypeError, 'encoding: .* got the grid "mae2d"'),
    "field": (lambda: TimestepEncoding(D, flip_sin_to_cos=True), TypeError, "flip_sin_to_cos: expected a field of En"),
    "scale": (lambda: TimestepEncoding(D, scale=1000), TypeError, "scale: .*position_scale"),
    "max_period": (lambda: TimestepEncoding(D, max_period=9), TypeError, "max_period: .*base"),
    "dtype": (lambda: TimestepEncoding(D, dtype=torch.int64), TypeError, "dtype: expected torch.float32, float64"),
    "device": (lambda: TimestepEncoding(D, device="nowhere"), ValueError, "device: expected"),
}


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS)
def test_errors(case: Any) -> None:
    call, kind, message = case
    with pytest.raises(kind, match=message):
        call()

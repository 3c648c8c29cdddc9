"""`SinusoidalPositionalEncoding` and `SinusoidalEmbedding`: arguments, attributes, limits, parameters, dropout."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding, TimestepEncoding
from sinpe_ext import SinusoidalPositionalEncoding as Layer

B, S, D, V = 3, 6, 8, 13
GRID = sinpe.convention("mae2d", D)
IDS = torch.randint(0, V, (B, S), generator=torch.Generator().manual_seed(4))


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


X = randn(B, S, D)


def run(module: nn.Module, x: Tensor, seed: int = 9) -> Tensor:
    """Calls the module with a fixed dropout mask."""
    torch.manual_seed(seed)
    return module(x)


# arguments

TOKENS, AT, STARTS = randn(2, 16, D), torch.arange(B * S).view(B, S), torch.tensor([0, 5, -3])
MASKED, FLAT = {"padding_mask": torch.arange(S) > 3}, {"encoding": GRID, "grid_shape": (3, 5), "extra_tokens": 1}
FAIRSEQ, CHANNELS = sinpe.convention("fairseq", D), {"encoding": GRID, "channel_dim": 1}
# Arguments of the layer (dropout is 0), its input, arguments of the call, those of `add` that give the same.
SAME_AS_ADD: dict[str, tuple[dict[str, Any], Tensor, dict[str, Any], dict[str, Any]]] = {
    "no batch": ({"batch_first": False}, randn(10, D), {"start": 7}, {"start": 7}),
    "sequence first": ({"batch_first": False}, X, {}, {"seq_dim": 0}),
    "starts": ({}, X, {"start": STARTS}, {"start": STARTS}),
    "far": ({}, X, {"start": 10**12}, {"start": 10**12}),
    "positions": ({"batch_first": False}, X.transpose(0, 1), {"positions": AT}, {"positions": AT, "seq_dim": 0}),
    "mask": ({}, X, MASKED, MASKED),
    "encoding": ({"encoding": "fairseq"}, X, {}, {"encoding": FAIRSEQ}),
    "channels first": ({"channel_dim": 1}, X.transpose(1, 2), {}, {"channel_dim": 1, "seq_dim": 2}),
    "channels first, no batch": ({"channel_dim": 0}, X[0].t(), {}, {"channel_dim": 0, "seq_dim": 1}),
    "extra tokens": ({"extra_tokens": 2}, X, {}, {"extra_tokens": 2}),
    "image": ({"encoding": "mae2d"}, randn(2, 3, 5, D), {"start": (1, 2)}, {"encoding": GRID, "start": (1, 2)}),
    "image, channels first": (CHANNELS, randn(2, D, 3, 5), {}, CHANNELS),
    "flat image": (FLAT, TOKENS, {}, FLAT),
    "another size": ({**FLAT, "grid_shape": (3, 4)}, TOKENS, {"grid_shape": (5, 3)}, {**FLAT, "grid_shape": (5, 3)}),
}


@pytest.mark.parametrize("case", SAME_AS_ADD.values(), ids=SAME_AS_ADD)
def test_arguments(case: Any, backend: str) -> None:
    options, x, given, same = case
    for dtype in (torch.float32, torch.bfloat16):
        want = sinpe.add(x.to(dtype), **same)
        layer = Layer(D, 0.0, **options)
        for _ in range(2):  # the second call is the repeated one
            assert torch.equal(layer(x.to(dtype), **given), want)
        layer = Layer(D, 0.4, **options)
        assert torch.equal(layer(x.to(dtype), **given, seed=3), sinpe.add(x.to(dtype), **same, dropout=0.4, seed=3))
        assert torch.equal(layer.eval()(x.to(dtype), **given), want)
        assert torch.equal(layer(x.to(dtype, copy=True).requires_grad_(), **given).detach(), want)


def test_arguments_of_the_embedding(backend: str) -> None:
    options: dict[str, Any] = {"scale": 2.0, "alpha": 0.5, "encoding": "t2t"}
    layer = SinusoidalEmbedding(V, D, 3, encode_padding=False, dropout=0.0, **options)
    same: dict[str, Any] = {"scale": 2.0, "alpha": 0.5, "padding_idx": 3, "encode_padding": False}
    for given in (
        {"start": torch.tensor([0, 9, -4])},
        {"start": 3, "padding_mask": torch.arange(S) > 3},
        {"positions": sinpe.positions.packed(torch.tensor([0, 4, 6]), "t2t")},
        {"positions": torch.rand(B, S)},
    ):
        want = sinpe.embed(IDS, layer.weight, "t2t", **same, **given)
        layer.batch_first = True
        assert torch.equal(layer(IDS, **given), want)
        layer.batch_first = False
        assert torch.equal(layer(IDS.t(), **given), want.transpose(0, 1))


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "max_len of a grid": (lambda: Layer(D, encoding="mae2d", max_len=5), ValueError, "max_len: expected None for a gr"),
    "table of a grid": (lambda: Layer(D, encoding="mae2d", persistent_table=True), ValueError, "pass grid_shape"),
    "table": (lambda: Layer(D, persistent_table=True), ValueError, "persistent_table: expected max_len"),
    "grid_shape": (lambda: Layer(D, grid_shape=(3, 5)), ValueError, "grid_shape: expected None for an encoding of one"),
    "axes": (lambda: Layer(D, encoding="mae2d", grid_shape=(3,)), ValueError, "grid_shape: expected 2 lengths"),
    "dim": (lambda: Layer(16, encoding=sinpe.Encoding(8)), ValueError, "encoding: expected dim 16, .* got 8"),
    "dim of a grid": (lambda: Layer(16, encoding=GRID), ValueError, "encoding: expected dim 16"),
    "extra_tokens": (lambda: Layer(D, extra_tokens=-1), ValueError, "extra_tokens: expected an int in 0"),
    "encoding as dropout": (lambda: Layer(D, sinpe.Encoding(D)), TypeError, "^dropout: .*pass encoding="),
    "name as dropout": (lambda: Layer(D, "t2t"), TypeError, "^dropout: expected a float, got .*pass encoding="),
    "max_len as dropout": (lambda: Layer(D, 5000), ValueError, "dropout: .* pass max_len=... by name"),
    "tensor scale": (lambda: Layer(D, scale=torch.tensor(2.0)), TypeError, "scale: expected a float, got torch.float3"),
    "device": (lambda: Layer(D, device="nowhere"), ValueError, "device: expected "),
    "device type": (lambda: SinusoidalEmbedding(V, D, device=2.5), TypeError, "device: expected "),
    "dtype": (lambda: SinusoidalEmbedding(V, D, dtype=int), TypeError, "dtype: expected "),
    "dim of embedding": (lambda: SinusoidalEmbedding(V, D, encoding=sinpe.Encoding(4)), ValueError, "expected dim 8"),
    "padding": (lambda: SinusoidalEmbedding(V, D, encode_padding=False), ValueError, "padding_idx"),
    "padding_idx": (lambda: SinusoidalEmbedding(V, D, V), ValueError, "padding_idx: expected"),
    "weight": (lambda: SinusoidalEmbedding(V, D, _weight=X[0]), ValueError, r"_weight: expected shape \(13, 8\), got"),
    "a module": (lambda: SinusoidalEmbedding.from_pretrained(nn.Embedding(V, D)), TypeError, "pass its weight"),
}


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS)
def test_errors(case: Any) -> None:
    call, kind, message = case
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("name, value", [("max_norm", 1.0), ("scale_grad_by_freq", True)])
def test_unsupported_options_of_nn_embedding(name: str, value: Any, backend: str) -> None:
    layer = SinusoidalEmbedding(V, D, max_norm=None, scale_grad_by_freq=False).eval()
    assert layer(IDS).shape == (B, S, D)
    setattr(layer, name, value)
    for call in (
        lambda: layer(IDS),
        lambda: SinusoidalEmbedding(V, D, **{name: value}),
        lambda: SinusoidalEmbedding.from_pretrained(torch.ones(V, D), **{name: value}),
    ):
        with pytest.raises(ValueError, match="max_norm, scale_grad_by_freq: expected None and False"):
            call()


def test_repr() -> None:
    tutorial = Layer(512, 0.1, 5000)
    assert (tutorial.d_model, tutorial.dropout.p, tutorial.max_len) == (512, 0.1, 5000)
    assert repr(Layer(D)) == (
        "SinusoidalPositionalEncoding(\n  Encoding(8)\n  (dropout): Dropout(p=0.1, inplace=False)\n)"
    )
    options: dict[str, Any] = {"scale": 2, "alpha": 0.5, "learned_alpha": True, "require_positions": True}
    shared = "max_len=9, require_positions=True, batch_first=False, scale=2, alpha=0.5, learned_alpha=True"
    shown = Layer(D, 0.0, 9, batch_first=False, persistent_table=True, **options).extra_repr()
    assert shown == f"Encoding(8), {shared}, persistent_table=True"
    shown = SinusoidalEmbedding(V, D, 1, max_len=9, batch_first=False, encode_padding=False, **options).extra_repr()
    assert shown == f"13, 8, padding_idx=1, Encoding(8), {shared}, encode_padding=False"
    grid = Layer(D, encoding=GRID, grid_shape=(3, 5), extra_tokens=1, channel_dim=1).extra_repr()
    assert grid.endswith("grid_shape=(3, 5), extra_tokens=1, channel_dim=1")


# max_len

LIMITS: dict[str, tuple[dict[str, Any], str | None]] = {  # for max_len=10 and 6 rows: the position in the message
    "start 4": ({"start": 4}, None),
    "start 5": ({"start": 5}, "10"),
    "start -1": ({"start": -1}, "-1"),
    "starts": ({"start": torch.tensor([0, 4, 2])}, None),
    "starts beyond": ({"start": torch.tensor([0, 5, 2])}, "10"),
    "starts below": ({"start": torch.tensor([0, -2, 2])}, "-2"),
    "positions": ({"positions": torch.tensor([9, 0, 0, 0, 3, 9])}, None),
    "positions beyond": ({"positions": torch.tensor([9, 0, 10, 0, 3, 9])}, "10"),
    "positions below": ({"positions": torch.tensor([9, 0, -1, 0, 3, 9])}, "-1"),
    "positions float": ({"positions": torch.tensor([9, 0, 9.5, 0, 3, 9])}, "9.5"),
    "positions nan": ({"positions": torch.tensor([9, 0, math.nan, 0, 3, 9])}, "nan"),
}


@pytest.mark.bad_input(1, "compiled", "eager", "layer", "embedding")
@pytest.mark.bad_input(2, "compiled", "eager", "layer", "embedding")
@pytest.mark.parametrize("first", [0, 100])
@pytest.mark.parametrize("case", LIMITS.values(), ids=LIMITS)
def test_max_len_is_a_limit(case: Any, first: int, backend: str) -> None:
    given, beyond = case
    encoding = sinpe.Encoding(D, start=first)
    if "positions" in given:
        given = {"positions": given["positions"] + first}
    layers = (
        (Layer(D, 0.0, 10, encoding=encoding), X, sinpe.add),
        (Layer(D, 0.0, 10, encoding=encoding, batch_first=False), X.transpose(0, 1), None),
        (SinusoidalEmbedding(V, D, dropout=0.0, max_len=10, encoding=encoding), IDS, None),
    )
    for layer, x, function in layers:
        if beyond is None:
            assert layer(x, **given).shape == (*x.shape[:2], D)
            assert function is None or torch.equal(layer(x, **given), function(x, encoding, **given))
            continue
        number = beyond if beyond == "nan" else f"{float(beyond) + first:g}"
        below = "pass (a start of )?0 or more|add encoding.start" if beyond.startswith("-") else "raise max_len"
        with pytest.raises(IndexError, match=rf"expected .*{first} to {first + 9}, .* got {number}; ({below})"):
            layer(x, **given)


def test_max_len_counts_rows(backend: str) -> None:
    assert Layer(D, max_len=S, batch_first=False).eval()(randn(S, 2 * S, D)).shape == (S, 2 * S, D)
    assert Layer(D, max_len=0).eval()(randn(B, 0, D)).shape == (B, 0, D)
    assert Layer(D, max_len=2)(torch.empty(B, 2, D, device="meta"), positions=torch.empty(2, device="meta")).is_meta
    behind = Layer(D, 0.0, max_len=6, extra_tokens=2)
    assert torch.equal(behind(randn(2, 8, D)), sinpe.add(randn(2, 8, D), extra_tokens=2))
    for layer, x in (
        (Layer(D, max_len=S, batch_first=False), randn(S + 1, B, D)),
        (Layer(D, max_len=0), randn(B, 1, D)),
        (behind, randn(2, 9, D)),
        (SinusoidalEmbedding(V, D, max_len=S - 1), IDS),
    ):
        limit, rows = layer.max_len, layer.max_len + 1
        for mode in (layer.train, layer.eval):
            mode()
            with pytest.raises(IndexError, match=rf"expected at most {limit} rows, which max_len allows, got {rows}"):
                layer(x)


def test_required_positions(backend: str) -> None:
    for layer, x in ((Layer(D, require_positions=True), X), (SinusoidalEmbedding(V, D, require_positions=True), IDS)):
        assert layer(x, positions=torch.arange(S)).shape == (B, S, D)
        with pytest.raises(ValueError, match="positions: expected the positions of these rows"):
            layer(x, start=3)


# attributes that change after construction


class AlwaysHalf(nn.Dropout):
    """A dropout of another kind, that is active in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


def set_to(name: str, value: Any) -> Callable[[nn.Module], None]:
    def change(layer: nn.Module) -> None:
        if isinstance(value, nn.Parameter):
            delattr(layer, name)
        setattr(layer, name, copy.deepcopy(value))

    return change


T2T, FLOAT32 = sinpe.convention("t2t", D), sinpe.Encoding(D, angle="float32_exp", base=50.0)
# A change, the arguments of `add` that give the same, a factor of the result.
CHANGES: dict[str, tuple[Callable[[Any], Any], dict[str, Any], float]] = {
    "alpha parameter": (set_to("alpha", nn.Parameter(torch.tensor([3.0]))), {"alpha": 3.0}, 1.0),
    "alpha of 1, parameter": (set_to("alpha", nn.Parameter(torch.tensor([1.0]))), {}, 1.0),
    "encoding": (set_to("encoding", T2T), {"encoding": T2T}, 1.0),
    "angle": (set_to("encoding", FLOAT32), {"encoding": FLOAT32}, 1.0),
    "no dropout": (set_to("dropout", nn.Identity()), {}, 1.0),
    "custom dropout": (set_to("dropout", AlwaysHalf()), {}, 0.5),
    "hook": (lambda layer: layer.dropout.register_forward_hook(lambda _, given, result: result * 3), {}, 3.0),
    "pre-hook": (lambda layer: layer.dropout.register_forward_pre_hook(lambda _, given: (given[0] * 3,)), {}, 3.0),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_changed_attributes_take_effect(name: str, grad: bool, backend: str) -> None:
    change, arguments, factor = CHANGES[name]
    one, other = Layer(D, 0.1).eval(), SinusoidalEmbedding(V, D, dropout=0.1).eval()
    one(X), other(IDS)
    change(one)
    change(other)
    with torch.set_grad_enabled(grad):
        given = {"encoding": None, **arguments}
        assert torch.equal(one(X), sinpe.add(X, **given) * factor)
        assert torch.equal(other(IDS), sinpe.embed(IDS, other.weight, **given) * factor)
    one.scale = torch.tensor(2.0)
    with torch.no_grad(), pytest.raises(TypeError, match="scale: expected a float, got torch.float32"):
        one(X)


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_the_dropout(register: str, backend: str) -> None:
    """They see and change the gradient, as those of any nn.Dropout."""
    for layer, x in ((Layer(D, 0.5), X.clone().requires_grad_()), (SinusoidalEmbedding(V, D, dropout=0.5), IDS)):
        target = layer.weight if x is IDS else x
        seen: list[Any] = []
        getattr(layer.dropout, register)(lambda _, *grads, seen=seen: (seen.append(1), (grads[0][0] * 3,))[1])
        y = run(layer, x)
        y.sum().backward()
        kept = (y != 0) * 6.0
        want = kept if target is x else torch.zeros(V, D).index_add(0, IDS.flatten(), kept.flatten(0, 1))
        assert len(seen) == 1 and torch.equal(target.grad, want)


def test_dropout(backend: str) -> None:
    """The layer's dropout module says whether to drop; each call draws another mask."""
    layer = Layer(D, 0.25)
    out = run(layer, X)
    assert not torch.equal(layer(X), out) and torch.equal(run(layer, X), out)
    assert torch.equal(layer.eval()(X), sinpe.add(X))
    layer.dropout.train()
    assert torch.equal(run(layer, X), out) and not Layer(D, 1.0)(X).any()


# nn.Embedding


def test_drop_in_for_nn_embedding(backend: str) -> None:
    torch.manual_seed(1)
    theirs = nn.Embedding(V, D, 3)
    torch.manual_seed(1)
    mine = SinusoidalEmbedding(V, D, 3, scale=D**0.5)
    assert torch.equal(mine.weight, theirs.weight) and list(mine.state_dict()) == ["weight"]
    assert isinstance(mine, nn.Embedding) and mine.padding_idx == 3
    mine.load_state_dict(theirs.state_dict())
    assert torch.equal(run(mine, IDS), run(lambda ids: sinpe.add(theirs(ids), scale=D**0.5, dropout=0.1), IDS))
    assert torch.equal(mine.eval()(IDS), sinpe.add(theirs(IDS), scale=D**0.5))


def test_from_pretrained(backend: str) -> None:
    weight = randn(V, D, dtype=torch.bfloat16)
    layer = SinusoidalEmbedding.from_pretrained(weight, padding_idx=1, dropout=0.0, scale=2.0, encoding="t2t")
    assert not layer.weight.requires_grad and layer.weight.data_ptr() == weight.data_ptr() and layer.padding_idx == 1
    assert torch.equal(layer(IDS), sinpe.embed(IDS, weight, "t2t", scale=2.0))
    assert SinusoidalEmbedding.from_pretrained(weight, freeze=False).weight.requires_grad


def test_adapter_of_the_token_embedding() -> None:
    """LoRA as PEFT applies it: the layer's result plus embed_scale times its own part; merging does not change it."""
    layer = SinusoidalEmbedding(V, D, dropout=0.0, scale=4.0).requires_grad_(False)
    down, up = torch.randn(V, 4), torch.randn(4, D)
    adapted = layer(IDS) + down[IDS] @ up * layer.embed_scale
    layer.weight += down @ up
    torch.testing.assert_close(layer(IDS), adapted, rtol=1e-5, atol=1e-5)  # float32 sums in another order


# parameters


def layers(**options: Any) -> dict[str, tuple[nn.Module, Tensor]]:
    """Each layer with an input, and with a learned alpha if it can have one."""
    learned = {"learned_alpha": True, "alpha": 0.5, **options}
    torch.manual_seed(1)
    return {
        "encoding": (Layer(D, 0.3, 100, encoding=T2T, scale=3.0, **learned), X),
        "grid": (Layer(D, 0.3, encoding=GRID, **learned), randn(2, 3, 5, D)),
        "embedding": (SinusoidalEmbedding(V, D, 0, dropout=0.3, encoding=T2T, **learned), IDS),
        "timesteps": (TimestepEncoding(D), torch.rand(B) * 1000),
    }


every_layer = pytest.mark.parametrize("name", layers())


@every_layer
def test_device_and_dtype_as_arguments(name: str) -> None:
    """As in PyTorch's layers. A 16-bit alpha would lose small updates, so it is float32."""
    if name == "timesteps":
        TimestepEncoding(D, device="meta", dtype=torch.float64)
        return
    made = layers(device="meta", dtype=torch.float64)[name][0]
    assert all(p.is_meta and p.dtype == torch.float64 for p in made.parameters())
    with torch.device("meta"):
        assert all(p.device.type == "cpu" for p in layers(device="cpu")[name][0].parameters())
        assert all(p.is_meta for p in layers()[name][0].parameters())
    assert layers(dtype=torch.float16)[name][0].alpha.dtype is torch.float32
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert layers()[name][0].alpha.dtype is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.bad_input(24, "compiled", "eager", "meta", "layer", "embedding", "grid", "timestep")
@every_layer
def test_meta_and_to_empty(name: str, backend: str) -> None:
    """There is nothing to rebuild: parameters only have to be loaded or initialized."""
    ready, x = layers()[name]
    with torch.device("meta"):
        empty = layers()[name][0].eval()
    want = ready.eval()(x)
    on_meta = empty(x.to("meta"))
    assert on_meta.is_meta and on_meta.shape == want.shape
    loaded, assigned = copy.deepcopy(empty).to_empty(device="cpu"), copy.deepcopy(empty)
    loaded.load_state_dict(ready.state_dict(), strict=True)
    assigned.load_state_dict(ready.state_dict(), strict=True, assign=True)
    reset = empty.to_empty(device="cpu")
    for p in reset.parameters():
        nn.init.constant_(p, torch.nan)
    if hasattr(reset, "reset_parameters"):
        torch.manual_seed(1)
        reset.reset_parameters()
    for made in (loaded, assigned, reset):
        assert torch.equal(made(x), want)


# torch's machinery of modules


class Doubled(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        return 2.0 * t


@pytest.mark.parametrize("name, attribute", [("embedding", "weight"), ("embedding", "alpha"), ("encoding", "alpha")])
def test_parametrize(name: str, attribute: str, backend: str) -> None:
    module, x = layers()[name]
    by_hand = copy.deepcopy(module)
    with torch.no_grad():
        getattr(by_hand, attribute).mul_(2.0)
    parametrize.register_parametrization(module, attribute, Doubled())
    got, want = run(module, x), run(by_hand, x)
    got.sin().sum().backward()
    want.sin().sum().backward()
    original = getattr(module.parametrizations, attribute).original
    assert torch.equal(got, want) and torch.equal(original.grad, 2.0 * getattr(by_hand, attribute).grad)
    parametrize.remove_parametrizations(module, attribute)
    assert torch.equal(run(module, x), want)


@every_layer
def test_symbolic_trace(name: str, backend: str) -> None:
    """A layer is a leaf, as torch.nn layers are; functions are not traceable."""
    module, x = layers()[name]
    model = nn.Sequential(module, nn.Linear(D, D))
    traced = torch.fx.symbolic_trace(model)
    used = [node.op for node in traced.graph.nodes if node.users or node.op == "output"]
    assert used == ["placeholder", "call_module", "call_module", "output"]
    assert torch.equal(run(traced, x), run(model, x))
    with pytest.raises(TypeError, match="expected a torch.Tensor, got Proxy"):
        torch.fx.symbolic_trace(lambda t: sinpe.add(t))

"""The layers in torch's module machinery: casts, transforms, copies, meta tensors, modes, tracers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import sinpe_ext as sinpe

B, S, D, V = 3, 5, 8, 20
SUMMED = {"rtol": 1e-6, "atol": 1e-6}  # float32 sums of a few products in another order
T2T = sinpe.convention("t2t", D, start=4)


def layer(**options: Any) -> nn.Module:
    return sinpe.SinusoidalPositionalEncoding(D, 0.3, 100, encoding=T2T, scale=3.0, **options)


def embedding(**options: Any) -> nn.Module:
    torch.manual_seed(1)
    return sinpe.SinusoidalEmbedding(V, D, 0, dropout=0.3, encoding=T2T, scale=2.0, **options)


def timesteps(**options: Any) -> nn.Module:
    return sinpe.TimestepEncoding(D, dtype=None)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "SinusoidalPositionalEncoding": layer,
    "SinusoidalEmbedding": embedding,
    "TimestepEncoding": timesteps,
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: sinpe.add(x, T2T, start=5000, scale=0.3, alpha=0.7),
    "add, dropout": lambda x: sinpe.add(x, T2T, dropout=0.3, seed=7),
    "add, grid": lambda x: sinpe.add(x.reshape(-1, 2, 3, 4), sinpe.convention("mae2d", 4)),
    "encode": lambda x: sinpe.encode(x[..., 0].float() * 1000, D).to(x.dtype),
    "embed": lambda x: sinpe.embed(torch.arange(S), x[0], T2T, dropout=0.3, seed=7),
}
CASTS = [torch.float16, torch.bfloat16, torch.float64]

every_layer = pytest.mark.parametrize("name", LAYERS)
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def given(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    if name == "SinusoidalEmbedding":
        return torch.randint(V, (B, S), generator=generator)
    if name == "TimestepEncoding":
        return torch.rand(B, generator=generator) * 1000
    return torch.randn(B, 6 if "grid" in name else S, 4 if "grid" in name else D, generator=generator).to(dtype)


def run(module: nn.Module, x: Tensor) -> Tensor:
    """Calls the module with a fixed dropout mask."""
    torch.manual_seed(9)
    return module(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@every_layer
def test_autocast(name: str, device: str, dtype: torch.dtype, backend: str) -> None:
    """Results have the dtype of the input and are not rounded; what an autocast Linear made narrow stays narrow."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device is visible")
    module, x = LAYERS[name]().to(device), given(name).to(device)
    want = run(module, x)
    linear = nn.Linear(D, D).to(device)
    encode = layer().to(device).eval()
    with torch.autocast(device, dtype=dtype):
        got = run(module, x)
        narrow = linear(got)
        encoded = encode(narrow)
    assert got.dtype == torch.float32 and torch.equal(got, want)
    assert narrow.dtype == encoded.dtype == dtype and torch.equal(encoded, encode(narrow))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_function
def test_autocast_of_functions(name: str, dtype: torch.dtype, backend: str) -> None:
    for x in (given(name), given(name, dtype)):
        want = FUNCTIONS[name](x)
        with torch.autocast("cpu", dtype=dtype):
            got = FUNCTIONS[name](x)
        assert got.dtype == x.dtype and torch.equal(got, want)


@pytest.mark.bad_input(25, "compiled", "eager", "layer", "embedding", "grid", "timestep")
@pytest.mark.parametrize("dtype", CASTS)
@every_layer
def test_casts(name: str, dtype: torch.dtype, backend: str) -> None:
    """A cast changes parameters, never positions or frequencies; after casting back, only parameters have lost bits."""
    x = given(name, dtype)
    module = nn.Sequential(LAYERS[name]()).to(dtype).eval()
    method = {torch.float16: "half", torch.bfloat16: "bfloat16", torch.float64: "double"}[dtype]
    for cast in (module, getattr(nn.Sequential(LAYERS[name]()), method)().eval()):
        got = cast(x)
        assert got.dtype == dtype
        if name == "SinusoidalEmbedding":
            want = sinpe.embed(x, embedding().weight.to(dtype), T2T, scale=2.0)
        elif name == "TimestepEncoding":
            want = sinpe.encode(x, sinpe.convention("ddpm", D), dtype=dtype)
        else:
            want = sinpe.add(x, T2T, scale=3.0)
        assert torch.equal(got, want)
    again = module.float()
    if name != "SinusoidalEmbedding":
        assert torch.equal(again(given(name)), LAYERS[name]().eval()(given(name)))


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # from torch itself
@every_layer
def test_functional_call_and_ensembles(name: str, backend: str) -> None:
    x = given(name)
    models = [nn.Sequential(LAYERS[name](), nn.Linear(D, 2)).eval() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)

    def call(p: Any, b: Any, t: Tensor) -> Tensor:
        return torch.func.functional_call(models[0], (p, b), (t,))

    got = torch.func.vmap(call, in_dims=(0, 0, None))(parameters, buffers, x)
    assert torch.allclose(got, torch.stack([model(x) for model in models]), **SUMMED)
    grads = torch.func.grad(lambda p: call(p, {}, x).square().sum())(dict(models[0].named_parameters()))
    models[0](x).square().sum().backward()
    for key, parameter in models[0].named_parameters():
        assert torch.allclose(grads[key], parameter.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.bad_input(19, "compiled", "eager", "layer", "embedding")
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@every_layer
def test_torch_func_of_layers(name: str, backend: str) -> None:
    module, x = LAYERS[name]().eval(), given(name)
    each = x.unsqueeze(1)
    want = torch.stack([module(t) for t in each])
    assert torch.equal(torch.func.vmap(module)(each), want)
    if not x.is_floating_point():
        return
    ones = torch.ones_like(x)
    with torch.no_grad():
        _, tangent = torch.func.jvp(module, (x,), (ones,))
    pulled = torch.func.grad(lambda t: module(t).sum())(x)
    mine = x.clone().requires_grad_()
    module(mine).sum().backward()
    assert torch.allclose(pulled, mine.grad, rtol=1e-5, atol=1e-5)
    assert torch.allclose(tangent.sum(), pulled.sum(), rtol=1e-4)
    if name == "SinusoidalPositionalEncoding":
        assert torch.equal(tangent, ones * 3.0)


@every_layer
def test_training_after_first_call_in_inference_mode(name: str, backend: str) -> None:
    """Constants cached by a first call in inference_mode work in a later call that needs gradients."""
    number = D + 2 * (backend == "eager") + 4  # an encoding used by no other test
    made: dict[str, Callable[[], nn.Module]] = {
        "SinusoidalPositionalEncoding": lambda: sinpe.SinusoidalPositionalEncoding(number, 0.3, learned_alpha=True),
        "SinusoidalEmbedding": lambda: sinpe.SinusoidalEmbedding(V, number, dropout=0.3, learned_alpha=True),
        "TimestepEncoding": lambda: sinpe.TimestepEncoding(number, base=1000 + number),
    }
    module = made[name]()
    x = torch.randn(B, S, number) if name == "SinusoidalPositionalEncoding" else given(name)
    with torch.inference_mode():
        first = run(module, x)
    assert first.is_inference()
    x = x.requires_grad_() if x.is_floating_point() else x
    later = run(module, x)
    assert torch.equal(later, first)
    later.sin().sum().backward()
    assert all(t.grad is not None for t in (*module.parameters(), *([x] if x.requires_grad else [])))
    with torch.inference_mode():
        assert torch.equal(run(module, x.detach().clone()), first)


@pytest.mark.bad_input(25, "compiled", "eager", "layer", "embedding", "grid", "timestep")
@pytest.mark.parametrize("learned", [False, True])
@every_layer
def test_copies(name: str, learned: bool, backend: str) -> None:
    module, x = LAYERS[name](learned_alpha=learned), given(name)
    want = run(module, x)
    stored, state = io.BytesIO(), io.BytesIO()
    torch.save(module, stored)
    torch.save(module.state_dict(), state)
    for file in (stored, state):
        file.seek(0)
    loaded = LAYERS[name](learned_alpha=learned)
    loaded.load_state_dict(torch.load(state, weights_only=True), strict=True)
    for made in (
        copy.deepcopy(module),
        copy.copy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(stored, weights_only=False),
        loaded,
    ):
        assert torch.equal(run(made, x), want) and repr(made) == repr(module)
    for encoding in (T2T, sinpe.convention("mae2d", 32)):
        for copied in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
            assert copied == encoding and hash(copied) == hash(encoding)


@pytest.mark.bad_input(24, "compiled", "eager", "meta", "layer", "embedding", "grid", "timestep")
@pytest.mark.parametrize("learned", [False, True])
@every_layer
def test_meta_and_to_empty(name: str, learned: bool, backend: str) -> None:
    """There is nothing to rebuild: parameters only have to be loaded or initialized."""
    options = {"learned_alpha": learned, "alpha": 0.5}
    ready, x = LAYERS[name](**options).eval(), given(name)
    with torch.device("meta"):
        empty = LAYERS[name](**options).eval()
    assert all(p.is_meta for p in empty.parameters())
    on_meta = empty(x.to("meta"))
    assert on_meta.is_meta and on_meta.shape == ready(x).shape
    loaded = copy.deepcopy(empty).to_empty(device="cpu")
    loaded.load_state_dict(ready.state_dict(), strict=True)
    assigned = copy.deepcopy(empty)
    assigned.load_state_dict(ready.state_dict(), strict=True, assign=True)
    for made in (loaded, assigned):
        assert torch.equal(made(x), ready(x))
    reset = empty.to_empty(device="cpu")
    for p in reset.parameters():
        nn.init.constant_(p, torch.nan)
    if hasattr(reset, "reset_parameters"):
        torch.manual_seed(1)
        reset.reset_parameters()
    assert torch.equal(reset(x), ready(x))


MAKE: dict[str, Callable[..., nn.Module]] = {
    "SinusoidalPositionalEncoding": lambda **on: sinpe.SinusoidalPositionalEncoding(
        D, 0.0, 9, learned_alpha=True, alpha=0.5, persistent_table=True, **on
    ),
    "SinusoidalEmbedding": lambda **on: sinpe.SinusoidalEmbedding(V, D, learned_alpha=True, **on),
    "TimestepEncoding": lambda **on: sinpe.TimestepEncoding(D, **on),
}


@pytest.mark.parametrize("name", MAKE)
def test_device_and_dtype_as_arguments(name: str, backend: str) -> None:
    """As in PyTorch's layers, including the default device and dtype."""
    made = MAKE[name](device="meta", dtype=torch.float64)
    assert all(t.is_meta for t in made.state_dict(keep_vars=True).values() if isinstance(t, nn.Parameter))
    assert all(t.is_meta for t in made.buffers()) and all(p.dtype is torch.float64 for p in made.parameters())
    assert len(list(made.parameters())) == {"TimestepEncoding": 0, "SinusoidalEmbedding": 2}.get(name, 1)
    with torch.device("meta"):
        assert all(t.device.type == "cpu" for t in [*MAKE[name](device="cpu").parameters()])
    if name != "TimestepEncoding":  # its dtype is that of the result
        alpha = MAKE[name](device=torch.device("cpu"), dtype=torch.bfloat16).alpha
        assert alpha.dtype is torch.float32  # 16 bits would lose small optimizer steps
    for wrong, error in (
        ({"device": "nowhere"}, ValueError),
        ({"device": 2.5}, TypeError),
        ({"dtype": int}, TypeError),
    ):
        with pytest.raises(error, match=f"{next(iter(wrong))}: expected "):
            MAKE[name](**wrong)


@pytest.mark.parametrize("name", ["Linear", "table", *MAKE])
def test_device_as_int(name: str, backend: str) -> None:
    """The accelerator with that index; without one, torch's error."""
    make = {"Linear": lambda **on: nn.Linear(2, 2, **on), "table": lambda **on: sinpe.table(3, D, **on), **MAKE}[name]
    if not torch.accelerator.is_available():
        if torch.version.cuda:
            pytest.skip("a CUDA build of torch without a device")
        with pytest.raises(RuntimeError, match="Cannot access accelerator device when none is available"):
            make(device=0)
        return
    made = make(device=0)
    tensors = [made] if isinstance(made, Tensor) else [*made.parameters(), *made.buffers()]
    assert all(t.device == torch.device(0) for t in tensors)


def test_table_of_a_layer_constructed_on_meta(backend: str) -> None:
    """`pe` of a layer constructed on meta, after to_empty."""
    made = MAKE["SinusoidalPositionalEncoding"](device="meta").to_empty(device="cpu")
    made.reset_parameters()
    assert torch.equal(made.pe, sinpe.table(9, D)[None]) and made.alpha.tolist() == [0.5]


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.bad_input(20, "compiled", "eager", "layer", "embedding", "grid", "timestep")
@every_layer
def test_deterministic_mode(name: str, deterministic: None, backend: str) -> None:
    """No call is rejected, and all runs give the same bits, gradients included."""

    def step() -> list[Tensor]:
        module, x = LAYERS[name](learned_alpha=True), given(name)
        x = x.requires_grad_() if x.is_floating_point() else x
        out = run(module, x)
        out.sin().sum().backward()
        return [out.detach(), *(t.grad for t in (*module.parameters(), x) if t.grad is not None)]

    first = step()
    torch.use_deterministic_algorithms(False)
    plain = step()
    torch.use_deterministic_algorithms(True)
    for again in (step(), plain):
        assert len(again) == len(first) and all(map(torch.equal, again, first))


class Doubled(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        return 2.0 * t


@pytest.mark.parametrize("name, attribute", [
    ("SinusoidalEmbedding", "weight"), ("SinusoidalEmbedding", "alpha"), ("SinusoidalPositionalEncoding", "alpha"),
])  # fmt: skip
def test_parametrize(name: str, attribute: str, backend: str) -> None:
    """Parametrizations of our parameters, in training and in eval, and their removal."""
    for training in (True, False):
        module, x = LAYERS[name](learned_alpha=True).train(training), given(name)
        by_hand = copy.deepcopy(module)
        with torch.no_grad():
            getattr(by_hand, attribute).mul_(2.0)
        want = run(by_hand, x)
        parametrize.register_parametrization(module, attribute, Doubled())
        got = run(module, x)
        assert torch.equal(got, want)
        got.sin().sum().backward()
        want.sin().sum().backward()
        original = getattr(module.parametrizations, attribute).original
        assert torch.equal(original.grad, 2.0 * getattr(by_hand, attribute).grad)
        with parametrize.cached():
            assert torch.equal(run(module, x), want)
        parametrize.remove_parametrizations(module, attribute)
        assert torch.equal(run(module, x), want)


def test_parametrizations_of_the_model_are_kept(backend: str) -> None:
    model = nn.Sequential(embedding(), layer(), nn.Linear(D, D))
    torch.nn.utils.parametrizations.spectral_norm(model[2])
    keys = list(model.state_dict())
    model(given("SinusoidalEmbedding")).sum().backward()
    assert list(model.state_dict()) == keys and parametrize.is_parametrized(model[2], "weight")
    assert model[2].parametrizations.weight.original.grad is not None


def state_of(module: nn.Module) -> Any:
    """All attributes of a module, and the version counters of its tensors."""
    kept = {key: value for key, value in vars(module).items() if not key.startswith("_forward")}
    tensors = {key: (t.data_ptr(), t._version) for key, t in module.state_dict(keep_vars=True).items()}
    return repr(kept), tensors, [state_of(child) for child in module.children()]


@pytest.mark.parametrize("training", [True, False])
@every_layer
def test_forward_does_not_change_the_module(name: str, training: bool, backend: str) -> None:
    module, x = LAYERS[name](learned_alpha=True).train(training), given(name)
    before, generator = state_of(module), torch.get_rng_state()
    first = run(module, x)
    torch.set_rng_state(generator)
    run(module, x[:1])  # another call in between
    second = run(module, x)
    assert state_of(module) == before and torch.equal(first, second)
    if not training:
        torch.set_rng_state(generator)
        module(x)
        assert torch.equal(torch.get_rng_state(), generator)


@every_layer
def test_symbolic_trace(name: str, backend: str) -> None:
    """A layer is a leaf, as torch.nn layers are; functions are not traceable, use torch.export."""
    model, x = nn.Sequential(LAYERS[name](), nn.Linear(D, D)), given(name)
    traced = torch.fx.symbolic_trace(model)
    used = [node.op for node in traced.graph.nodes if node.users or node.op == "output"]
    assert used == ["placeholder", "call_module", "call_module", "output"]
    assert torch.equal(run(traced, x), run(model, x))
    with pytest.raises(TypeError, match="expected a torch.Tensor, got Proxy"):
        torch.fx.symbolic_trace(lambda t: sinpe.add(t))

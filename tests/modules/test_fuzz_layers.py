"""The layers as state machines: after any sequence of changes, a call equals the function with the current fields."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from oracles import same
from strategies import DTYPES
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding, SinusoidalPositionalEncoding

pytestmark = pytest.mark.emulated

DIM, LENGTH, VOCABULARY = 10, 7, 9
ENCODINGS = (
    None,
    sinpe.Encoding(DIM, start=3),
    "t2t",
    sinpe.convention("adm", DIM, base=100.0),
    sinpe.Encoding(DIM, angle="float32_exp"),
)
RATES = st.sampled_from((0.0, 0.1, 0.5, 1.0))
FLOATS = st.sampled_from((1.0, 1.0, 0.5, -2.0))
SEEDS = st.integers(-(2**63), 2**63 - 1)
STATES = st.tuples(st.booleans(), st.booleans(), st.booleans())  # training, batch_first, gradients


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class Layer(RuleBasedStateMachine):
    """The layer, and a model of the fields that a call depends on."""

    layer: Any

    def __init__(self) -> None:
        super().__init__()
        self.backend = sinpe.use_backend("auto")
        self.model: dict[str, Any] = {}

    def teardown(self) -> None:
        self.backend.__exit__(None, None, None)
        super().teardown()

    def make(self, layer: Any, state: tuple[bool, bool, bool], learned: bool, **model: Any) -> None:
        training, first, grad = state
        self.layer = layer.train(training)
        self.layer.batch_first = first
        self.model = {"drops": training, "batch_first": first, "grad": grad, "scale": 1.0, "learned": learned, **model}
        self.model["alpha"] = torch.tensor([model["alpha"]])

    def rate(self) -> float:
        return self.model["p"] if self.model["drops"] else 0.0

    def alpha(self) -> Any:
        return self.model["alpha"] if self.model["learned"] else float(self.model["alpha"])

    @rule(training=st.booleans())
    def switch_mode(self, training: bool) -> None:
        self.layer.train(training)
        self.model["drops"] = training

    @rule(training=st.booleans())
    def switch_dropout_alone(self, training: bool) -> None:
        self.layer.dropout.train(training)
        self.model["drops"] = training

    @rule(p=RATES)
    def set_rate(self, p: float) -> None:
        self.layer.dropout.p = self.model["p"] = p

    @rule(scale=FLOATS)
    def set_scale(self, scale: float) -> None:
        self.layer.scale = self.model["scale"] = scale

    @rule(first=st.booleans())
    def set_batch_first(self, first: bool) -> None:
        self.layer.batch_first = self.model["batch_first"] = first

    @rule(value=FLOATS)
    def set_alpha(self, value: float) -> None:
        if self.model["learned"]:
            with torch.no_grad():
                self.layer.alpha.fill_(value)
        else:
            self.layer.alpha = value
        self.model["alpha"].fill_(value)

    @rule(name=st.sampled_from(("auto", "eager")))
    def switch_backend(self, name: str) -> None:
        sinpe.use_backend(name)

    @rule(enabled=st.booleans())
    def switch_gradients(self, enabled: bool) -> None:
        self.model["grad"] = enabled

    @rule(how=st.sampled_from(("deepcopy", "pickle", "state dict")))
    def copy(self, how: str) -> None:
        if how == "deepcopy":
            self.layer = copy.deepcopy(self.layer)
        elif how == "pickle":
            self.layer = pickle.loads(pickle.dumps(self.layer))
        else:
            state = {name: t.clone() for name, t in self.layer.state_dict().items()}
            for t in self.layer.parameters():
                nn.init.zeros_(t)
            self.layer.load_state_dict(state)

    @rule(dtype=st.sampled_from(DTYPES))
    def convert(self, dtype: torch.dtype) -> None:
        self.layer.to(dtype)
        if self.model["learned"]:
            self.model["alpha"] = self.model["alpha"].to(dtype)


class PositionalEncoding(Layer):
    @initialize(
        encoding=st.sampled_from(ENCODINGS),
        state=STATES,
        p=RATES,
        alpha=FLOATS,
        learned=st.booleans(),
        max_len=st.sampled_from((None, LENGTH + 5)),
    )
    def begin(self, encoding: Any, state: Any, p: float, alpha: float, learned: bool, max_len: int | None) -> None:
        layer = SinusoidalPositionalEncoding(DIM, p, max_len, encoding=encoding, alpha=alpha, learned_alpha=learned)
        self.make(layer, state, learned, encoding=encoding, p=p, alpha=alpha)

    @rule(
        dtype=st.sampled_from(DTYPES),
        start=st.integers(0, 5),
        seed=SEEDS,
        masked=st.booleans(),
        learns=st.booleans(),
        autocast=st.booleans(),
        shape=st.sampled_from(((LENGTH, DIM), (2, LENGTH, DIM), (LENGTH, 3, DIM))),
    )
    def call(
        self,
        dtype: torch.dtype,
        start: int,
        seed: int,
        masked: bool,
        learns: bool,
        autocast: bool,
        shape: tuple[int, ...],
    ) -> None:
        model = self.model
        if len(shape) == 3 and (shape[0] == LENGTH) == model["batch_first"]:
            shape = (shape[1], shape[0], DIM)
        seq_dim = -2 if len(shape) == 2 or model["batch_first"] else 0
        x, other = (numbers(*shape).to(dtype).requires_grad_(learns) for _ in range(2))
        mask = torch.arange(LENGTH) > 4 if masked else None
        given: dict[str, Any] = {"start": start, "seed": seed, "padding_mask": mask}
        with torch.set_grad_enabled(model["grad"]):
            with torch.autocast("cpu", torch.bfloat16, autocast):
                y = self.layer(x, **given)
            rest = {"scale": model["scale"], "alpha": self.alpha(), "dropout": self.rate(), "seq_dim": seq_dim}
            want = sinpe.add(other, model["encoding"], **given, **rest)
        assert same(y.detach(), want.detach()) and y.dtype == dtype
        assert y.requires_grad == (model["grad"] and (learns or model["learned"]))
        if model["grad"] and learns:
            grad = numbers(*shape).to(dtype).flip(0)
            assert same(*(torch.autograd.grad(a, b, grad)[0] for a, b in ((y, x), (want, other))))


class Embedding(Layer):
    @initialize(
        encoding=st.sampled_from(ENCODINGS),
        state=STATES,
        p=RATES,
        alpha=FLOATS,
        learned=st.booleans(),
        padding_idx=st.sampled_from((None, 0, 4)),
        sparse=st.booleans(),
    )
    def begin(
        self, encoding: Any, state: Any, p: float, alpha: float, learned: bool, padding_idx: Any, sparse: bool
    ) -> None:
        options: dict[str, Any] = {"sparse": sparse, "padding_idx": padding_idx}
        options["encode_padding"] = padding_idx != 4
        layer = SinusoidalEmbedding(
            VOCABULARY, DIM, dropout=p, encoding=encoding, alpha=alpha, learned_alpha=learned, **options
        )
        weight = layer.weight.detach().clone()
        self.make(layer, state, learned, encoding=encoding, p=p, alpha=alpha, options=options, weight=weight)

    @rule(dtype=st.sampled_from(DTYPES))
    def convert(self, dtype: torch.dtype) -> None:
        super().convert(dtype)
        self.model["weight"] = self.model["weight"].to(dtype)

    @rule(freeze=st.booleans())
    def freeze(self, freeze: bool) -> None:
        self.layer.weight.requires_grad_(not freeze)

    @rule(step=st.sampled_from((0.25, -0.5)))
    def train_a_step(self, step: float) -> None:
        """In place, as optimizers do."""
        with torch.no_grad():
            self.layer.weight.add_(step)
        self.model["weight"].add_(step)

    @rule(
        start=st.integers(-5, 2**40),
        seed=SEEDS,
        autocast=st.booleans(),
        shape=st.sampled_from(((LENGTH,), (2, LENGTH))),
    )
    def call(self, start: int, seed: int, autocast: bool, shape: tuple[int, ...]) -> None:
        model, weight = self.model, self.layer.weight
        ids = torch.arange(int(torch.tensor(shape).prod())).reshape(shape) % VOCABULARY
        ids = ids if model["batch_first"] or ids.dim() == 1 else ids.t()
        given: dict[str, Any] = {"start": start, "seed": seed}
        other = model["weight"].clone().requires_grad_(weight.requires_grad)
        with torch.set_grad_enabled(model["grad"]):
            with torch.autocast("cpu", torch.bfloat16, autocast):
                y = self.layer(ids, **given)
            rest = {"scale": model["scale"], "alpha": self.alpha(), "dropout": self.rate(), **model["options"]}
            seq_dim = -1 if model["batch_first"] else 0
            want = sinpe.embed(ids, other, model["encoding"], seq_dim=seq_dim, **given, **rest)
        assert same(y.detach(), want.detach()) and y.dtype == weight.dtype
        assert y.requires_grad == (model["grad"] and (weight.requires_grad or model["learned"]))
        if y.requires_grad and weight.requires_grad:
            grad = torch.ones(y.shape, dtype=y.dtype)
            mine, theirs = (torch.autograd.grad(a, b, grad)[0] for a, b in ((y, weight), (want, other)))
            assert mine.is_sparse == model["options"]["sparse"]
            assert same(*(g.to_dense() if g.is_sparse else g for g in (mine, theirs)))


PositionalEncoding.TestCase.settings = Embedding.TestCase.settings = settings(stateful_step_count=25)
TestPositionalEncoding = pytest.mark.usefixtures("need_kernels")(PositionalEncoding.TestCase)
TestEmbedding = pytest.mark.usefixtures("need_kernels")(Embedding.TestCase)

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
ENCODINGS = st.sampled_from((
    None, sinpe.Encoding(DIM, start=3), "t2t", sinpe.convention("adm", DIM, base=100.0),
    sinpe.Encoding(DIM, angle="float32_exp"),
))  # fmt: skip
RATES = st.sampled_from((0.0, 0.1, 0.5, 1.0))
FLOATS = st.sampled_from((1.0, 1.0, 0.5, -2.0))
SHAPES = st.sampled_from(((LENGTH,), (2, LENGTH), (3, LENGTH)))


class Layer(RuleBasedStateMachine):
    """The layer, and the fields that a call depends on."""

    layer: Any
    weight: Tensor | None = None
    grad, learned = True, False

    def __init__(self) -> None:
        super().__init__()
        self.backend = sinpe.use_backend("auto")
        self.fields: dict[str, Any] = {"scale": 1.0}  # of `add` and `embed`

    def teardown(self) -> None:
        self.backend.__exit__(None, None, None)
        super().teardown()

    def make(self, layer: nn.Module, p: float, alpha: float, learned: bool) -> None:
        self.layer, self.training, self.p, self.batch_first, self.learned = layer, True, p, True, learned
        self.alpha = torch.tensor([alpha])

    @rule(training=st.booleans(), alone=st.booleans())
    def switch_mode(self, training: bool, alone: bool) -> None:
        (self.layer.dropout if alone else self.layer).train(training)
        self.training = training

    @rule(p=RATES)
    def set_rate(self, p: float) -> None:
        self.layer.dropout.p = self.p = p

    @rule(scale=FLOATS)
    def set_scale(self, scale: float) -> None:
        self.layer.scale = self.fields["scale"] = scale

    @rule(first=st.booleans())
    def set_batch_first(self, first: bool) -> None:
        self.layer.batch_first = self.batch_first = first

    @rule(value=FLOATS)
    def set_alpha(self, value: float) -> None:
        if self.learned:
            with torch.no_grad():
                self.layer.alpha.fill_(value)
        else:
            self.layer.alpha = value
        self.alpha.fill_(value)

    @rule(name=st.sampled_from(("auto", "eager")))
    def switch_backend(self, name: str) -> None:
        sinpe.use_backend(name)

    @rule(enabled=st.booleans())
    def switch_gradients(self, enabled: bool) -> None:
        self.grad = enabled

    @rule(how=st.sampled_from(("deepcopy", "pickle", "state dict")))
    def copy(self, how: str) -> None:
        if how == "state dict":
            state = {name: t.clone() for name, t in self.layer.state_dict().items()}
            for t in self.layer.parameters():
                nn.init.zeros_(t)
            self.layer.load_state_dict(state)
        else:
            self.layer = copy.deepcopy(self.layer) if how == "deepcopy" else pickle.loads(pickle.dumps(self.layer))

    @rule(dtype=st.sampled_from(DTYPES))
    def convert(self, dtype: torch.dtype) -> None:
        self.layer.to(dtype)
        if self.learned:
            self.alpha = self.alpha.to(dtype)
        if self.weight is not None:
            self.weight = self.weight.to(dtype)

    @rule(
        dtype=st.sampled_from(DTYPES),
        start=st.integers(0, 5),
        seed=st.integers(-(2**63), 2**63 - 1),
        masked=st.booleans(),
        learns=st.booleans(),
        autocast=st.booleans(),
        shape=SHAPES,
    )
    def call(
        self, dtype: torch.dtype, start: int, seed: int, masked: bool, learns: bool, autocast: bool, shape: Any
    ) -> None:
        mask = torch.arange(LENGTH) > 4 if masked else None
        given: dict[str, Any] = {"start": start, "seed": seed, "padding_mask": mask}
        given["dropout"] = self.p if self.training else 0.0
        given["alpha"] = self.alpha if self.learned else float(self.alpha)
        swaps = len(shape) > 1 and not self.batch_first
        if self.weight is None:
            x = torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
            x = (x.transpose(0, 1) if swaps else x).requires_grad_(learns)
            mine, theirs = x, x.detach().clone().requires_grad_(learns)
        else:
            x = (torch.arange(shape[0] * LENGTH).reshape(-1, LENGTH) % VOCABULARY)[: shape[0]].reshape(-1, LENGTH)
            x = x[0] if len(shape) == 1 else x.t() if swaps else x
            mine = self.layer.weight
            theirs, learns = self.weight.clone().requires_grad_(mine.requires_grad), mine.requires_grad
        with torch.set_grad_enabled(self.grad):
            with torch.autocast("cpu", torch.bfloat16, autocast):
                y = self.layer(x, start=start, seed=seed, padding_mask=mask)
            if self.weight is None:
                want = sinpe.add(theirs, **self.fields, **given, seq_dim=0 if swaps else -2)
            else:
                want = sinpe.embed(x, theirs, **self.fields, **given, seq_dim=0 if swaps else -1)
        assert same(y.detach(), want.detach()) and y.dtype == mine.dtype
        assert y.requires_grad == (self.grad and (learns or self.learned))
        if y.requires_grad and learns:
            grad = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype)
            one, other = (torch.autograd.grad(a, b, grad)[0] for a, b in ((y, mine), (want, theirs)))
            assert one.is_sparse == self.fields.get("sparse", False)
            assert same(*(g.to_dense() if g.is_sparse else g for g in (one, other)))


class PositionalEncoding(Layer):
    @initialize(encoding=ENCODINGS, p=RATES, alpha=FLOATS, learned=st.booleans(), limit=st.sampled_from((None, 12)))
    def begin(self, encoding: Any, p: float, alpha: float, learned: bool, limit: int | None) -> None:
        layer = SinusoidalPositionalEncoding(DIM, p, limit, encoding=encoding, alpha=alpha, learned_alpha=learned)
        self.fields["encoding"] = encoding
        self.make(layer, p, alpha, learned)


class Embedding(Layer):
    weight: Tensor

    @initialize(encoding=ENCODINGS, p=RATES, alpha=FLOATS, learned=st.booleans(), padding=st.sampled_from((None, 0, 4)),
                sparse=st.booleans())  # fmt: skip
    def begin(self, encoding: Any, p: float, alpha: float, learned: bool, padding: int | None, sparse: bool) -> None:
        options: dict[str, Any] = {"sparse": sparse, "padding_idx": padding, "encode_padding": padding != 4}
        options["encoding"] = encoding
        layer = SinusoidalEmbedding(VOCABULARY, DIM, dropout=p, alpha=alpha, learned_alpha=learned, **options)
        self.fields.update(options)
        self.weight = layer.weight.detach().clone()
        self.make(layer, p, alpha, learned)

    @rule(freeze=st.booleans())
    def freeze(self, freeze: bool) -> None:
        self.layer.weight.requires_grad_(not freeze)

    @rule(step=st.sampled_from((0.25, -0.5)))
    def train_a_step(self, step: float) -> None:
        """In place, as optimizers do."""
        with torch.no_grad():
            self.layer.weight.add_(step)
        self.weight.add_(step)


PositionalEncoding.TestCase.settings = Embedding.TestCase.settings = settings(
    max_examples=settings.default.max_examples * 2 // 5, stateful_step_count=20
)
TestPositionalEncoding = pytest.mark.usefixtures("need_kernels")(PositionalEncoding.TestCase)
TestEmbedding = pytest.mark.usefixtures("need_kernels")(Embedding.TestCase)

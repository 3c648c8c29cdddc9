"""The training rows of the benchmark: dropout, embedding, forward and backward, and a whole training step."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import sinpe_ext as sinpe

from . import peers as peer
from .cases import ALONE, CHECK_ROWS, WIDE, Row, Subjects, token_ids, tolerance

P = 0.1
TRAINED = (16, 512, 1024)
VOCABULARY = 32000
# With 8 million elements and probability 0.1, the dropped fraction deviates by more than this in one of 10^15 runs.
STRAY = 1e-3
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_language_model.py"


def check_dropout(got: Tensor, total: Tensor) -> None:
    """Check that each element is 0 or the sum times the kept scale, and that about the right fraction is 0."""
    kept = got != 0
    peer.agree("dropout", got[kept], (total / (1 - P))[kept], 2.0**-20 + 1e-4 * float(total.abs().max()))
    share = 1 - float(kept.double().mean())
    if not abs(share - P) < STRAY:
        raise AssertionError(f"dropout: expected a share of {P} dropped, got {share:.5f}")


def add(shape: tuple[int, int, int], variant: str) -> Subjects:
    """dropout(x + PE): "fresh" or "inplace", against the same with a stored table."""
    encoding, pe, x = sinpe.Encoding(shape[-1]), sinpe.table(shape[1], shape[-1]), torch.randn(shape)

    def eager(x: Tensor) -> Tensor:
        return functional.dropout(x + pe, P)

    def check() -> None:
        run = (lambda: sinpe.add_(x.clone(), encoding, dropout=P)) if variant == "inplace" else ours
        check_dropout(run(), x + pe)

    def ours() -> Tensor:
        return sinpe.add(x, encoding, dropout=P)

    if variant == "inplace":
        return Subjects(
            lambda: sinpe.add_(x, encoding, dropout=P),
            lambda: x.mul_(1.0),
            {"eager": lambda: functional.dropout(x.add_(pe), P, inplace=True)},
            check,
        )
    compiled = torch.compile(eager)
    return Subjects(ours, lambda: x.clone(), {"eager": lambda: eager(x), "torch.compile": lambda: compiled(x)}, check)


def add_backward(shape: tuple[int, int, int], *, learned: bool = False) -> Subjects:
    """dropout(x + alpha * PE) and its gradients, against two copies."""
    encoding, pe = sinpe.Encoding(shape[-1]), sinpe.table(shape[1], shape[-1])
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    alpha = torch.ones(1, requires_grad=True) if learned else 1.0
    inputs = [x, alpha] if isinstance(alpha, Tensor) else [x]

    def ours() -> Any:
        return torch.autograd.grad(sinpe.add(x, encoding, alpha=alpha, dropout=P), inputs, grad)

    def eager() -> Any:
        return torch.autograd.grad(functional.dropout(x + alpha * pe, P), inputs, grad)

    def floor() -> None:
        x.detach().clone()
        grad.clone()

    return Subjects(ours, floor, {"eager": eager}, lambda: check_dropout(ours()[0], grad))


def embed(shape: tuple[int, int, int]) -> Subjects:
    """scale * weight[ids] + PE, against the lookup only."""
    batch, length, dim = shape
    encoding, pe, scale = sinpe.Encoding(dim), sinpe.table(length, dim), math.sqrt(dim)
    weight, ids = torch.randn(VOCABULARY, dim), torch.randint(VOCABULARY, (batch, length))

    def eager() -> Tensor:
        return functional.embedding(ids, weight) * scale + pe

    def check() -> None:
        rows = torch.linspace(0, length - 1, CHECK_ROWS).long()
        exact = weight[ids[:, rows]].double() * scale + peer.exact_rows(rows, dim)
        largest = float(exact.abs().max())  # the product and the sum are each rounded at this size
        got = sinpe.embed(ids, weight, encoding, scale=scale)[:, rows]
        peer.agree("embed", got, exact, largest * 2.0**-22 + tolerance(torch.float32, length))

    compiled = torch.compile(eager)
    return Subjects(
        lambda: sinpe.embed(ids, weight, encoding, scale=scale),
        lambda: functional.embedding(ids, weight),
        {"eager": eager, "torch.compile": lambda: compiled()},
        check,
    )


def embed_backward(shape: tuple[int, int, int], *, of_text: bool = False) -> Subjects:
    """dropout(scale * weight[ids] + PE) and the dense gradient of weight."""
    batch, length, dim = shape
    encoding, pe, scale = sinpe.Encoding(dim), sinpe.table(length, dim), math.sqrt(dim)
    weight = torch.randn(VOCABULARY, dim, requires_grad=True)
    ids, grad = token_ids(VOCABULARY, (batch, length), of_text=of_text), torch.randn(shape)

    def ours() -> Tensor:
        out = sinpe.embed(ids, weight, encoding, scale=scale, dropout=P)
        return torch.autograd.grad(out, weight, grad)[0]

    def eager() -> Tensor:
        out = functional.dropout(functional.embedding(ids, weight) * scale + pe, P)
        return torch.autograd.grad(out, weight, grad)[0]

    def check() -> None:
        one = sinpe.embed(ids, weight, encoding, scale=scale, dropout=P, seed=1)
        got = torch.autograd.grad(one, weight, grad)[0]
        constant = torch.full((VOCABULARY, dim), 8.0)  # of which no kept element is 0, as one of `one` may be by chance
        kept = sinpe.embed(ids, constant, encoding, scale=scale, dropout=P, seed=1) != 0
        rows = torch.where(kept, grad, 0.0).double() * (scale * 65536 / (65536 - round(P * 65536)))
        want = torch.zeros(VOCABULARY, dim, dtype=torch.float64).index_add_(0, ids.flatten(), rows.flatten(0, 1))
        peer.agree("embed", got, want, 2.0**-22 * float(want.abs().max()) * 8)

    return Subjects(ours, None, {"eager": eager}, check)


def eager_dropout(shape: tuple[int, int, int]) -> Subjects:
    """Dropout in the eager reference (Philox in PyTorch operations), against torch's own dropout."""
    encoding, pe, x = sinpe.Encoding(shape[-1]), sinpe.table(shape[1], shape[-1]), torch.randn(shape)

    def ours() -> Tensor:
        return sinpe.add(x, encoding, dropout=P)

    return Subjects(ours, lambda: functional.dropout(x + pe, P), {}, lambda: check_dropout(ours(), x + pe))


def compiled_chain(batch: int, length: int, dim: int, p: float = P, backward: bool = False) -> Subjects:
    """torch.compile of embedding -> scale, PE, dropout -> LayerNorm, against the same with a stored table.

    With `backward`, also the gradients of the weights.
    """
    encoding, pe, scale = sinpe.Encoding(dim), sinpe.table(length, dim), math.sqrt(dim)
    weight, ids, norm = torch.randn(VOCABULARY, dim), torch.randint(VOCABULARY, (batch, length)), nn.LayerNorm(dim)
    weight.requires_grad_(backward)
    gradient = torch.randn(batch, length, dim)

    def ours(ids: Tensor) -> Tensor:
        return norm(sinpe.embed(ids, weight, encoding, scale=scale, dropout=p))

    def ready(ids: Tensor) -> Tensor:
        return norm(functional.dropout(functional.embedding(ids, weight) * scale + pe, p))

    ours_compiled, ready_compiled = torch.compile(ours), torch.compile(ready)

    def timed(call: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
        if not backward:
            return lambda: call(ids)
        return lambda: torch.autograd.grad(call(ids), (weight, *norm.parameters()), gradient)

    def check() -> None:
        torch.manual_seed(0)
        want = ours(ids)
        torch.manual_seed(0)
        # LayerNorm sums in another order
        peer.agree("torch.compile", ours_compiled(ids).detach(), want.detach(), 1e-4)

    return Subjects(timed(ours_compiled), timed(ready_compiled), {"eager": timed(ready)}, check)


def example() -> Any:
    """examples/train_language_model.py as a module."""
    if not EXAMPLE.is_file():
        raise FileNotFoundError("the training step needs examples/train_language_model.py: run it in a checkout")
    spec = importlib.util.spec_from_file_location("sinpe_ext_train_language_model", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def training_step(*, compiled: bool = False) -> Subjects:
    """One training step of the example's language model, with our layer and with plain PyTorch layers."""
    lm = example()
    torch.manual_seed(0)
    data = torch.randint(90, (20_000,))

    def step(kind: str) -> Any:
        torch.manual_seed(0)
        model = lm.model_of(kind, 90)
        run = torch.compile(model) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        order = torch.Generator().manual_seed(0)

        def one() -> float:
            optimizer.zero_grad()
            loss = lm.loss_of(run, *lm.batches(data, order))
            loss.backward()
            optimizer.step()
            return loss.item()

        return one

    ours, torch_only = step("sinpe_ext"), step("torch")

    def check() -> None:
        mine, theirs = ours(), torch_only()
        if not abs(mine - theirs) < 0.05:  # the same weights and data, two dropout masks
            raise AssertionError(f"training step: expected a loss near {theirs:.3f}, got {mine:.3f}")

    return Subjects(ours, torch_only, {}, check)


CLONE, CLONES = "x.clone()", "two clones"

# fmt: off
TRAINING_ROWS: tuple[Row, ...] = (
    Row("dropout", "add + dropout (32,512,1024), fresh", lambda: add(WIDE, "fresh"), CLONE, 1.3,
        {"eager": 5.5, "torch.compile": 3.0}),
    Row("dropout_inplace", "add_ + dropout (32,512,1024)", lambda: add(WIDE, "inplace"), "x.mul_(1.0)", 2.0,
        {"eager": 20.0}),
    Row("dropout_one", "add + dropout (1,16384,1024), fresh", lambda: add(ALONE, "fresh"), CLONE, None,
        {"eager": None}),
    Row("dropout_train", "add + dropout (16,512,1024), backward", lambda: add_backward(TRAINED), CLONES, 1.35,
        {"eager": 3.5}, grad=True),
    Row("alpha_train", "the same with a learned alpha", lambda: add_backward(TRAINED, learned=True), CLONES, None,
        {"eager": None}, grad=True),
    Row("embed", "embed (32,512,1024), fresh", lambda: embed(WIDE), "F.embedding", 1.0,
        {"eager": 2.5, "torch.compile": 1.0}),
    Row("embed_one", "embed (1,16384,1024), fresh", lambda: embed(ALONE), "F.embedding", None, {"eager": None}),
    Row("embed_train", "embed + dropout (16,512,1024), backward", lambda: embed_backward(TRAINED),
        peers={"eager": 3.0}, grad=True),
    Row("embed_train_text", "the same with ids of a text", lambda: embed_backward(TRAINED, of_text=True),
        peers={"eager": 3.0}, grad=True),
    Row("eager_dropout", "eager reference, add + dropout", lambda: eager_dropout(TRAINED), "F.dropout(x + pe)",
        backend="eager"),
    Row("compile_dropout", "compiled embed, PE, dropout, LayerNorm", lambda: compiled_chain(*WIDE), "ready table", 1.0,
        {"eager": None}, slow=True),
    Row("compile_train", "the same (16,512,1024), backward", lambda: compiled_chain(*TRAINED, backward=True),
        "ready table", 1.0, {"eager": None}, grad=True, slow=True),
    Row("compile_train_plain", "the same without dropout", lambda: compiled_chain(*TRAINED, 0.0, backward=True),
        "ready table", 1.05, {"eager": None}, grad=True, slow=True),
    Row("train_step", "training step, small language model", training_step, "torch layers", grad=True, slow=True),
    Row("train_step_compiled", "the same under torch.compile", lambda: training_step(compiled=True), "torch layers",
        grad=True, slow=True),
)
# fmt: on

"""torch.jit.trace records calls that follow the length at run time; calls that cannot are rejected."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from children import execute
from torch import Tensor, nn
from traced_models import Call, ids, x

import sinpe_ext as sinpe

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.(script|trace|trace_method|save|load). is deprecated"),
]
D = 12
T2T = sinpe.convention("t2t", D)
GRID = sinpe.convention("mae2d", D)
FLOAT32 = sinpe.Encoding(D, angle="float32_exp")
LENGTHS = [(7, 1), (1, 7), (5, 6)]  # traced with, run with


def layer(*args: Any, **options: Any) -> nn.Module:
    return sinpe.SinusoidalPositionalEncoding(D, *args, **options).eval()


def embedding(**options: Any) -> nn.Module:
    torch.manual_seed(3)
    return sinpe.SinusoidalEmbedding(20, D, **options).eval()


def batch_first(n: int) -> tuple[Tensor, ...]:
    return (x(2, n, D),)


def sequence_first(n: int) -> tuple[Tensor, ...]:
    return (x(n, 2, D),)


def tokens(n: int) -> tuple[Tensor, ...]:
    return (ids(2, n),)


WEIGHT = x(20, D)
# Traced functions, and their arguments for n rows (or rows and columns that depend on n).
FOLLOWING: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Any, ...]]]] = {
    "layer": (layer, batch_first),
    "layer without batch": (layer, lambda n: (x(n, D),)),
    "sequence first": (lambda: layer(batch_first=False), sequence_first),
    "learned alpha": (lambda: layer(learned_alpha=True, scale=3.0, alpha=0.5), batch_first),
    "bfloat16": (layer, lambda n: (x(2, n, D, dtype=torch.bfloat16),)),
    "float32 angle": (lambda: layer(encoding=FLOAT32), batch_first),
    "extra tokens": (lambda: layer(extra_tokens=1), lambda n: (x(2, n + 1, D),)),
    "class token and mask": (
        lambda: Call(lambda t, m: sinpe.add(t, extra_tokens=1, padding_mask=m)),
        lambda n: (x(2, n + 1, D), torch.arange(n).expand(2, n) > 3),
    ),
    "channels first": (lambda: layer(channel_dim=1), lambda n: (x(2, D, n),)),
    "in a model": (lambda: nn.Sequential(nn.Linear(D, D), layer(encoding=T2T), nn.Linear(D, D)).eval(), batch_first),
    "max_len": (lambda: layer(max_len=10), batch_first),
    "embedding layer": (embedding, tokens),
    "embedding, sequence first": (lambda: embedding(batch_first=False), lambda n: (ids(n, 2),)),
    "embedding, padding": (lambda: embedding(padding_idx=1, encode_padding=False), tokens),
    "add": (lambda: Call(lambda t: sinpe.add(t, T2T, scale=2.0, start=5)), batch_first),
    "add_": (lambda: Call(lambda t: sinpe.add_(t * 1.0, T2T)), batch_first),
    "add out": (lambda: Call(lambda t: sinpe.add(t, T2T, out=torch.empty_like(t))), batch_first),
    "add with positions": (
        lambda: Call(lambda t, p: sinpe.add(t, T2T, positions=p)),
        lambda n: (x(2, n, D), ids(2, n)),
    ),
    "add with a start per sample": (
        lambda: Call(lambda t, s: sinpe.add(t, T2T, start=s)),
        lambda n: (x(2, n, D), torch.tensor([3, -9])),
    ),
    "add with a mask": (
        lambda: Call(lambda t, m: sinpe.add(t, T2T, padding_mask=m)),
        lambda n: (x(2, n, D), torch.arange(n).expand(2, n) > 3),
    ),
    "dropout with a seed": (lambda: Call(lambda t: sinpe.add(t, T2T, dropout=0.5, seed=7)), batch_first),
    "dropout, sequence first": (
        lambda: Call(lambda t: sinpe.add(t, T2T, dropout=0.5, seed=7, seq_dim=0)),
        sequence_first,
    ),
    "dropout, seed as a tensor": (
        lambda: Call(lambda t, s: sinpe.add(t, T2T, dropout=0.5, seed=s)),
        lambda n: (x(2, n, D), torch.tensor(n)),
    ),
    "dropout behind a class token": (
        lambda: Call(lambda t: sinpe.add(t, dropout=0.5, seed=7, extra_tokens=1)),
        lambda n: (x(2, n + 1, D),),
    ),
    "embed": (lambda: Call(lambda i: sinpe.embed(i, WEIGHT, scale=2.0, start=4)), tokens),
    "embed with dropout": (lambda: Call(lambda i: sinpe.embed(i, WEIGHT, dropout=0.5, seed=7)), tokens),
    "embed with dropout, sequence first": (
        lambda: Call(lambda i: sinpe.embed(i, WEIGHT, dropout=0.5, seed=7, seq_dim=0)),
        lambda n: (ids(n, 2),),
    ),
    "timesteps": (lambda: sinpe.TimestepEncoding(D), lambda n: (x(n) * 1000,)),
    "encode": (lambda: Call(lambda p: sinpe.encode(p, T2T)), lambda n: (ids(n, 3),)),
    "encode, float32 angle": (lambda: Call(lambda p: sinpe.encode(p, FLOAT32)), lambda n: (ids(n),)),
    "table of a size": (lambda: Call(lambda t: t + sinpe.table(t.shape[1], T2T, start=2)), batch_first),
    "table from a size": (
        lambda: Call(lambda t, past: t + sinpe.table(t.shape[1], T2T, start=past.shape[1])),
        lambda n: (x(2, n, D), x(2, 3 * n, D)),
    ),
    "table of distances": (
        lambda: Call(lambda t: sinpe.table(2 * t.shape[1] - 1, T2T, start=1 - t.shape[1])),
        batch_first,
    ),
    "distances": (lambda: Call(lambda t: sinpe.encode(sinpe.positions.relative(t.shape[1]), T2T)), batch_first),
    "cells": (
        lambda: Call(lambda t: sinpe.encode(sinpe.positions.grid(t.shape[1:3], start=(1, 2)), GRID)),
        lambda n: (x(2, n, n + 2, D),),
    ),
    "picture from a size": (
        lambda: Call(lambda t, past: sinpe.add(t, "mae2d", start=(past.shape[1], 0))),
        lambda n: (x(2, n, n + 2, D), x(2, 3 * n, D)),
    ),
    "picture with a start per sample": (
        lambda: Call(lambda t, s: sinpe.add(t, "mae2d", start=s)),
        lambda n: (x(n, 2, 3, D), ids(n, 2)),
    ),
    "sequences of a picture with a start per sample": (
        lambda: Call(lambda t, s: sinpe.add(t, "mae2d", start=s, grid_shape=(2, 3), dropout=0.5, seed=7)),
        lambda n: (x(n, 6, D), ids(n, 2)),
    ),
    "start per sample": (lambda: Call(lambda t, s: sinpe.add(t, T2T, start=s)), lambda n: (x(n, 3, D), ids(n))),
    "dim of x": (lambda: Call(lambda t: t + sinpe.table(t.shape[1], t.shape[2])), batch_first),
    "slice of a table": (lambda: Call(lambda t: t + sinpe.table(9, T2T)[: t.shape[1]]), batch_first),
    "table into memory": (
        lambda: Call(lambda t: t + sinpe.table(9, T2T, out=torch.empty(9, D))[: t.shape[1]]),
        batch_first,
    ),
    "picture": (lambda: layer(encoding="mae2d"), lambda n: (x(2, n, n + 2, D),)),
    "picture, channels first": (lambda: layer(encoding="detr2d", channel_dim=1), lambda n: (x(2, D, n, n + 2),)),
    "picture in a sequence": (
        lambda: Call(lambda t: sinpe.add(t.flatten(1, 2), "mae2d", grid_shape=(t.shape[1], t.shape[2]))),
        lambda n: (x(2, n, n + 2, D),),
    ),
    "picture behind a token, with a mask": (
        lambda: Call(
            lambda t, p: sinpe.add(
                torch.cat([t[:, 0, :1], t.flatten(1, 2)], 1),
                "mae2d",
                grid_shape=tuple(t.shape[1:3]),
                extra_tokens=1,
                padding_mask=p,
            )
        ),
        lambda n: (x(2, n + 1, n + 2, D), torch.arange((n + 1) * (n + 2)).reshape(n + 1, n + 2) % 3 == 0),
    ),
    "table of sizes": (
        lambda: Call(lambda t: t + sinpe.table((t.shape[1], t.shape[2]), sinpe.convention("mae2d", D), start=(2, 0))),
        lambda n: (x(2, n, n + 2, D),),
    ),
    "table of a size and a number, flat": (
        lambda: Call(
            lambda t: (
                sinpe.table((t.shape[1], 3), sinpe.convention("detr2d", D), flatten=True, extra_tokens=1) + t[0, 0, 0]
            )
        ),
        lambda n: (x(2, n, n + 2, D),),
    ),
    "picture with dropout": (
        lambda: Call(lambda t: sinpe.add(t, "mae2d", dropout=0.5, seed=7)),
        lambda n: (x(2, n, n + 2, D),),
    ),
    "places with coordinates": (
        lambda: Call(lambda t, p: sinpe.add(t, "mae2d", positions=p)),
        lambda n: (x(2, n, n + 2, D), ids(2, n, n + 2, 2)),
    ),
}


@pytest.mark.sampled("pairs")
@pytest.mark.parametrize(("traced_at", "run_at"), LENGTHS)
@pytest.mark.parametrize("name", FOLLOWING)
def test_traced_call_follows_the_length(name: str, traced_at: int, run_at: int, backend: str) -> None:
    make, given = FOLLOWING[name]
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(model, given(traced_at), check_trace=False)
    for n in (run_at, traced_at, run_at + 1):
        arguments = given(n)
        want, got = model(*arguments), traced(*arguments)
        assert got.shape == want.shape and got.dtype == want.dtype
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    "name", ["layer", "add with positions", "dropout with a seed", "dropout, sequence first", "embed with dropout"]
)
def test_traced_with_zero_rows(name: str, backend: str) -> None:
    make, given = FOLLOWING[name]
    model = make()
    traced = torch.jit.trace(model, given(0), check_trace=False)
    for n in (0, 5):
        assert torch.equal(traced(*given(n)), model(*given(n)))


def test_saved_and_loaded(backend: str) -> None:
    stream, (given,) = io.BytesIO(), batch_first(9)
    model = nn.Sequential(nn.Linear(D, D), layer()).eval()
    torch.jit.save(torch.jit.trace(model, batch_first(3)), stream)
    stream.seek(0)
    assert torch.equal(torch.jit.load(stream)(given), model(given))


def test_loaded_in_another_process(tmp_path: Path) -> None:
    """Importing as docs/graphs.md says registers the operators, before or after torch is imported."""
    torch.manual_seed(0)
    for name in ("layer", "embedding layer", "picture", "dropout with a seed"):
        make, given = FOLLOWING[name]
        model = make()
        torch.jit.save(torch.jit.trace(model, given(3), check_trace=False), str(tmp_path / f"{name}.pt"))
        torch.save((given(9), model(*given(9))), tmp_path / f"{name} at 9.pt")
    program = (
        "import pathlib, sys, sinpe_ext.functional, torch\n"
        "for path in pathlib.Path(sys.argv[1]).glob('* at 9.pt'):\n"
        "    arguments, want = torch.load(path)\n"
        "    traced = torch.jit.load(str(path).replace(' at 9', ''))\n"
        "    assert torch.equal(traced(*arguments), want), path\n"
        "    print(path.name)\n"
    )
    done = execute([sys.executable, "-W", "ignore", "-c", program, tmp_path])
    assert len(done.stdout.splitlines()) == 4, done.stdout + done.stderr


@pytest.mark.parametrize("sequence", [1, 0])
def test_traced_training_draws_new_masks_and_differentiates(sequence: int, backend: str) -> None:
    model = sinpe.SinusoidalPositionalEncoding(D, 0.5, learned_alpha=True, batch_first=bool(sequence)).train()
    traced = torch.jit.trace(model, (x(3, 3, D),), check_trace=False)
    ones = torch.ones(4, 6, D).requires_grad_()
    first, second = traced(ones), traced(ones)
    kept = first != 0
    assert 0.3 < kept.float().mean() < 0.7 and bool((kept != (second != 0)).any())
    table = sinpe.table(6, D) if sequence else sinpe.table(4, D).unsqueeze(1)
    want = torch.where(kept, (1 + table).expand_as(ones) * 2, 0.0)
    assert torch.allclose(first, want, rtol=1e-6, atol=1e-6)
    first.sum().backward()
    assert torch.equal(ones.grad, kept * 2.0)
    assert torch.allclose(model.alpha.grad, (table.expand_as(kept) * kept * 2).sum(), rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "given", "longer"),
    [
        (layer(max_len=8), batch_first(3), batch_first(9)),
        (layer(max_len=8, batch_first=False), sequence_first(3), sequence_first(9)),
        (layer(max_len=8, extra_tokens=1), batch_first(4), batch_first(10)),
        (sinpe.SinusoidalEmbedding(20, D, max_len=8).eval(), tokens(3), tokens(9)),
        (layer(encoding="mae2d", grid_shape=(1, 1)), batch_first(1), batch_first(6)),
        (layer(encoding="mae2d", grid_shape=(1, 1), extra_tokens=1), batch_first(2), batch_first(6)),
    ],
    ids=["layer", "sequence first", "behind a token", "embedding", "grid_shape", "grid_shape behind a token"],
)
def test_traced_call_checks_sizes_at_run_time(model: Any, given: Any, longer: Any, backend: str) -> None:
    traced = torch.jit.trace(model, given, check_trace=False)
    assert torch.equal(traced(*given), model(*given))
    with pytest.raises(RuntimeError, match=r"max_len allows|is invalid for input"):
        traced(*longer)


def test_arguments_that_cannot_be_traced_are_rejected(backend: str) -> None:
    generator = torch.Generator()
    with pytest.raises(TypeError, match=r"seed: expected None, an int or an int64 tensor under torch.jit.trace"):
        torch.jit.trace(lambda t: sinpe.add(t, T2T, dropout=0.5, seed=generator), batch_first(3))
    kept: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("extra_tokens", lambda t: sinpe.add(t, extra_tokens=t.shape[1] - 2)),
        ("extra_tokens", lambda t: sinpe.table(t.shape[1], T2T, extra_tokens=t.shape[0])),
        ("padding_idx", lambda t: sinpe.embed(ids(2, 3), WEIGHT, padding_idx=t.shape[1])),
        ("lengths", lambda t: sinpe.table((3, 4), GRID.interpolated((t.shape[1], 4), base_size=4))),
        ("scale", lambda t: sinpe.add(t, scale=t.shape[-1] ** 0.5)),
    ]
    for name, call in kept:
        with pytest.raises(TypeError, match=f"^{name}: expected .* torch.jit.trace would keep as it is now; pass"):
            torch.jit.trace(call, batch_first(3))
    with pytest.raises(TypeError, match=r"out: expected None under torch.jit.trace"):
        torch.jit.trace(lambda t: sinpe.table(t.shape[1], T2T, out=torch.empty(3, D)), batch_first(3))

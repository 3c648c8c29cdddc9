"""A tensor that a finalizer changes during a call: the result is that of the tensor before or after, or an error."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe

D, X, WEIGHT = 64, torch.randn(2, 8, 64), torch.randn(50, 64)
ENCODING, IDS = sinpe.Encoding(D), torch.randint(50, (2, 8))


class ChangesTensor:
    """A cycle of references whose finalizer, which any garbage collection may run, replaces a tensor's memory."""

    def __init__(self, tensor: Tensor, by: Tensor) -> None:
        self.tensor, self.by, self.cycle = tensor, by, self

    def __del__(self) -> None:
        self.tensor.set_(self.by)


def normal(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


def whole(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(50, shape)


# A call with the tensor, the tensor, and what replaces it.
CASES: dict[str, tuple[Callable[[Tensor], Any], Callable[[], Tensor], Callable[[], Tensor]]] = {
    "add": (lambda t: sinpe.add(t, ENCODING), normal(2, 8, D), normal(1, 2, D)),
    "alpha": (lambda t: sinpe.add(X, ENCODING, alpha=t), normal(1), normal(0)),
    "positions": (lambda t: sinpe.add(X, ENCODING, positions=t), whole(2, 8), whole(3)),
    "padding_mask": (lambda t: sinpe.add(X, ENCODING, padding_mask=t), lambda: IDS < 25, lambda: IDS[:1, 0] < 25),
    "start": (lambda t: sinpe.add(X, ENCODING, start=t), whole(2), whole(0)),
    "dropout": (lambda t: sinpe.add(t, ENCODING, dropout=0.1, seed=1), normal(2, 8, D), normal(1, 2, D)),
    "encode": (lambda t: sinpe.encode(t, ENCODING), normal(100), normal(3)),
    "ids": (lambda t: sinpe.embed(t, WEIGHT, ENCODING), whole(2, 8), whole(1)),
    "weight": (lambda t: sinpe.embed(IDS % 2, t, ENCODING), normal(50, D), normal(2, D)),
    "grid": (lambda t: sinpe.add(t, "mae2d"), normal(2, 4, 4, D), normal(1, 1, 1, D)),
    "out": (lambda t: sinpe.add(X, ENCODING, out=t), normal(2, 8, D), normal(1, 1, D)),
    "out of table": (lambda t: sinpe.table(10, ENCODING, out=t), normal(10, D), normal(1, D)),
}


@pytest.mark.parametrize("name", CASES)
def test_finalizer(name: str) -> None:
    call, make, other = CASES[name]
    call(make())
    thresholds, collects = gc.get_threshold(), gc.isenabled()
    gc.freeze()  # collections look at the objects made from here on only
    try:
        for allocations in range(1, 100):
            tensor, by = make(), other()
            before = tensor.clone()
            gc.collect()
            gc.disable()
            gc.set_threshold(allocations)  # the collection comes at each place of the call in turn
            ChangesTensor(tensor, by)
            gc.enable()
            try:
                got = call(tensor)
            except (ValueError, RuntimeError, IndexError):
                got = None
            gc.disable()
            if got is not None and "out" not in name:
                assert any(torch.equal(got, want) for want in results(call, before, by)), allocations
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        if collects:
            gc.enable()


def results(call: Callable[[Tensor], Any], *tensors: Tensor) -> list[Tensor]:
    made = []
    for tensor in tensors:
        try:
            made.append(call(tensor))
        except (ValueError, RuntimeError, IndexError):
            continue
    return made


def test_another_thread() -> None:
    """Replaces x between any two steps of a call: a result has one of the two shapes and its values.

    By `data`, which is set under the interpreter's lock: `set_` changes memory and sizes without it, one by one.
    """
    small, large = torch.zeros(1, 2, D), torch.zeros(8, 200, D)
    x, stops = torch.zeros(1, 2, D), threading.Event()

    def flip() -> None:
        while not stops.is_set():
            x.data = large
            x.data = small

    wants = [sinpe.add(t, ENCODING) for t in (small, large)]
    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(1000):
            try:
                got = sinpe.add(x, ENCODING)
            except (ValueError, RuntimeError):
                continue
            assert any(torch.equal(got, want) for want in wants)
    finally:
        stops.set()
        thread.join()

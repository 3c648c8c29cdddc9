"""Several processes for test_dtensor.py: what a case is, how a rank runs one, and how results compare.

Every rank knows the whole and compares the gathered result with what one process computes. Gradients are whole numbers,
so that sums over ranks are exact in any order, where the encoding is not part of them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

import sinpe_ext as sinpe

Case: TypeAlias = Callable[[DeviceMesh], None]

CASES: dict[str, Case] = {}
WAIT = timedelta(hours=2)  # for another rank: the test has a deadline, and ends them all
SUM = 1e-5  # relative: a float32 sum of a few hundred products in another order


class Missing(Exception):
    """What a case needs of torch, and this one has not."""


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def serve(rank: int, world: int, backend: str, store: str, modules: Sequence[str]) -> None:
    """One of `world` ranks: runs the case that standard input, a Connection, names, and answers what went wrong."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where a rank hangs
    channel = Connection(os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for module in modules:
        import_module(module)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=WAIT)
    with sinpe.use_backend(backend):
        mesh = init_device_mesh("cpu", (world,))
        while True:
            try:
                name = channel.recv()
            except EOFError:
                return
            torch.manual_seed(0)
            wrong = ""
            try:
                CASES[name](mesh)
            except Missing as reason:
                wrong = f"{Missing.__name__}: {reason}"
            except Exception:
                wrong = traceback.format_exc()
            channel.send(wrong)


def spread(t: Tensor, mesh: DeviceMesh, placements: Placement | Sequence[Placement]) -> DTensor:
    """A leaf with the numbers of t, cut up."""
    placements = [placements] if isinstance(placements, Placement) else list(placements)
    return distribute_tensor(t.detach(), mesh, placements).detach().requires_grad_(t.is_floating_point())


def same(actual: Tensor, expected: Tensor, what: Any = "") -> None:
    assert isinstance(actual, DTensor), what
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, what
    whole = actual.full_tensor()
    assert torch.equal(whole.view(torch.uint8), expected.contiguous().view(torch.uint8)), what


def refused(kind: type[Exception], words: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """That a call raises, and says so."""
    try:
        function(*arguments, **named)
    except kind as error:
        assert words in str(error), (words, str(error))
    else:
        raise AssertionError(f"{words}: not refused")


def compared(
    function: Callable[..., Tensor],
    data: Tensor,
    placement: Placement | Sequence[Placement],
    mesh: DeviceMesh,
    what: Any,
    result: Placement | Sequence[Placement] | None = None,
    **arguments: Any,
) -> None:
    """function(data, **arguments) of one process and of all ranks: result, gradient of data, that of alpha."""
    one, many = data.detach().clone(), spread(data, mesh, placement)
    one.requires_grad_(data.is_floating_point())
    sides = []
    for x in (one, many):
        given = dict(arguments)
        if isinstance(given.get("alpha"), Tensor):
            given["alpha"] = given["alpha"].clone().requires_grad_()
        y = function(x, **given)
        sides.append((x, given, y))
    (x1, given1, y1), (xn, givenn, yn) = sides
    places = placement if result is None else result
    assert list(yn.placements) == ([places] if isinstance(places, Placement) else list(places)), (what, yn.placements)
    same(yn, y1, what)
    grad = torch.randint(-4, 5, y1.shape).to(y1.dtype)
    if y1.requires_grad:
        y1.backward(grad)
        yn.backward(distribute_tensor(grad, mesh, yn.placements))
    if x1.requires_grad:
        same(xn.grad, x1.grad, what)
    if "alpha" in given1 and isinstance(given1["alpha"], Tensor):
        expected, actual = given1["alpha"].grad, givenn["alpha"].grad
        # Of -0.6 to 0.6 a term: what cancels leaves an error of the largest partial sum.
        torch.testing.assert_close(actual, expected, rtol=SUM, atol=SUM * y1.numel() ** 0.5)

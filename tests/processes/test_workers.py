"""DataLoader workers by fork and spawn; threads whose calls race the first call or an import."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from children import DEADLINE, SANITIZED, forked, library_environment, run
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import sinpe_ext as sinpe
from sinpe_ext.backend import loader

S, D, ITEMS = 300, 64, 12


class Encoded(Dataset):  # type: ignore[type-arg]
    """One result of each operation on both backends, computed in a worker."""

    def __init__(self) -> None:
        self.layer = sinpe.SinusoidalPositionalEncoding(D, 0.1, scale=2.0).eval()

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Tensor:
        results = []
        for setting in ("compiled", "eager"):
            with loader.use_backend(setting):
                x = torch.full((S, D), float(index))
                rows = sinpe.table(S, D, start=index) + sinpe.encode(torch.arange(S) * index, D)
                results.append(self.layer(x) + rows + sinpe.add(x, "t2t", start=index, dropout=0.2, seed=index))
        return torch.stack(results)


def collate(items: list[Tensor]) -> Tensor:
    return sinpe.add(torch.cat(items), start=7)


@pytest.mark.bad_input(21, "compiled", "eager")
@pytest.mark.usefixtures("need_kernels")
@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.processes)])
def test_workers(method: str) -> None:
    """After a parallel region in the parent: a forked child inherits its locks, but not its threads."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"{method}: not available on this system")
    if method == "fork" and SANITIZED:
        pytest.skip("in the child, the allocator of g++ 12's ASan can wait for a lock that a thread of the parent held")
    data = Encoded()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sinpe.add(torch.zeros(64, 512, 256), dropout=0.1)  # large enough to use all threads
        expected = torch.cat([collate([data[i] for i in range(k, k + 3)]) for k in range(0, ITEMS, 3)])
        made = DataLoader(
            data, 3, num_workers=2 if method == "fork" else 1, collate_fn=collate, multiprocessing_context=method,
            timeout=DEADLINE,
        )  # fmt: skip
        for _ in range(2 if method == "fork" else 1):
            assert torch.equal(torch.cat(list(made)), expected)
    finally:
        torch.set_num_threads(threads)


RACE = """
import sys, threading, torch, sinpe_ext as sinpe
def together(function, arguments):
    start, results, failed = threading.Barrier(len(arguments)), {}, []
    def call(argument):
        start.wait()
        try:
            results[argument] = function(argument)
        except BaseException as error:
            failed.append((argument, repr(error)))
    threads = [threading.Thread(target=call, args=(argument,)) for argument in arguments]
    [t.start() for t in threads]
    [t.join(500) for t in threads]
    assert not failed and not any(t.is_alive() for t in threads), failed
    return results
interval = sys.getswitchinterval()
sys.setswitchinterval(1e-6)
together(lambda name: getattr(sinpe, name), [*sinpe.__all__, *sinpe._SUBMODULES])  # the first look-up of each name
sys.setswitchinterval(interval)
layers = [sinpe.SinusoidalPositionalEncoding(16).eval() for _ in range(8)]
x, weight = torch.ones(2, 5, 16, requires_grad=True), torch.ones(4, 16, requires_grad=True)
ids = torch.arange(10).reshape(2, 5) % 4
def calls(k):
    t2t = sinpe.convention("t2t", 16)
    calls = [
        lambda: sinpe.table(9, t2t), lambda: sinpe.add(x, dropout=0.5, seed=3), lambda: layers[k](x.detach()),
        lambda: sinpe.encode(torch.rand(4, generator=torch.Generator().manual_seed(1)), t2t),
        lambda: torch.autograd.grad(sinpe.embed(ids, weight, dropout=0.5, seed=1).sum(), weight)[0],
    ]
    results = [calls[(k + i) % 5]() for i in range(5)]
    return results[-k % 5:] + results[:-k % 5]
first, *others = together(calls, range(8)).values()
for other in others:
    assert all(torch.equal(a, b) for a, b in zip(other, first, strict=True))
assert torch.equal(first[0], sinpe.table(9, sinpe.convention("t2t", 16)))
from sinpe_ext.backend import loader
print("compiled" if loader.compiled("cpu") else "eager")
"""


@pytest.mark.bad_input(22, "compiled", "eager")
def test_eight_threads_race_on_the_first_call(backend: str) -> None:
    """In a process that has imported torch alone, with an existing library; each name's first look-up races too."""
    out, _ = forked(RACE, library_environment(backend))
    assert out.split() == [backend]


# Calls that check for DTensor.
DURING = """
import sys, threading, types, torch, sinpe_ext as sinpe
grid = sinpe.convention("detr2d", 16)
layer = sinpe.SinusoidalPositionalEncoding(16, 0.1, learned_alpha=True).train()
x, picture, ids = torch.ones(2, 5, 16), torch.ones(1, 3, 3, 16), torch.arange(10).reshape(2, 5) % 4
alpha, weight = torch.tensor(0.5, requires_grad=True), torch.ones(4, 16, requires_grad=True)
calls = [
    lambda: sinpe.add(x, alpha=alpha), lambda: sinpe.add(x, positions=ids), lambda: sinpe.encode(ids, 16),
    lambda: sinpe.embed(ids, weight), lambda: sinpe.add(picture, grid), lambda: sinpe.add_(x.clone()),
    lambda: layer(x), lambda: sinpe.table(5, 16),
    lambda: sinpe.TimestepEncoding(16)(ids[0]), lambda: sinpe.add(x, padding_mask=ids > 2, dropout=0.5),
]
DRAWS = 6, 9  # each call has another dropout mask
"""

UNFINISHED = """
want = [call() for call in calls]
for name in ("torch.distributed.tensor", "torch.distributed.fsdp"):
    sys.modules[name] = types.ModuleType(name)  # as it is while another thread imports it: there, and empty
    for backend in ("compiled", "eager"):
        with sinpe.use_backend(backend):
            for k, call in enumerate(calls):
                assert k in DRAWS or torch.equal(call(), want[k]), (name, backend, k)
    del sys.modules[name]
"""

# One thread imports, two call.
IMPORTS = """
sys.setswitchinterval(1e-5)
[call() for call in calls]
failed, stop, made = [], threading.Event(), [0, 0]
def go(k):
    while not stop.is_set():
        for call in calls:
            try:
                call()
                made[k] += 1
            except BaseException as error:
                failed.append(repr(error))
threads = [threading.Thread(target=go, args=(k,)) for k in range(2)]
[t.start() for t in threads]
import torch.distributed.tensor
import torch._dynamo, torch._inductor
stop.set()
[t.join(500) for t in threads]
assert not failed, (len(failed), failed[:2])
assert min(made) > 10, made
assert torch.equal(sinpe.encode(ids, 16), torch.compile(sinpe.encode, backend="eager")(ids, 16))
"""


@pytest.mark.bad_input(22, "compiled", "eager")
@pytest.mark.usefixtures("need_kernels")
def test_calls_during_a_partial_import() -> None:
    forked(DURING + UNFINISHED, library_environment())


def test_use_backend_during_a_partial_torch_import() -> None:
    code = "import sys, types; sys.modules['torch'] = types.ModuleType('torch'); import sinpe_ext as sinpe\n"
    run(code + "with sinpe.use_backend('eager'): sinpe.use_backend('auto')", library_environment())


@pytest.mark.processes
@pytest.mark.bad_input(22, "compiled", "eager")
def test_calls_while_another_thread_imports(backend: str) -> None:
    """The first torch.compile of a process imports torch.distributed.tensor, which takes a second."""
    run(DURING + IMPORTS, library_environment(backend))

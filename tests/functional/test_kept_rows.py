"""Rows that small calls use again (csrc/cpu/kept_rows.h, reference/kept_rows.py): no result depends on earlier calls.
tests/cpp/test_kept_rows.cpp tests those of the kernels further, in many threads and forked children."""

from __future__ import annotations

import ctypes
import random
import threading
from typing import Any

import pytest
import torch
from children import forked, library_environment
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext import reference
from sinpe_ext.backend import loader
from sinpe_ext.encodings.plan import plan
from sinpe_ext.reference import kept_rows

ENCODINGS = [
    sinpe.Encoding(dim, base=base, layout=layout, amplitude=amplitude, odd="pad")
    for dim in (1, 7, 64, 512, 1030)
    for base, amplitude in ((10000.0, 1.0), (100.0, 0.3))
    for layout in ("interleaved", "sin_cos")
]
DTYPES = torch.float32, torch.bfloat16, torch.float16


def some_call(draw: random.Random) -> Any:
    """A function that makes a random call, the same each time, and its name."""
    e, batch, length = draw.choice(ENCODINGS), draw.choice((1, 2, 5)), draw.choice((1, 2, 7, 33, 60))
    start, seed, dtype = draw.choice((0, 0, 1, -5, 100, 10**12)), draw.randrange(2**31), draw.choice(DTYPES)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))

    x = torch.randn(batch, length, e.dim, generator=torch.Generator().manual_seed(seed)).to(dtype)
    calls = {
        "start": lambda: sinpe.add(x, e, start=start),
        "starts": lambda: sinpe.add(x, e, start=integers(0, 90, batch)),
        "positions": lambda: sinpe.add(x, e, positions=integers(-20, 90, batch, length)),
        "whole floats": lambda: sinpe.add(x, e, positions=integers(-20, 90, length).float()),
        "fractions": lambda: sinpe.add(x, e, positions=integers(-20, 90, length).float() + 0.25),
        "a run": lambda: sinpe.add(x, e, positions=torch.arange(length) + start),
        "mask": lambda: sinpe.add(x, e, start=start, padding_mask=integers(0, 2, batch, length).bool()),
        "dropout": lambda: sinpe.add(x, e, start=start, alpha=0.37, dropout=0.2, seed=seed),
        "channels first": lambda: sinpe.add(x.mT.contiguous().mT, e, start=start, alpha=0.4),
        "sequence first": lambda: sinpe.add(x.transpose(0, 1), e, start=start, seq_dim=0),
        "embed": lambda: sinpe.embed(integers(0, length, batch, length), x[0], e, start=start, scale=2.0),
        "table": lambda: sinpe.table(length, e, start=start, dtype=dtype),
        "encode": lambda: sinpe.encode(integers(0, 90, length), e, dtype=dtype),
        "alpha": lambda: sinpe.add(x.float(), e, alpha=torch.full((), 0.5, requires_grad=True)).detach(),
    }
    return draw.choice(list(calls.items()))


def test_sequences_of_calls() -> None:
    """The kernels and the reference implementation, each with what it keeps, give the same bits."""
    draw = random.Random(5)
    for _ in range(1500):
        name, call = some_call(draw)
        with sinpe.use_backend("eager"):
            want = call()
        assert torch.equal(call(), want), name
    total = sum(kept.rows.nbytes for kept in kept_rows._ranges)
    assert 0 < total <= kept_rows.KEPT_BYTES


USES = """
import ctypes, hashlib, sys
import torch, sinpe_ext as sinpe
from sinpe_ext.backend import loader
digest = hashlib.sha256()
for backend in ("auto", "eager"):
    with sinpe.use_backend(backend):
        for _ in range(4):
            x = torch.ones(2, 40, 512)
            for made in (sinpe.table(40, 512, start=9), sinpe.add(x, start=9), sinpe.table(40, 100)):
                digest.update(made.numpy().tobytes())
library = loader.resolve("cpu").library
has_kernels = library and torch.ops.sinpe_ext.cpu_isa() != "emulated"
from sinpe_ext.reference import kept_rows
print(digest.hexdigest(), len(kept_rows._ranges) > 0)
if has_kernels:
    print(ctypes.CDLL(library).sinpe_kept_rows_uses() != 0)
"""


@pytest.mark.parametrize("limit", ["0", "1000", "65536", "1048576", "", "many"])
def test_limit(limit: str) -> None:
    """SINPE_EXT_KEPT_BYTES: 0 keeps nothing; the results are the same."""
    digest, *used = forked(USES, library_environment(SINPE_EXT_KEPT_BYTES=limit))[0].split()
    assert digest == forked(USES, library_environment(SINPE_EXT_KEPT_BYTES="0"))[0].split()[0]
    assert set(used) == {str(limit not in ("0", "1000"))}


def uses_of_kernels() -> int:
    library = loader.resolve("cpu").library
    if library is None or torch.ops.sinpe_ext.cpu_isa() == "emulated":
        pytest.skip("no CPU kernels")
    function = ctypes.CDLL(library).sinpe_kept_rows_uses
    function.restype = ctypes.c_int64
    return function()


def test_kernels_use_kept_rows() -> None:
    """From the third call on, whatever the operation."""
    e = sinpe.Encoding(512, base=777.0)
    x, weight, ids = torch.ones(2, 32, 512), torch.ones(9, 512), torch.zeros(2, 32, dtype=torch.int64)
    for call in (
        lambda: sinpe.table(32, e),
        lambda: sinpe.table(32, e, dtype=torch.bfloat16),
        lambda: sinpe.add(x, e),
        lambda: sinpe.add(x, e, alpha=0.5, dropout=0.1),
        lambda: sinpe.add(x, e, start=torch.tensor([0, 3])),
        lambda: sinpe.add(x.mT, e, seq_dim=-1, channel_dim=-2),
        lambda: sinpe.embed(ids, weight, e),
    ):
        for _ in range(70):
            call()
        before = uses_of_kernels()
        call()
        assert uses_of_kernels() == before + 1


@pytest.fixture
def nothing_kept() -> None:
    kept_rows._ranges.clear()
    kept_rows._asked.clear()


@pytest.mark.usefixtures("nothing_kept")
class TestReference:
    """Rows kept by the reference implementation."""

    E = plan(sinpe.Encoding(512, base=555.0))
    CPU = torch.device("cpu")

    def find(self, first: int, last: int) -> Tensor | None:
        return kept_rows.find(self.E, first, last, self.CPU)

    def rows(self, first: int, last: int) -> Tensor:
        return reference.table(self.E, last - first, first, torch.float32)

    def test_made_at_the_second_use(self) -> None:
        assert self.find(3, 40) is None
        kept = self.find(3, 40)
        assert kept is not None and torch.equal(kept, self.rows(3, 40))
        other = self.find(0, 128)  # of the same block
        assert other is not None and torch.equal(other, self.rows(0, 128))
        assert len(kept_rows._ranges) == 1

    def test_ends_of_int64(self) -> None:
        for first in (-(2**63), 2**63 - 40):
            for _ in range(3):
                assert self.find(first, first + 39) is None

    def test_too_many(self) -> None:
        for _ in range(3):
            assert self.find(0, 513) is None

    def find_twice(self, plans: list[Any]) -> None:
        for _ in range(2):
            for p in plans:
                kept_rows.find(p, 0, 9, self.CPU)

    def test_what_was_not_used_for_long_makes_room(self) -> None:
        plans = [plan(sinpe.Encoding(512, base=100.0 + k)) for k in range(6)]
        self.find_twice(plans)
        assert [kept.plan for kept in kept_rows._ranges] == plans[:4]  # those that fit, though all take turns
        for _ in range(kept_rows.MOST_RECENT):
            self.find_twice(plans[1:4])
        self.find_twice(plans[4:])
        assert [kept.plan for kept in kept_rows._ranges] == plans[1:5]

    def test_results_are_new(self) -> None:
        with sinpe.use_backend("eager"):
            for _ in range(3):
                made = sinpe.table(32, 512)
                assert made[0, 1] == 1.0
                made.zero_()
                assert sinpe.encode(torch.arange(4), 512).zero_()[0, 1] == 0.0
                one = sinpe.encode(torch.tensor(3), 512)
                assert one[0] != 0.0 and one.untyped_storage().nbytes() == one.nbytes
                one.zero_()

    def test_made_in_inference_mode(self) -> None:
        x = torch.ones(4, 512, requires_grad=True)
        with sinpe.use_backend("eager"):
            with torch.inference_mode():
                for _ in range(3):
                    sinpe.add(x.detach())
            sinpe.add(x).sum().backward()
        assert x.grad is not None and bool((x.grad == 1).all())

    def test_a_held_lock(self) -> None:
        """As after a fork while another thread held it: computed anew, without waiting."""
        assert self.find(0, 9) is None and self.find(0, 9) is not None
        with kept_rows._lock:
            assert self.find(0, 9) is None

    def test_threads(self) -> None:
        wrong = []

        def run(number: int) -> None:
            draw = random.Random(number)
            for _ in range(60):
                dim, start, length = draw.choice((64, 200, 512)), draw.randrange(300), draw.randrange(1, 50)
                p = plan(sinpe.Encoding(dim, base=50.0 + draw.randrange(8)))
                got = kept_rows.table(p, length, start, torch.float32, self.CPU)
                if not torch.equal(got, reference.table(p, length, start, torch.float32)):
                    wrong.append((dim, start, length))

        threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

"""Compares results of the machine code bitwise with those of the same kernels compiled as C++, call by call.

Then each barrier of each kernel is removed in turn, which must be detected as a race.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import sinpe_ext as sinpe

from .block import BadAccess, Stuck
from .launches import Launch, intercepted
from .measure import Machine

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MULTIPROCESSORS = 1  # large tiles, few blocks


@dataclass
class Outcome:
    calls: int = 0
    blocks: int = 0
    kernels: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)  # kernels that no call reaches
    barriers: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.calls} calls, {self.blocks} blocks of {len(self.kernels)} kernels run from their machine code: "
            f"{len(self.failures)} differ from C++ or race; {self.barriers} barriers taken out one by one; "
            f"not run: {', '.join(self.left_out) or 'none'}"
        )


def _x(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape or (3, 9, 64), generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def _ids() -> Tensor:
    return torch.randint(11, (3, 9), generator=torch.Generator().manual_seed(2))


def _embed(dtype: torch.dtype, dropout: float, **given: Any) -> list[Tensor]:
    weight = _x(dtype, 11, 64).requires_grad_()
    y = sinpe.embed(_ids(), weight, dropout=dropout, seed=3, **given)
    y.backward(_x(dtype))
    assert weight.grad is not None
    return [y.detach(), weight.grad]


def _often(dtype: torch.dtype, dropout: float) -> list[Tensor]:
    """The gradient of rows with many tokens, whose sums have two levels, and of rows without tokens."""
    ids = torch.tensor([0, 1, 2]).repeat_interleave(torch.tensor([4161, 70, 64]))
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(2))][None]
    weight = _x(dtype, 3, 8).requires_grad_()
    y = sinpe.embed(ids, weight, dropout=dropout, seed=3)
    return list(torch.autograd.grad(y, weight, _x(dtype, *ids.shape, 8)))


def _dropout(dtype: torch.dtype, dropout: float) -> list[Tensor]:
    x = _x(dtype).requires_grad_()
    return list(torch.autograd.grad(sinpe.add(x, scale=2.0, dropout=dropout, seed=1), x, _odd(dtype)))


def _alpha(dtype: torch.dtype, dropout: float, *shape: int) -> list[Tensor]:
    alpha = torch.full((1,), 0.5, dtype=dtype, requires_grad=True)
    y = sinpe.add(_x(dtype, *shape), alpha=alpha, dropout=dropout, seed=3)
    y.backward(torch.ones_like(y))
    assert alpha.grad is not None
    return [y.detach(), alpha.grad]


GRID = sinpe.GridEncoding((sinpe.Encoding(16), sinpe.Encoding(16)))
OWN = sinpe.Encoding(33, cos_frequency="own", layout="cos_sin", odd="pad", amplitude=0.3)
LAYOUTS = (
    sinpe.Encoding(64),
    sinpe.Encoding(64, layout="sin_cos", amplitude=-0.3),
    sinpe.Encoding(64, layout="cos_sin", position_scale=1e-7),
)
HUGE = torch.arange(27).view(3, 9) * 10**15 - 3
ODD = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-30, 1e300, 2.5, -7.0], dtype=torch.float64)


def _odd(dtype: torch.dtype) -> Tensor:
    """Data that includes NaN, infinities, zeros of both signs and a subnormal number."""
    x = _x(dtype)
    x[0, 0, :6] = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, torch.finfo(dtype).tiny / 4]).to(dtype)
    return x


def _own_rows(encoding: sinpe.Encoding, dtype: torch.dtype) -> list[Tensor]:
    """Calls whose rows are used once: all code paths of the kernels in registers, with exact recomputation."""
    x, far = _x(dtype), _x(dtype)
    sinpe.add(far, encoding, positions=HUGE, scale=2.0, out=far)
    return [
        far,
        sinpe.table(37, encoding, dtype=dtype, start=2**52 - 20),
        sinpe.encode(ODD, encoding, dtype=dtype),
        sinpe.add(x, encoding, positions=HUGE % 1000),
        sinpe.add(x, encoding, positions=(HUGE % 1000).float() / 8, alpha=0.5),
        sinpe.add(x[:1], encoding, start=-4),
        sinpe.add(x[0, :, 1:], sinpe.Encoding(63)),
    ]


def _strange_ids() -> Tensor:
    return torch.tensor([[3, -1, 4, 11, 2**62, 0, 10, 10, -(2**63)]])


CALLS: dict[str, Callable[[torch.dtype], list[Tensor]]] = {
    "table": lambda t: [sinpe.table(19, 96, dtype=t)],
    "table, wide": lambda t: [sinpe.table(2, 2500, dtype=t)],
    "table, own frequencies": lambda t: [sinpe.table(70, OWN, dtype=t, start=-30)],
    "rows of their own": lambda t: [rows for encoding in LAYOUTS for rows in _own_rows(encoding, t)],
    "encode": lambda t: [sinpe.encode(torch.tensor([0, 1, 5, 10**12, -7]), 64, dtype=t)],
    "encode, fractions": lambda t: [sinpe.encode(torch.linspace(-3, 1e5, 9, dtype=torch.float64), 30, dtype=t)],
    "add, no numbers": lambda t: [sinpe.add(_odd(t), positions=ODD), sinpe.add(_odd(t), dropout=0.5, seed=2)],
    "embed, no rows": lambda t: [sinpe.embed(_strange_ids(), _x(t, 11, 64))],
    "scale": lambda t: _dropout(t, 0.0),
    "all dropped": lambda t: _dropout(t, 1.0),
    "add": lambda t: [sinpe.add(_x(t), scale=0.5)],
    "add, more rows": lambda t: [sinpe.add(_x(t, 2, 64, 24))],
    "add, positions": lambda t: [sinpe.add(_x(t), positions=HUGE, padding_mask=HUGE % 4 == 0)],
    "add, not aligned": lambda t: [sinpe.add(_x(t)[:, :, 1:30], dropout=0.3, seed=5, start=torch.tensor([1, 2, 3]))],
    "add, channels first": lambda t: [
        sinpe.add(_x(t).mT.contiguous().mT, dropout=0.1, seed=1),
        sinpe.add(_x(t, 2, 34, 72), seq_dim=2, channel_dim=1, scale=2.0),
        sinpe.add(_x(t, 2, 21, 72), seq_dim=2, channel_dim=1, padding_mask=torch.arange(144).view(2, 72) % 3 == 0),
        sinpe.add(_x(t, 2, 34, 67), seq_dim=2, channel_dim=1, dropout=0.1, seed=1),
    ],
    "add, dropout": lambda t: [
        sinpe.add(_x(t), dropout=0.1, seed=5),
        sinpe.add(_x(t), dropout=0.1, seed=5, scale=2.0),
        sinpe.add(_x(t), dropout=0.1, seed=5, padding_mask=HUGE % 4 == 0),
    ],
    "dropout": lambda t: _dropout(t, 0.1),
    "embed": lambda t: _embed(t, 0.0),
    "embed, scale": lambda t: _embed(t, 0.0, scale=8.0),
    "embed, padding": lambda t: _embed(t, 0.2, scale=8.0, padding_mask=HUGE % 4 == 0),
    "embed, not aligned": lambda t: [sinpe.embed(_ids(), _x(t, 11, 29), scale=8.0)],
    "embed, dropout": lambda t: _embed(t, 0.2),
    "embed, a token often": lambda t: _often(t, 0.0),
    "embed, a token often, dropout": lambda t: _often(t, 0.2),
    "alpha": lambda t: _alpha(t, 0.0),
    "alpha, dropout": lambda t: _alpha(t, 0.2),
    "alpha, wide": lambda t: _alpha(t, 0.2, 1, 1, 2056),
    "grid": lambda t: [sinpe.add(_x(t, 2, 5, 6, 32), GRID)],
    "grid, channels first": lambda t: [sinpe.add(_x(t, 2, 32, 5, 6), GRID, channel_dim=1, dropout=0.1, seed=1)],
}  # fmt: skip


def same_bits(machine: Machine, library: str, in_double: bool, outcome: Outcome) -> None:
    """Runs every call in every dtype with the machine code and with C++, and records differences."""

    def take(launch: Launch) -> bool:
        _, races = machine.run(launch, range(launch.blocks))
        outcome.blocks += launch.blocks
        outcome.kernels.add(launch.name)
        outcome.failures += [f"race: {race}" for race in races]
        return True

    for name, call in CALLS.items():
        for dtype in TYPES:
            with intercepted(library, lambda launch: False, MULTIPROCESSORS, in_double):
                want = call(dtype)
            with intercepted(library, take, MULTIPROCESSORS, in_double):
                got = call(dtype)
            outcome.calls += 1
            for w, g in zip(want, got, strict=True):
                if not _equal(w, g):
                    places = (~_same(w, g)).nonzero()
                    outcome.failures.append(
                        f"{name}, {dtype}: {len(places)} of {w.numel()} elements differ, at {places[0].tolist()} "
                        f"{g[tuple(places[0])].item()} is not {w[tuple(places[0])].item()}"
                    )


def _same(w: Tensor, g: Tensor) -> Tensor:
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[w.element_size()]
    return (w.contiguous().view(bits) == g.contiguous().view(bits)) | (w.isnan() & g.isnan())


def _equal(w: Tensor, g: Tensor) -> bool:
    return bool(_same(w, g).all())


def barriers_matter(machine: Machine, library: str, in_double: bool, outcome: Outcome) -> None:
    """Records barriers whose removal causes neither a race nor a failure of the kernel."""
    missed: dict[tuple[str, int], bool] = {}

    def take(launch: Launch) -> bool:
        for barrier in range(machine.barriers(launch.name)):
            if missed.get((launch.name, barrier), True):
                try:
                    _, races = machine.run(launch, [0], barrier)
                except (BadAccess, Stuck):
                    races = {"it does not run at all"}
                missed[launch.name, barrier] = not races
        return False  # also run as C++: a later launch may read indices that this one writes

    for call in CALLS.values():
        for dtype in TYPES:
            with intercepted(library, take, MULTIPROCESSORS, in_double):
                call(dtype)
    outcome.barriers += len(missed)
    outcome.failures += [f"{name}: nothing is seen without its barrier {n}" for (name, n), no in missed.items() if no]

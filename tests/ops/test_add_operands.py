"""The operands `axis_rows` and `extra_tokens` of the operator `add`: bits of the reference, of two calls, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.operations import grid_rows
from sinpe_ext.operations.add import ADD
from sinpe_ext.operations.dropout import DROPOUT
from sinpe_ext.operations.plans import pack_plan
from sinpe_ext.records import Add, Dropout

pytestmark = pytest.mark.emulated

B, S, D, EXTRA = 2, 6, 8, 2
PLAN = pack_plan(sinpe.convention("fairseq", D))
GRID = sinpe.GridEncoding((sinpe.Encoding(4), sinpe.Encoding(3)), dim=D)
OFFSETS = [7, 3 * (S + EXTRA) * D, D, 1]
MASK = torch.tensor([[False, True, False, False, True, False]])
SEED = torch.tensor(5)


def x(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(B, S + EXTRA, D, generator=torch.Generator().manual_seed(3)).to(dtype)


def grid(acc: torch.dtype = torch.float32) -> dict[str, Any]:
    cpu = torch.device("cpu")
    rows = grid_rows.values(grid_rows.AxisRows(GRID, (3, 2), (0, 0), acc, cpu, False))
    return {"plan": grid_rows.pack_grid(GRID, (3, 2), False, cpu), "axis_rows": rows}


DROPPED = {"seed": SEED, "drop_threshold": 20000, "scale": 1.5}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 3.0, "start": 4},
    "dropout": DROPPED | {"padding_mask": MASK, "alpha": torch.tensor(0.5)},
    "dropout of a shard": DROPPED | {"rng_offsets": OFFSETS, "positions": torch.rand(B, S)},
    "starts": {"positions": torch.tensor([[3], [70]]), "positions_are_starts": True},
    "all dropped": {"drop_threshold": 65536},
}


@pytest.mark.parametrize("of_grid", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_extra_tokens_are_scaled_and_dropped_alone(case: dict[str, Any], dtype: torch.dtype, of_grid: bool) -> None:
    given = x(dtype)
    source = grid(torch.float64 if dtype == torch.float64 else torch.float32) if of_grid else {"plan": PLAN}
    case = {k: v for k, v in case.items() if not of_grid or not k.startswith(("position", "alpha"))}
    a = Add(given, extra_tokens=EXTRA, **source, **case)
    first, *steps = a.rng_offsets or [0, (S + EXTRA) * D, D, 1]
    behind = a._replace(x=given[:, EXTRA:], extra_tokens=0, rng_offsets=[first + EXTRA * D, *steps])
    front = DROPOUT(Dropout(given[:, :EXTRA], a.seed, a.drop_threshold, a.scale, [first, *steps]))
    want = torch.cat([front, ADD(behind)], 1)
    assert torch.equal(ADD(a), want)
    if dtype != torch.float64:
        assert torch.equal(ADD.reference(*a), want)
    ADD(a, given)
    assert torch.equal(given, want)


def test_gradients_behind_extra_tokens() -> None:
    offsets = [0, (S + EXTRA) * D, D, 1]
    for rng_offsets in ([], OFFSETS):
        given, alpha = x(torch.float64).requires_grad_(), torch.tensor(0.7, requires_grad=True, dtype=torch.float64)
        positions = torch.rand(1, S, dtype=torch.float64).requires_grad_()
        a = Add(given, PLAN, positions, MASK, alpha, extra_tokens=EXTRA, rng_offsets=rng_offsets, **DROPPED)
        got = torch.autograd.grad(ADD(a).square().sum(), (given, alpha, positions))
        first, *steps = rng_offsets or offsets
        behind = a._replace(x=given[:, EXTRA:], extra_tokens=0, rng_offsets=[first + EXTRA * D, *steps])
        front = DROPOUT(Dropout(given[:, :EXTRA], SEED, a.drop_threshold, a.scale, [first, *steps]))
        two_calls = torch.cat([front, ADD(behind)], 1)
        want = torch.autograd.grad(two_calls.square().sum(), (given, alpha, positions))
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)
        registered = ADD.op(*a).square().sum()
        for one, other in zip(torch.autograd.grad(registered, (given, alpha, positions)), got, strict=True):
            assert torch.equal(one, other)


def test_gradient_of_a_grid_is_dropout_of_the_gradient() -> None:
    given, grad = x().requires_grad_(), x()
    a = Add(given, extra_tokens=EXTRA, **grid(), **DROPPED)
    (got,) = torch.autograd.grad(ADD(a), given, grad)
    assert torch.equal(got, DROPOUT(Dropout(grad, SEED, a.drop_threshold, a.scale)))

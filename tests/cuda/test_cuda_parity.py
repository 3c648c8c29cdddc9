"""CUDA against the CPU, value by value: each operation, dtype, layout and size with a separate code path.

Each test takes a device and compares it with the CPU; on the CPU, kernels are compared with eager PyTorch, which checks
the tests without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from closest import CLOSEST
from cuda_support import (
    FLOATS,
    Run,
    assert_rows,
    assert_sums,
    dtypes,
    expected,
    is_exact,
    leaf,
    moved,
    randn,
    same_gradients,
    same_rows,
    same_sums,
)
from torch import Tensor

import sinpe_ext as sinpe

CONVENTIONS = {
    "paper": sinpe.Encoding(512),
    "t2t": sinpe.convention("t2t", 66),
    "one channel": sinpe.Encoding(1),
    "odd": sinpe.Encoding(33),
    "pad": sinpe.Encoding(7, odd="pad"),
    "own": sinpe.Encoding(40, cos_frequency="own", start=-5),
    "turns": sinpe.Encoding(10, unit="turn", position_scale=1000, amplitude=-0.3, layout="cos_sin"),
    "given": sinpe.Encoding(6, frequencies=(1e-60, -3.5, 0.0)),
    "wide": sinpe.Encoding(4100),
}
STARTS = [0, -3, 2**24 - 5, 2**31 - 7, 2**40, -(2**62), 2**63 - 1 - 67]
P = 0.3


@pytest.mark.parametrize("name", CONVENTIONS)
def test_table(name: str, device: torch.device) -> None:
    encoding = CONVENTIONS[name].replace(start=0)
    for dtype in dtypes(device):
        for start in STARTS if device.type == "cuda" else STARTS[:3]:
            same_rows(device, lambda d: sinpe.table(67, encoding, start=start, dtype=dtype, device=d))  # noqa: B023


def test_table_of_many_rows_and_closest_to_zero(cuda: torch.device) -> None:
    """Where a rotation or a short phase would be many ULP off."""
    for dtype in (torch.float32, torch.bfloat16):
        same_rows(cuda, lambda d: sinpe.table(100_000, 34, dtype=dtype, device=d))  # noqa: B023
    for dim, position, _ in CLOSEST:
        same_rows(cuda, lambda d: sinpe.table(5, dim, start=position - 2, device=d))  # noqa: B023


@pytest.mark.parametrize("dtype", FLOATS)
def test_table_out(dtype: torch.dtype, device: torch.device) -> None:
    """Rows of any stride and alignment: kernels store 16 bytes at a time only if aligned."""
    for rows in (9, 5000):  # the second is not few elements for a GPU
        want = expected(device, lambda d: sinpe.table(rows, 33, start=4, dtype=dtype, device=d))  # noqa: B023
        for width, first in ((33, 0), (33, 1), (40, 0), (40, 3), (64, 8)):
            memory = torch.full((rows * width + first + 5,), 7.0, dtype=dtype, device=device)
            out = memory[first:].as_strided((rows, 33), (width, 1), first)
            assert sinpe.table(rows, 33, start=4, dtype=dtype, out=out) is out
            assert_rows(device, out, want)
            untouched = torch.ones_like(memory, dtype=torch.bool)
            untouched.as_strided((rows, 33), (width, 1), first).fill_(False)
            assert bool((memory[untouched] == 7.0).all())
        out = torch.empty(33, rows, dtype=dtype, device=device).t()
        assert_rows(device, sinpe.table(rows, 33, start=4, dtype=dtype, out=out), want)


POSITIONS: dict[str, Callable[[], Tensor]] = {
    "whole": lambda: torch.tensor([[0, 1, -1, 5], [2**24 + 1, 2**31 - 1, 2**40, -(2**31)]]),
    "ends": lambda: torch.tensor([2**63 - 1, -(2**63), 2**62]),
    "random": lambda: torch.randint(-(2**31), 2**31, (3001,), generator=torch.Generator().manual_seed(0)),
    "int32": lambda: torch.arange(-9, 20, dtype=torch.int32),
    "uint8": lambda: torch.arange(250, 256, dtype=torch.uint8),
    "float32": lambda: torch.linspace(-1000, 1000, 777),
    "float64": lambda: torch.linspace(-1e6, 1e6, 777, dtype=torch.float64),
    "special": lambda: torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-30, 2.0**30]),
    "scalar": lambda: torch.tensor(7),
    "none": lambda: torch.empty(0, 3),
    "strided": lambda: torch.arange(40.0).reshape(4, 10).t()[::2],
}


@pytest.mark.parametrize("name", POSITIONS)
def test_encode(name: str, device: torch.device) -> None:
    positions = POSITIONS[name]()
    for dtype in dtypes(device):
        for encoding in (sinpe.Encoding(64), sinpe.convention("ddpm", 33), CONVENTIONS["turns"]):
            same_rows(device, lambda d: sinpe.encode(positions.to(d), encoding, dtype=dtype))  # noqa: B023


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_rows_are_the_float32_rows_rounded(dtype: torch.dtype, cuda: torch.device) -> None:
    """At 4.8 * 10^9 values per type."""
    if not is_exact(cuda, torch.float32):
        pytest.skip("in single arithmetic, a 16-bit row may be a rounding of another float32 row")
    generator = torch.Generator(cuda).manual_seed(1)
    for encoding in (
        sinpe.Encoding(512),
        sinpe.Encoding(256, base=500_000.0, layout="sin_cos"),
        sinpe.convention("t2t", 256),
        sinpe.Encoding(64, unit="turn", position_scale=1000, amplitude=-0.3),
    ):
        count = 2**27 // encoding.dim
        runs: list[Callable[[torch.dtype], Tensor]] = []
        for first in (0, 2**20, 2**30 - count):
            runs += [lambda d, first=first: sinpe.table(count, encoding, start=first, dtype=d, device=cuda)]  # noqa: B023
        for most in (2**10, 2**31, 2**40):
            whole = torch.randint(-most, most, (count,), device=cuda, generator=generator)
            some = torch.rand(count, device=cuda, generator=generator) * (most * 1e-3)
            runs += [lambda d, at=at: sinpe.encode(at, encoding, dtype=d) for at in (whole, some)]  # noqa: B023
        for run in runs:
            assert torch.equal(run(dtype).view(torch.int16), run(torch.float32).to(dtype).view(torch.int16))


S = 9
ROW = torch.arange(S)
FORMS: dict[str, dict[str, Any]] = {
    "implicit": {},
    "start": {"start": -100},
    "starts": {"start": torch.tensor([4, 0, -9])},
    "a start": {"start": torch.tensor(5)},
    "positions": {"positions": ROW * 3},
    "of each": {"positions": torch.tensor([[4], [0], [-9]]) * ROW, "padding_mask": ROW > 4},
    "float": {"positions": ROW / 3, "scale": 0.5, "alpha": -0.3},
    "masked": {"padding_mask": torch.arange(3 * S).reshape(3, S) % 3 == 1, "scale": 3.7},
    "alpha": {"alpha": torch.tensor([0.7]), "scale": 1.5},
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "misaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "sequence first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "channels first": lambda x: x.mT.contiguous().mT,
    "every other channel": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "window": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every other row": lambda x: x.repeat_interleave(2, -2)[..., ::2, :],
    "expanded": lambda x: x[:1].expand(x.shape),
}


def sums(x: Tensor, named: dict[str, Any], layout: str, **more: Any) -> Run:
    return lambda d: sinpe.add(LAYOUTS[layout](x.to(d)), **moved(named, d), **more)


@pytest.mark.parametrize("form", FORMS)
def test_add(form: str, device: torch.device) -> None:
    widths = (1, 7, 8, 64, 66, 130) if device.type == "cuda" else (7,)
    for dtype in dtypes(device):
        for width in widths:
            x = randn(3, S, width, dtype=dtype)
            for layout in LAYOUTS:
                for drop in (0.0, P):
                    same_sums(device, sums(x, FORMS[form], layout, dropout=drop, seed=11))


# Above the size up to which a thread computes two channels for itself (csrc/cuda/few_rows.h), on every card.
MANY = 2**19


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_of_many_elements(dtype: torch.dtype, cuda: torch.device) -> None:
    for encoding in CONVENTIONS.values():
        for start in STARTS[:5]:
            at = encoding.replace(start=start)
            same_rows(cuda, lambda d: sinpe.table(MANY // at.dim, at, dtype=dtype, device=d))  # noqa: B023
    for make in POSITIONS.values():
        positions = make().flatten()
        positions = positions.repeat(MANY // 33 // max(1, positions.numel()) + 1)
        for encoding in (*map(sinpe.Encoding, (4, 8, 32, 64)), sinpe.convention("ddpm", 33), CONVENTIONS["turns"]):
            at = positions.repeat(1 + 33 // encoding.dim)
            same_rows(cuda, lambda d: sinpe.encode(at.to(d), encoding, dtype=dtype))  # noqa: B023


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", FORMS)
def test_add_of_many_elements(form: str, dtype: torch.dtype, cuda: torch.device) -> None:
    for width in (7, 64, 130):
        x = randn(3, MANY // (3 * S * width), S, width, dtype=dtype)
        for layout in LAYOUTS:
            for drop in (0.0, P):
                same_sums(cuda, sums(x, FORMS[form], layout, dropout=drop, seed=11))


@pytest.mark.parametrize("dtype", FLOATS)
def test_add_of_many_rows_of_their_own(dtype: torch.dtype, cuda: torch.device) -> None:
    """No two rows of x share a row of the encoding: the kernel of `table` and `encode`, which adds x."""
    generator = torch.Generator().manual_seed(2)
    for width in (4, 7, 16, 32, 130, 512):
        count = MANY // width
        x = randn(count, width, dtype=dtype)
        whole = torch.randint(-(2**20), 2**20, (count,), generator=generator)
        for shape, named in (
            ((count, width), {}),
            ((count, width), {"start": 2**31 - 7, "alpha": -0.3, "scale": 0.5}),
            ((count, width), {"positions": whole}),
            ((count, width), {"positions": whole << 20, "alpha": torch.tensor([0.7]), "scale": 22.6}),
            ((count, width), {"positions": whole / 7}),
            ((count // 8, 8, width), {"positions": whole[: count // 8 * 8].reshape(-1, 8)}),
            ((count, 1, width), {"positions": whole.double().unsqueeze(1) / 3}),
            ((count, 1, width), {"start": whole}),
        ):
            data = x[: shape[0] * 8].reshape(shape) if shape[1] == 8 else x.reshape(shape)
            for layout in ("plain", "misaligned", "every other row"):
                same_sums(cuda, sums(data, named, layout))


def test_add_into(device: torch.device) -> None:
    for dtype in dtypes(device):
        x = randn(3, 2, S, 34, dtype=dtype)
        for form, named in FORMS.items():
            for drop in (0.0, P, 1.0):
                want = expected(device, sums(x, named, "plain", dropout=drop, seed=5))
                on, into = x.to(device), moved(named, device)
                for layout in ("plain", "misaligned", "channels first", "window"):
                    out = LAYOUTS[layout](torch.full_like(on, torch.nan))
                    assert sinpe.add(on, out=out, dropout=drop, seed=5, **into) is out
                    assert_sums(device, out, want, 40.0)
                    given = LAYOUTS[layout](on.clone())
                    assert sinpe.add_(given, dropout=drop, seed=5, **into) is given, form
                    assert_sums(device, given, want, 40.0)


def test_any_seq_dim_and_channel_dim(cuda: torch.device) -> None:
    x = randn(4, 5, 6, 7)
    for seq, channel in [(seq, channel) for seq in range(4) for channel in range(4) if seq != channel]:
        named = {"seq_dim": seq, "channel_dim": channel, "dropout": P, "seed": 3}
        same_sums(cuda, lambda d: sinpe.add(x.to(d), **named), 10.0)  # noqa: B023


@pytest.mark.bad_input(10, "CUDA")
@pytest.mark.parametrize("shape", [(100_000, 2, 8), (70_000, 1, 3), (1, 100_000, 34), (2, 65_537, 5)], ids=str)
def test_many_rows_and_samples(shape: tuple[int, ...], cuda: torch.device) -> None:
    """More than a dimension of a CUDA grid can hold."""
    x = randn(*shape, dtype=torch.bfloat16)
    for named in ({}, {"start": torch.arange(shape[0])}):
        same_sums(cuda, sums(x, named, "plain", dropout=P, seed=1), 12.0)


@pytest.mark.bad_input(9, "CUDA")
def test_empty_tensors(cuda: torch.device) -> None:
    for shape in ((0, 3, 8), (2, 0, 8), (0, 0, 8)):
        assert sinpe.add(torch.empty(shape, device=cuda), 8, dropout=P).shape == shape
    assert sinpe.table(0, 8, device=cuda).shape == (0, 8)
    assert sinpe.encode(torch.empty(0, 2, device=cuda), 8).shape == (0, 2, 8)


def test_dropout_masks_are_equal_on_all_devices(device: torch.device) -> None:
    """Including rows that start inside a group of eight elements; a seed on the CPU or the device."""
    for shape in ((3, 5, 11), (2, 4, 64), (1, 1, 1), (5, 1000, 13)):
        for seed in (0, -1, 2**63 - 1, 12345):
            same_sums(device, lambda d: sinpe.add(torch.ones(shape, device=d), alpha=0.0, dropout=P, seed=seed), 2.0)  # noqa: B023
    ones, seed = torch.ones(4, 8, 16, device=device), torch.tensor(77)
    on_cpu, there = (sinpe.add(ones, alpha=0.0, dropout=P, seed=at) for at in (seed, seed.to(device)))
    assert torch.equal(on_cpu, there)


EMBED: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": 8.0, "alpha": 0.5, "start": 3},
    "padding": {"padding_idx": 2, "encode_padding": False},
    "positions": {"positions": ROW * 7, "padding_mask": ROW > 6},
    "alpha": {"alpha": torch.tensor([0.7])},
}


@pytest.mark.parametrize("name", EMBED)
def test_embed(name: str, device: torch.device) -> None:
    """Forward, and the gradient of weight: a tree sum of its tokens, bitwise equal to the CPU's."""
    ids = torch.randint(0, 23, (3, S), generator=torch.Generator().manual_seed(4))
    for dtype in dtypes(device):
        for width in (1, 7, 64, 130) if device.type == "cuda" else (7,):
            weight, grad = randn(23, width, dtype=dtype), randn(3, S, width, dtype=dtype, seed=5)
            for drop in (0.0, P):

                def run(d: torch.device, backward: bool = False) -> Tensor:
                    w = leaf(weight, d, backward)  # noqa: B023
                    out = sinpe.embed(ids.to(d), w, dropout=drop, seed=9, **moved(EMBED[name], d))  # noqa: B023
                    return torch.autograd.grad(out, w, grad.to(d))[0] if backward else out  # noqa: B023

                same_sums(device, run, 60.0)
                assert torch.equal(run(device, True).cpu(), expected(device, lambda d: run(d, True)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", EMBED)
def test_embed_of_many_elements(name: str, dtype: torch.dtype, cuda: torch.device) -> None:
    for width in (7, 64, 130):
        ids = torch.randint(0, 23, (MANY // (S * width), S), generator=torch.Generator().manual_seed(4))
        weight = randn(23, width, dtype=dtype)
        for drop in (0.0, P):
            named = {**EMBED[name], "dropout": drop, "seed": 9}
            same_sums(cuda, lambda d: sinpe.embed(ids.to(d), weight.to(d), **moved(named, d)), 60.0)  # noqa: B023


@pytest.mark.parametrize(
    ("rows", "count"), [(1, 20_000), (5, 20_000), (20_000, 20_000), (5, 0)], ids=["one", "few", "each once", "none"]
)
def test_embed_backward_of_many_tokens(rows: int, count: int, device: torch.device) -> None:
    """Long and short runs of one id."""
    tokens = torch.randperm(count, generator=torch.Generator().manual_seed(0)).reshape(4 if count else 1, -1) % rows
    weight, grad = torch.zeros(rows, 24), randn(*tokens.shape, 24, dtype=torch.bfloat16).float()

    def run(d: torch.device) -> Tensor:
        w = leaf(weight, d)
        return torch.autograd.grad(sinpe.embed(tokens.to(d), w, dropout=P, seed=2), w, grad.to(d))[0]

    assert torch.equal(run(device).cpu(), expected(device, run))


def test_gradients_of_add(device: torch.device) -> None:
    x, grad = randn(3, S, 34), randn(3, S, 34, seed=6)
    for drop in (0.0, P):

        def run(d: torch.device) -> tuple[Tensor, ...]:
            given, positions = leaf(x, d), leaf(ROW / 3, d)
            alpha = torch.tensor([0.7], device=d, requires_grad=True)
            named = {"alpha": alpha, "positions": positions, "padding_mask": (ROW > 6).to(d)}
            out = sinpe.add(given, scale=1.5, dropout=drop, seed=4, **named)  # noqa: B023
            return torch.autograd.grad(out, (given, alpha, positions), grad.to(d))

        same_gradients(device, run)


def test_second_derivatives(cuda: torch.device) -> None:
    positions = torch.linspace(0, 3, 5, dtype=torch.float64, device=cuda, requires_grad=True)
    alpha = torch.tensor([0.7], dtype=torch.float64, device=cuda, requires_grad=True)
    x = leaf(randn(2, 5, 6, dtype=torch.float64), cuda)
    run = lambda x, alpha, p: sinpe.add(x, alpha=alpha, positions=p, dropout=P, seed=4)  # noqa: E731
    assert torch.autograd.gradcheck(run, (x, alpha, positions))
    assert torch.autograd.gradgradcheck(run, (x, alpha, positions))


@pytest.mark.bad_input(10, "CUDA")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_more_than_2_to_31_elements(dtype: torch.dtype, cuda: torch.device) -> None:
    """64-bit indices: the last rows equal those of a separate call."""
    rows, width = 2**22 + 3, 513
    need = 3 * rows * width * 2
    if torch.cuda.mem_get_info(cuda)[0] < need:
        pytest.skip(f"needs {need >> 30} GiB of free memory on the device")
    x = torch.ones(1, rows, width, dtype=dtype, device=cuda)
    got = sinpe.add(x)
    assert_rows(cuda, got[0, -5:], (sinpe.table(5, width, start=rows - 5).float() + 1).to(dtype))
    assert rows * width > 2**31
    sinpe.add_(x, dropout=0.5, seed=3)
    share = float((x[0, -4096:] != 0).float().mean())
    assert abs(share - 0.5) < 0.01
    del x
    table = sinpe.table(rows, width, dtype=dtype, device=cuda, out=got[0])
    assert_rows(cuda, table[-5:], sinpe.table(5, width, start=rows - 5, dtype=dtype))

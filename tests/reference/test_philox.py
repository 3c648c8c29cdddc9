"""Dropout masks: Philox's published values, all forms of `rng_offsets`, and statistical tests with a stated confidence.

Each mask in the statistical tests is computed by `philox.keep` and by the operator `dropout` of the tested backend, and
must be equal. The bounds are Chernoff's and Hoeffding's, which are not approximations. Seeds are fixed: results are
reproducible.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from philox import kept, philox  # reference implementation in Python integers
from torch import Tensor

from sinpe_ext.operations.dropout import DROPOUT
from sinpe_ext.records import Dropout
from sinpe_ext.reference import philox as ours

FALSE_ALARM = 1e-9  # each check fails for truly random masks with at most this probability
SEED = 0x243F6A8885A308D3
HALF = 32768
THRESHOLDS = [1, 655, 6554, 32768, 58982, 65535]  # p = 1/65536, 0.01, 0.1, 0.5, 0.9, 65535/65536
EDGE_SEEDS = [0, 1, -1, 2**32 - 1, -(2**32), 2**63 - 1, -(2**63), SEED]

KNOWN = {  # kat_vectors of Random123 1.14, philox4x32 10: counter, key, output
    "zeros": ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


def test_philox_equals_published_values() -> None:
    for counter, key, words in KNOWN.values():
        assert philox(counter, key) == words


def words_of(counters: Sequence[int], seed: int) -> Tensor:
    """(4, number of counters), from the reference implementation."""
    counter = torch.tensor(counters)
    words = ours._philox(counter & 0xFFFFFFFF, counter >> 32, ours._keys(torch.tensor(seed)))
    return torch.stack([word & 0xFFFFFFFF for word in words])


def test_philox_words() -> None:
    counters = [0, 1, 2, 2**32 - 1, 2**32, 2**32 + 1, 0x85A308D3243F6A8, 2**61 - 1]
    for seed in EDGE_SEEDS:
        key = seed % 2**32, seed % 2**64 >> 32
        want = [philox((c % 2**32, c >> 32, 0, 0), key) for c in counters]
        assert words_of(counters, seed).T.tolist() == [list(words) for words in want]


FORMS: dict[str, tuple[tuple[int, ...], list[int]]] = {
    "row-major": ((3, 5, 7), []),
    "one dimension": ((29,), []),
    "one element": ((), []),
    "one element, based": ((), [13]),
    "empty": ((3, 0, 7), []),
    "based": ((3, 5, 7), [1003, 35, 7, 1]),
    "permuted": ((3, 5, 7), [0, 1, 21, 3]),
    "permuted and based": ((3, 5, 7), [77, 5, 1, 15]),
    "size 1 with any step": ((3, 1, 7), [4, 7, 1000, 1]),
    "shard": ((3, 4, 7), [2, 100, 9, 1]),
    "strided channels": ((3, 5, 7), [1, 70, 14, 2]),
    "expanded": ((3, 5, 7), [3, 0, 7, 1]),
    "expanded shard": ((3, 5, 7), [3, 0, 11, 1]),
    "overlapping": ((4, 6), [0, 1, 1]),
    "beyond 2**35": ((3, 5, 7), [2**35 * 8 + 5, 35, 7, 1]),
    "counter's high word changes": ((3, 5, 7), [2**35 - 50, 35, 7, 1]),
    "scattered over the high word": ((3, 5), [2**35 - 50, 31, 2**40 + 3]),
    "largest": ((3, 5), [2**63 - 1 - 14, 5, 1]),
    "as unsigned": ((3, 5), [-40, 5, 1]),
    "from the last number to the first": ((2, 300), [-301, 300, 1]),
}


def expected_mask(seed: int, drop: int, shape: tuple[int, ...], elements: Sequence[int]) -> Tensor:
    base, *steps = elements or [0, *ours.row_major(shape)]
    indices = itertools.product(*map(range, shape))
    numbers = [base + sum(i * step for i, step in zip(index, steps, strict=True)) for index in indices]
    return torch.tensor([kept(seed, e % 2**64, drop) for e in numbers], dtype=torch.bool).reshape(shape)


@pytest.mark.parametrize("form", FORMS)
def test_rng_offsets(form: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, elements = FORMS[form]
    for seed, drop in ((SEED, HALF), (-3, 6554), (2**63 - 1, 65535)):
        want = expected_mask(seed, drop, shape, elements)
        for given in (seed, torch.tensor(seed), torch.tensor([seed])):
            got = ours.keep(given, drop, shape, elements, "cpu")
            assert got.dtype == torch.bool and torch.equal(got, want)
    if shape:
        assert torch.equal(mask_of(SEED, HALF, shape, elements), expected_mask(SEED, HALF, shape, elements))
    monkeypatch.setattr(ours, "arrays", lambda xp, device: SimpleNamespace(block=3))
    assert torch.equal(ours.keep(SEED, HALF, shape, elements, "cpu"), expected_mask(SEED, HALF, shape, elements))


def test_element_numbers_of_a_long_row(backend: str) -> None:
    """Kernels split it into pieces, each of which must start at the right element."""
    for shape, elements in (((20_000,), [5, 3]), ((2, 9001), [7, 1, 2]), ((9001, 2), [2**35 - 20_000, 5, 1])):
        mask_of(SEED, HALF, shape, elements)


def test_threshold_is_compared_with_all_16_bits() -> None:
    """An element is dropped exactly for thresholds above its 16 random bits; for 0 and 65536 no seed is needed."""
    words = words_of(range(4), SEED)
    lanes = torch.stack([words & 0xFFFF, words >> 16], 1).permute(2, 0, 1).flatten().tolist()
    for e, lane in enumerate(lanes):
        at = [ours.keep(SEED, drop, (32,), [], "cpu")[e].item() for drop in (lane, lane + 1)]
        assert at == [True, False]
    for drop, fraction in ((0, 1.0), (65536, 0.0)):
        assert ours.keep(None, drop, (3, 5), [], "cpu").float().mean() == fraction == ours.kept_scale(drop)
    with pytest.raises(RuntimeError, match="seed: expected one int64, got None while drop_threshold is 7"):
        ours.keep(None, 7, (3,), [], "cpu")
    with pytest.raises(RuntimeError, match="rng_offsets: expected 3 integers .* got 2"):
        ours.keep(1, 7, (3, 4), [0, 1], "cpu")


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("form", ["shard", "counter's high word changes"])
def test_seeds_of_vmap_and_fake_seeds(form: str) -> None:
    """A seed's value is not read on the host: reading it from a device would synchronize."""
    from torch._subclasses import FakeTensorMode

    shape, elements = FORMS[form]
    seeds = torch.tensor(EDGE_SEEDS)
    want = torch.stack([expected_mask(seed, HALF, shape, elements) for seed in EDGE_SEEDS])
    for given in (seeds, seeds[:, None]):
        got = torch.func.vmap(lambda seed: ours.keep(seed, HALF, shape, elements, "cpu"))(given)
        assert torch.equal(got, want)
    with FakeTensorMode():
        assert ours.keep(torch.tensor(1), HALF, shape, elements, "cpu").shape == shape


# statistics


def mask_of(seed: int, drop: int, shape: tuple[int, ...], elements: Sequence[int] = ()) -> Tensor:
    """A mask by the operator of the current backend, equal to that of `philox.keep`."""
    keep = DROPOUT(Dropout(torch.ones(shape), torch.tensor(seed), drop, 1.0, list(elements))) != 0
    assert torch.equal(keep, ours.keep(seed, drop, shape, elements, "cpu"))
    return keep


def expect_count(count: int, n: int, p: float) -> None:
    """Chernoff's bound, both tails, for `count` of n independent events of probability p."""
    rate = count / n
    divergence = sum(a * math.log(a / b) for a, b in ((rate, p), (1 - rate, 1 - p)) if a > 0)
    assert 2 * math.exp(-n * divergence) > FALSE_ALARM, f"{count} of {n}, expected {n * p:.1f}"


def expect_uniform(values: Tensor, bins: int) -> None:
    """Chi-square, by Laurent and Massart's tail bounds, valid in the limit of many values per bin."""
    expected = values.numel() / bins
    assert expected >= 64
    chi2 = float((torch.bincount(values, minlength=bins).double() - expected).square().sum() / expected)
    free, t = bins - 1, math.log(2 / FALSE_ALARM)
    assert free - 2 * math.sqrt(free * t) < chi2 < free + 2 * math.sqrt(free * t) + 2 * t


def expect_uncorrelated(masks: Tensor) -> None:
    """Rows of masks with p = 0.5, (many, length), pairwise: Hoeffding's bound for a sum of signs, over all pairs."""
    signs = masks.float() * 2 - 1
    sums = (signs @ signs.T).fill_diagonal_(0.0)
    pairs = len(masks) * (len(masks) - 1) / 2
    assert float(sums.abs().max()) < math.sqrt(2 * masks.shape[1] * math.log(2 * pairs / FALSE_ALARM))


@pytest.mark.parametrize(("drop", "seed"), [(drop, (SEED, 0)[k % 2]) for k, drop in enumerate(THRESHOLDS)])
def test_drop_rate_and_mean(drop: int, seed: int, backend: str) -> None:
    """The rate is threshold / 65536, so the mean of the factors is 1."""
    n = 2**21
    dropped = n - int(mask_of(seed, drop, (n,)).sum())
    expect_count(dropped, n, drop / 65536)
    out = DROPOUT(Dropout(torch.ones(n), torch.tensor(seed), drop, 1.0, []))
    # A scale for another p would imply another count. 2**-23: rounding to float32.
    kept_by_mean = float(out.double().mean()) * n * (65536 - drop) / 65536
    assert abs(kept_by_mean - (n - dropped)) <= 2**-23 * n
    expect_count(round(kept_by_mean), n, 1 - drop / 65536)


@pytest.mark.parametrize("seed", [SEED, 0])
def test_lanes_are_uniform(seed: int) -> None:
    words = words_of(range(2**19), seed)
    lanes = torch.stack([words & 0xFFFF, words >> 16]).reshape(8, -1)
    expect_uniform(lanes.flatten(), 2**16)
    for lane in lanes:
        expect_uniform(lane >> 8, 256)
        expect_uniform(lane & 255, 256)
    for first, second in itertools.pairwise(lanes):
        expect_uniform((first >> 10) * 64 + (second >> 10), 2**12)


@pytest.mark.parametrize("drop", [6554, HALF])
def test_neighbours_rows_and_batches_are_independent(drop: int, backend: str) -> None:
    """(B, S, D) = (32, 64, 512): disjoint pairs of elements a lag apart differ as often as independent ones."""
    mask = mask_of(SEED, drop, (32, 64, 512)).flatten()
    p = drop / 65536
    channels, rows = 512, 64
    for lag in (1, 2, 3, 4, 5, 6, 7, 8, 16, 64, 256, channels, 2 * channels, channels * rows, 4 * channels * rows):
        usable = mask.numel() // (2 * lag) * 2 * lag
        pairs = mask[:usable].reshape(-1, 2, lag)
        expect_count(int((pairs[:, 0] != pairs[:, 1]).sum()), usable // 2, 2 * p * (1 - p))


def test_rows_are_uncorrelated_and_never_equal(backend: str) -> None:
    expect_uncorrelated(mask_of(SEED, HALF, (512, 2048)))
    expect_uncorrelated(mask_of(SEED, HALF, (2**17, 8)).T)  # the eight lanes of a counter
    rows = mask_of(SEED, HALF, (2**15, 64)).long() << torch.arange(64)
    assert rows.sum(1).unique().numel() == 2**15  # two equal rows of 64: probability 2**29 * 2**-64 = 3e-11


def related_seeds() -> list[int]:
    """Seeds that differ by one bit, one step, or a swap of the two halves."""
    signed = [(SEED ^ 1 << bit) for bit in range(64)]
    near = [SEED + d for d in range(-8, 9)]
    swapped = [(SEED << 32 | SEED >> 32) % 2**64, SEED >> 32, (SEED << 32) % 2**64, SEED % 2**32]
    small = [*range(16), *(k << 32 for k in range(1, 16)), *(k << 32 | k for k in range(1, 8)), 2**64 - 1, 2**63]
    return sorted({(s + 2**63) % 2**64 - 2**63 for s in (*signed, *near, *swapped, *small)})


def test_masks_of_related_seeds_are_uncorrelated(backend: str) -> None:
    seeds = related_seeds()
    assert len(seeds) > 100
    length = 2**13
    expect_uncorrelated(torch.stack([mask_of(seed, HALF, (length,)) for seed in seeds]))

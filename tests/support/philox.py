"""Philox 4x32-10 (Salmon et al. 2011) in Python integers: reference implementation of dropout masks."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

MASK32 = 2**32 - 1


@lru_cache(maxsize=2**16)
def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds, 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & MASK32, (first >> 32) ^ c3 ^ k1, first & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def lane(seed: int, element: int) -> int:
    """The 16 random bits of an element."""
    counter, seed = element >> 3, seed % 2**64
    words = philox((counter & MASK32, counter >> 32, 0, 0), (seed & MASK32, seed >> 32))
    place = element & 7
    return words[place >> 1] >> 16 * (place & 1) & 0xFFFF


def kept(seed: int, element: int, threshold: int) -> bool:
    """Whether dropout with p = threshold / 65536 keeps an element."""
    return lane(seed, element) >= threshold


def kept_mask(seed: int, count: int, threshold: int) -> np.ndarray:
    """`kept` for the elements 0 .. count - 1, with arrays of 64-bit words; (count,) bool."""
    if threshold in (0, 65536):
        return np.full(count, threshold == 0)
    low32, shift = np.uint64(MASK32), np.uint64(32)
    counters, seed = np.arange((count + 7) // 8, dtype=np.uint64), seed % 2**64
    c0, c1 = counters & low32, counters >> shift
    c2, c3 = np.zeros_like(counters), np.zeros_like(counters)
    k0, k1 = seed & MASK32, seed >> 32
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c2 = (second >> shift) ^ c1 ^ np.uint64(k0), (first >> shift) ^ c3 ^ np.uint64(k1)
        c1, c3 = second & low32, first & low32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    halves = [(word >> np.uint64(bit)) & np.uint64(0xFFFF) for word in (c0, c1, c2, c3) for bit in (0, 16)]
    return np.stack(halves, -1).reshape(-1)[:count] >= threshold

"""Hypothesis strategies: encodings, positions, and tensors in all memory layouts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import reject, settings
from hypothesis import strategies as st

from sinpe_ext import Encoding

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# With an amplitude of 2**-100, results do not underflow in float64; the sign of such a zero is unspecified.
SMALLEST_POSITION, SMALLEST_FREQUENCY = 2.0**-500, 2.0**-350
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

AMPLITUDES = (1.0, 1.0, 1.0, 0.0, -0.3, 512**-0.5, 1000 / 3, 1 + 2.0**-24, 2.0**-100, -1.0)  # 1 + 2**-24: a float32 tie
FREQUENCIES = (0.0, 1.0, -0.25, 1 / 12, 0.1, 7.3, -1e5 - 0.1, 2.0**40 + 0.5, 1e-20, -1e-60, 2.0**-70, 0.5)


def examples(count: int) -> settings:
    """A number of examples for the profile `ci`; other profiles have their own."""
    profile = settings.get_profile("ci")
    return settings(profile, max_examples=count) if settings.default == profile else settings()


@st.composite
def encodings(draw: st.DrawFn, max_dim: int = 40) -> Encoding:
    """Any encoding with exact angles, except for the largest and smallest frequencies."""
    dim = draw(st.one_of(st.integers(1, max_dim), st.sampled_from((8, 16, 32, 33))))
    fields: dict[str, Any] = {
        "layout": draw(st.sampled_from(("interleaved", "sin_cos", "cos_sin", "sin", "cos"))),
        "odd": draw(st.sampled_from(("truncate", "pad", "round"))),
        "cos_frequency": draw(st.sampled_from(("shared", "own"))),
        "unit": draw(st.sampled_from(("radian", "half_turn", "turn"))),
        "amplitude": draw(st.sampled_from(AMPLITUDES)),
        "position_scale": draw(st.sampled_from((1.0, 1.0, 1.0, 1000.0, -2.5, 0.1))),
        "start": draw(st.sampled_from((0, 0, 1, 2, -7, 2**31, -(2**45)))),
    }
    kind = draw(st.sampled_from(("geometric", "geometric", "geometric", "explicit")))
    if kind == "explicit":
        width = dim + {"pad": -1, "round": 1}.get(fields["odd"], 0) * (dim % 2)
        width = 2 * dim if fields["layout"] in ("sin", "cos") else width
        count = dim if fields["cos_frequency"] == "own" else (width + 1) // 2
        fields["frequencies"] = tuple(draw(st.lists(st.sampled_from(FREQUENCIES), min_size=count, max_size=count)))
    else:
        # 7, not 3: a sixth of a turn has the cosine 1/2, which an amplitude on a float32 tie puts within 2**-128 of
        # that tie; the kernels resolve roundings down to 2**-96.
        fields["base"] = draw(st.sampled_from((10000.0, 10000.0, 100.0, 0.5, 1.0, 7, 1e6)))
        fields["shift"] = draw(st.sampled_from((0.0, 0.0, 1.0, 0.5, -1.0)))
        fields["exponent_scale"] = draw(st.sampled_from((1.0, 1.0, 2.0, -0.5, 10 / 3)))
        fields["exponent_dim"] = draw(st.sampled_from((None, None, 2, 7.5, 512)))
    try:
        encoding = Encoding(dim, **fields)
        sizes = [abs(w) for w in encoding.frequencies_radians() if w]
    except (ValueError, OverflowError):  # an invalid combination
        reject()
    if sizes and (max(sizes) > 2.0**62 or min(sizes) < SMALLEST_FREQUENCY):
        reject()
    return encoding


def whole_positions() -> st.SearchStrategy[int]:
    """int64, denser where mistakes are likely."""
    near = st.builds(lambda k, d, s: s * 2**k + d, st.integers(0, 62), st.integers(-3, 3), st.sampled_from((1, -1)))
    known = st.sampled_from((0, 7199, 81665, 408325, 3803902, 97253, 2**24 + 1, 2**31 - 1, INT64_MIN, INT64_MAX))
    return st.one_of(st.integers(-300, 5000), near, known, st.integers(INT64_MIN, INT64_MAX))


def fractional_positions(width: int) -> st.SearchStrategy[float]:
    """float32 or float64 values, including integers and special values."""
    special = st.sampled_from((0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, 1.0, 2.0**31 - 0.5, 2.0**63, -(2.0**63)))
    small, any_size = st.floats(-1000, 1000, width=width), st.floats(width=width)
    drawn = st.one_of(small, special, st.integers(-4096, 4096).map(float), any_size)
    return drawn.filter(lambda p: p == 0 or not abs(p) < SMALLEST_POSITION)


@st.composite
def positions(draw: st.DrawFn, shape: tuple[int, ...]) -> torch.Tensor:
    """Positions of a shape, of any dtype and layout: runs, or a dozen values again and again."""
    count, integer = math.prod(shape), draw(st.sampled_from((torch.int64, torch.int64, torch.int32, torch.uint8)))
    dtype = draw(st.sampled_from((integer, integer, torch.float32, torch.float64)))
    if not dtype.is_floating_point and draw(st.booleans()):
        first, step = draw(st.integers(-(2**40), 2**40)), draw(st.sampled_from((1, 1, 0, -1, 5)))
        drawn = first + step * torch.arange(count)
    else:
        width = 32 if dtype == torch.float32 else 64
        value = fractional_positions(width) if dtype.is_floating_point else whole_positions()
        values = draw(st.lists(value, min_size=min(count, 12), max_size=min(count, 12)))
        drawn = torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else torch.int64)
        drawn = drawn.repeat(count // max(1, len(values)) + 1)[:count]
    drawn = drawn.to(dtype).reshape(shape)
    return draw(st.sampled_from((drawn, spread(drawn))))


def spread(x: torch.Tensor) -> torch.Tensor:
    """The same values with an offset and gaps in memory."""
    wide = torch.zeros((*x.shape, 2), dtype=x.dtype)
    wide[..., 1] = x
    return wide[..., 1]


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, expanded: bool) -> tuple[Any, torch.Tensor]:
    """(memory, view of that shape): permuted dimensions, gaps, an offset, expanded dimensions (`expanded`).

    memory is one-dimensional and extends beyond both ends of the view.
    """
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 1, 2))) for _ in shape]
    repeated = [expanded and draw(st.integers(0, 7)) == 0 for _ in shape]
    held = [1 if r else n for n, r in zip(shape, repeated, strict=True)]
    sizes = [n * step + draw(st.integers(0, 1)) for n, step in zip(held, steps, strict=True)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    first = draw(st.integers(0, 8))  # in elements: all possible alignments of a dtype
    memory = torch.randn(first + math.prod(sizes) + 9, generator=generator, dtype=torch.float64).to(dtype)
    box = memory[first:-9].view([sizes[d] for d in order])
    inverse = [order.index(d) for d in range(len(shape))]
    cuts = tuple(slice(size - n * step, None, step) for n, step, size in zip(held, steps, sizes, strict=True))
    return memory, box.permute(inverse)[cuts].expand(shape)


def sprinkle(x: torch.Tensor, seed: int) -> None:
    """Sets some elements of x, which must not overlap, to zeros, subnormals, infinities and NaN."""
    values = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-42, -1e-7, 65504.0, 3e38)
    where = np.random.default_rng(seed)
    for _ in range(min(6, x.numel())):
        x[tuple(int(where.integers(n)) for n in x.shape)] = values[where.integers(len(values))]

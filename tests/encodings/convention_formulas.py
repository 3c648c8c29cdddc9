"""All named conventions, implemented from the libraries that use them: plain loops, one channel at a time.

In 50 digits and without sinpe_ext, so errors in its catalogue or plans cannot affect the result. `row(name, position,
dim)` is the exact result of the library of that name; a dim that the library rejects raises ValueError. A change made
in both places changes the recorded bits (tests/reference/test_pinned_bits.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath

MP = mpmath.MPContext()  # separate context: the precision of other tests is unchanged
MP.dps = 50
BASE = MP.mpf(10000)
Row = list[Any]


def number(value: Any) -> Any:
    """A position: the exact value of an int or float; a fraction to 50 digits."""
    return MP.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else MP.mpf(value)


def power(numerator: int, denominator: int) -> Any:
    """10000 ** (-numerator / denominator); 1 if the denominator is 0, as with tensor2tensor's max(h - 1, 1)."""
    return BASE ** (-MP.mpf(numerator) / denominator) if denominator else MP.mpf(1)


def need(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)


# one coordinate


def paper(p: Any, dim: int) -> Row:
    """DistilBERT, xFormers, KerasHub, and for even dim the PyTorch tutorial: pos / 10000^(2 (j // 2) / dim)."""
    return [(MP.cos if j % 2 else MP.sin)(p * power(2 * (j // 2), dim)) for j in range(dim)]


def paper_concat(p: Any, dim: int) -> Row:
    """Marian: the columns 0, 2, 4, ... of the angles as sines, then the columns 1, 3, 5, ... as cosines."""
    angles = [p * power(2 * (j // 2), dim) for j in range(dim)]
    sines = [MP.sin(angle) for angle in angles[0::2]]
    return sines + [MP.cos(angle) for angle in angles[1::2]]


def own_index(p: Any, dim: int) -> Row:
    """arange(0, d, 2) under the sines, arange(1, d, 2) under the cosines."""
    return [(MP.cos if j % 2 else MP.sin)(p * power(j, dim)) for j in range(dim)]


def doubled_index(p: Any, dim: int, exponent_dim: int | None = None) -> Row:
    """2 * index / d where the index already has step 2."""
    return [(MP.cos if j % 2 else MP.sin)(p * power(2 * j, exponent_dim or dim)) for j in range(dim)]


def t2t(p: Any, dim: int, shift: int = 1, cosines_first: bool = False) -> Row:
    """get_timing_signal_1d, fairseq, diffusers: h = d // 2 timescales, log increment log(10000) / (h - 1), zero pad."""
    half = dim // 2
    sines, cosines = ([f(p * power(i, half - shift)) for i in range(half)] for f in (MP.sin, MP.cos))
    return (cosines + sines if cosines_first else sines + cosines) + [MP.mpf(0)] * (dim % 2)


def musicgen(p: Any, dim: int) -> Row:
    return t2t(p, dim, cosines_first=True)


def adm(p: Any, dim: int) -> Row:
    """guided-diffusion: exp(-log(max_period) * i / half), cat([cos, sin]), a zero column for an odd dim."""
    return t2t(p, dim, shift=0, cosines_first=True)


def flux(t: Any, dim: int) -> Row:
    return adm(1000 * t, dim)


def unit(p: Any, dim: int) -> Row:
    """NeMo: pos_enc.div_(sqrt(hidden_size))."""
    return [value / MP.sqrt(dim) for value in paper(p, dim)]


def multidim1d(p: Any, dim: int) -> Row:
    """channels = ceil(dim / 2) * 2; inv_freq over them; the first dim of sin and cos concatenated."""
    return axis_of_multidim(p, 2 * -(-dim // 2))[:dim]


def points(x: Any) -> Sequence[Any]:
    return x if isinstance(x, (tuple, list)) else (x,)


def nerf(x: Any, dim: int) -> Row:
    """nerf-pytorch: for each frequency 2^k, for each of sin and cos, all coordinates; without the raw input."""
    coordinates = points(x)
    need(len(coordinates) == 1 or dim % (2 * len(coordinates)) == 0, "as many channels for each coordinate")
    row = []
    for k in range(-(-dim // (2 * len(coordinates)))):
        row += [MP.sin(c * 2**k) for c in coordinates]
        row += [MP.cos(c * 2**k) for c in coordinates]
    return row[:dim]


def tcnn(x: Any, dim: int) -> Row:
    """tiny-cuda-nn: per coordinate sin(pi 2^k x), cos(pi 2^k x), k = 0, 1, ...; without the padding of ones."""
    coordinates = points(x)
    need(len(coordinates) == 1 or dim % (2 * len(coordinates)) == 0, "as many channels for each coordinate")
    row = []
    for c in coordinates:
        for k in range(-(-dim // (2 * len(coordinates)))):
            row += [MP.sinpi(c * 2**k), MP.cospi(c * 2**k)]
    return row[:dim]


# grids


def from_grid(p: Any, dim: int) -> Row:
    """get_1d_sincos_pos_embed_from_grid: omega_i = 1 / 10000^(i / (dim / 2)), [sin | cos]."""
    need(dim % 2 == 0, "embed_dim must be divisible by 2")
    return sin_cos_blocks((p,), dim // 2)


def mae2d(at: Sequence[Any], dim: int) -> Row:
    """MAE, diffusers: meshgrid(grid_w, grid_h), "here w goes first"; half of the channels each."""
    y, x = at
    need(dim % 2 == 0, "embed_dim must be divisible by 2")
    return from_grid(x, dim // 2) + from_grid(y, dim // 2)


def hf2d(at: Sequence[Any], dim: int) -> Row:
    """transformers: cat([emb_h.sin(), emb_h.cos(), emb_w.sin(), emb_w.cos()])."""
    need(dim % 4 == 0, "embed_dim must be divisible by 4")
    return sin_cos_blocks(at, dim // 4)


def bigvision2d(at: Sequence[Any], dim: int) -> Row:
    """big_vision: omega = arange(width // 4) / (width // 4 - 1); [sin x, cos x, sin y, cos y]."""
    need(dim % 4 == 0, "width must be a multiple of 4")
    y, x = at
    return [f(c * power(i, dim // 4 - 1)) for c in (x, y) for f in (MP.sin, MP.cos) for i in range(dim // 4)]


def timm2d(at: Sequence[Any], dim: int) -> Row:
    """timm: stack([sin(pos2), cos(pos2)], dim=1) of pos2 (axis, band): function outermost, then axis, then band."""
    need(dim % 4 == 0, "embed dimension must be divisible by 4")
    return [f(c * power(i, dim // 4)) for f in (MP.sin, MP.cos) for c in at for i in range(dim // 4)]


def cogvideo3d(at: Sequence[Any], dim: int) -> Row:
    """diffusers get_3d_sincos_pos_embed: a quarter for time, three quarters for mae2d of the place."""
    need(dim % 4 == 0, "embed_dim must be divisible by 4")
    t, y, x = at
    return from_grid(t, dim // 4) + mae2d((y, x), 3 * dim // 4)


def t2t2d(at: Sequence[Any], dim: int) -> Row:
    """add_timing_signal_nd: the signal of axis a starts at channel a * 2 * K, K = channels // (2 n)."""
    timescales = dim // (2 * len(at))
    need(timescales > 0, "not a single timescale: nothing would be added")
    row = [MP.mpf(0)] * dim
    for axis, coordinate in enumerate(at):
        for i in range(timescales):
            angle = coordinate * power(i, timescales - 1)
            row[2 * timescales * axis + i] = MP.sin(angle)
            row[2 * timescales * axis + timescales + i] = MP.cos(angle)
    return row


def axis_of_multidim(p: Any, channels: int) -> Row:
    """get_emb of the angles p / 10000^(j / channels), j = 0, 2, 4, ...: sin and cos concatenated."""
    return [f(p * power(j, channels)) for j in range(0, channels, 2) for f in (MP.sin, MP.cos)]


def multidim(at: Sequence[Any], dim: int) -> Row:
    """PositionalEncoding2D and 3D: channels = ceil(dim / (2 n)) * 2 for each axis; truncated to dim."""
    channels = -(-dim // (2 * len(at))) * 2
    return [value for coordinate in at for value in axis_of_multidim(coordinate, channels)][:dim]


def detr2d(at: Sequence[Any], dim: int) -> Row:
    """DETR: dim_t = 10000^(2 (j // 2) / F), F = dim / 2; cat((pos_y, pos_x)). The positions count from 1."""
    need(dim % 4 == 0, "torch.stack of 0::2 and 1::2 needs halves of one size")
    angles = [(j, c / BASE ** (MP.mpf(2 * (j // 2)) / (dim // 2))) for c in at for j in range(dim // 2)]
    return [MP.cos(angle) if j % 2 else MP.sin(angle) for j, angle in angles]


def fairseq2(at: Sequence[Any], dim: int, widths: Sequence[int]) -> Row:
    """_fill_sin_freq_table, correction=0, on slices of one table; the last may be too short for its cosines."""
    need(dim % 2 == 0, "encoding_dim must be even")
    row: Row = []
    for coordinate, width in zip(at, widths, strict=True):
        count = width // 2
        need(dim - len(row) >= count, "a slice too short for its sines: fairseq2 then overwrites its table")
        row += [MP.sin(coordinate * power(i, count)) for i in range(count)]
        row += [MP.cos(coordinate * power(i, count)) for i in range(count)]
    return row[:dim]


def fairseq2_2d(at: Sequence[Any], dim: int) -> Row:
    return fairseq2(at, dim, [2 * -(-dim // 4)] * 2)


def fairseq2_3d(at: Sequence[Any], dim: int) -> Row:
    """uniform_power=False: half for depth, a quarter each for height and width, all rounded up."""
    return fairseq2(at, dim, [2 * -(-dim // 4), 2 * -(-dim // 8), 2 * -(-dim // 8)])


def monai2d(at: Sequence[Any], dim: int) -> Row:
    """MONAI: cat([sin(out_w), cos(out_w), sin(out_h), cos(out_h)]), omega = 1 / 10000^(i / (dim / 4))."""
    need(dim % 4 == 0, "embed dimension must be divisible by 4")
    h, w = at
    return sin_cos_blocks((w, h), dim // 4)


def monai3d(at: Sequence[Any], dim: int) -> Row:
    """MONAI, grid (h, w, d): w, then h, then d."""
    need(dim % 6 == 0, "embed dimension must be divisible by 6")
    h, w, d = at
    return sin_cos_blocks((w, h, d), dim // 6)


def sin_cos_blocks(coordinates: Sequence[Any], bands: int) -> Row:
    return [f(c * power(i, bands)) for c in coordinates for f in (MP.sin, MP.cos) for i in range(bands)]


# names

FORMULAS: dict[str, tuple[Callable[..., Row], int]] = {  # the row at a position; number of coordinates
    "paper": (paper, 1),
    "paper_concat": (paper_concat, 1),
    "own_index": (own_index, 1),
    "doubled_index": (doubled_index, 1),
    "t2t": (t2t, 1),
    "fairseq": (t2t, 1),
    "ctranslate2": (t2t, 1),
    "musicgen": (musicgen, 1),
    "ddpm": (t2t, 1),
    "adm": (adm, 1),
    "flux": (flux, 1),
    "unit": (unit, 1),
    "nerf": (nerf, 1),
    "tcnn": (tcnn, 1),
    "multidim1d": (multidim1d, 1),
    "mae2d": (mae2d, 2),
    "hf2d": (hf2d, 2),
    "bigvision2d": (bigvision2d, 2),
    "timm2d": (timm2d, 2),
    "cogvideo3d": (cogvideo3d, 3),
    "t2t2d": (t2t2d, 2),
    "multidim2d": (multidim, 2),
    "multidim3d": (multidim, 3),
    "detr2d": (detr2d, 2),
    "fairseq2_2d": (fairseq2_2d, 2),
    "fairseq2_3d": (fairseq2_3d, 3),
    "monai2d": (monai2d, 2),
    "monai3d": (monai3d, 3),
}
# Default position of the first row, or of the first row and column.
STARTS = {"fairseq": 2, "ctranslate2": 1, "detr2d": 1}


def row(name: str, position: Any, dim: int) -> Row:
    """The channels of one position (a tuple for a grid or a point), to about 50 digits."""
    formula, _ = FORMULAS[name]
    exact = tuple(map(number, position)) if isinstance(position, (tuple, list)) else number(position)
    return formula(exact, dim)

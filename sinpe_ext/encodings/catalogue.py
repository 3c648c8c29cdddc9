"""Conventions by name. A convention is an entry of `CATALOGUE` or `GRIDS`; a new one needs no other code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import index
from typing import Any, Literal, NamedTuple, overload

from .encoding import Encoding
from .grid import MAX_AXES, GridEncoding, of_axis
from .grid_catalogue import GRIDS
from .values import MAX_DIM, integer


class Convention(NamedTuple):
    """The encoding that a name stands for, and its documentation.

    Attributes:
        description: one line.
        users: papers, libraries and models that use it.
        formula: the channels at position p, with d = dim, h = d // 2 and i the index of a pair.
        code: the lines by which a reader can recognize this convention in existing code.
        fields: the fields of `Encoding` that differ from the defaults; a value that is a function is called with dim.
        arrangement: `GridEncoding.arrangement` for axes=n; None if the convention does not have that argument.
    """

    description: str
    users: str
    formula: str
    code: str
    fields: Mapping[str, Any | Callable[[int], Any]]
    arrangement: str | None = None


_T2T = {"layout": "sin_cos", "shift": 1, "odd": "pad"}
_ADM = {"layout": "cos_sin", "odd": "pad"}
_OCTAVES = {"base": 0.5, "exponent_dim": 2}  # 0.5 ** -i = 2 ** i

CATALOGUE: dict[str, Convention] = {
    "paper": Convention(
        "sin and cos alternate, frequency 10000^(-2i/d)",
        "Vaswani et al. 2017, the PyTorch tutorial, The Annotated Transformer, ESPnet, WeNet, SpeechBrain, KerasHub, "
        "xFormers, DistilBERT",
        "[2i] = sin(p w_i), [2i+1] = cos(p w_i), w_i = 10000^(-2i/d)",
        "torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d)); pe[:, 0::2] = sin, pe[:, 1::2] = cos",
        {},
    ),
    "paper_concat": Convention(
        "the paper's frequencies, all sin then all cos",
        "Marian and CTRL in Hugging Face transformers, x-transformers",
        "[i] = sin(p w_i), [ceil(d/2)+i] = cos(p w_i), w_i = 10000^(-2i/d)",
        "np.power(10000, 2 * (j // 2) / dim); out[:, :sentinel] = sin(pos[:, 0::2]), out[:, sentinel:] = cos",
        {"layout": "sin_cos"},
    ),
    "own_index": Convention(
        "sin and cos alternate, each channel j with its own frequency 10000^(-j/d)",
        "tutorials that use the odd index for the cos",
        "[j] = sin(p w_j) for even j, cos(p w_j) for odd j, w_j = 10000^(-j/d)",
        "np.power(10000, odd / d) with odd = np.arange(1, d, 2) under the cos",
        {"cos_frequency": "own"},
    ),
    "doubled_index": Convention(
        "sin and cos alternate, each channel j with its own frequency 10000^(-2j/d); exponent_dim for another d",
        "tutorials that double an index that already steps by two",
        "[j] = sin(p w_j) for even j, cos(p w_j) for odd j, w_j = 10000^(-2j/d), or with exponent_dim in place of d",
        "torch.pow(10000, 2 * even_index / d) with even_index = torch.arange(0, n, 2)",
        {"cos_frequency": "own", "exponent_scale": 2},
    ),
    "t2t": Convention(
        "all sin then all cos, frequency 10000^(-i/(d/2-1)), odd d ends in a zero channel",
        "Tensor2Tensor, Whisper, AllenNLP, Texar, fairseq2, OpenNMT-py (SinusoidalConcat), Marian",
        "[i] = sin(p w_i), [h+i] = cos(p w_i), w_i = 10000^(-i/(h-1))",
        "math.log(10000) / (half_dim - 1); torch.cat([torch.sin(a), torch.cos(a)], dim=1)",
        _T2T,
    ),
    "fairseq": Convention(
        "t2t with the first position at 2 (padding_idx + 1)",
        "fairseq, M2M100, Speech2Text, FSMT",
        "t2t at p = 2, 3, ...",
        "embed_positions with self.offset = 2, or make_positions(ids, padding_idx) with padding_idx = 1",
        {**_T2T, "start": 2},
    ),
    "ctranslate2": Convention(
        "t2t with the first position at 1",
        "CTranslate2",
        "t2t at p = 1, 2, ...",
        "positions[i] = i + 1 before log_timescale_increment",
        {**_T2T, "start": 1},
    ),
    "musicgen": Convention(
        "t2t with all cos before all sin",
        "MusicGen",
        "[i] = cos(p w_i), [h+i] = sin(p w_i), w_i = 10000^(-i/(h-1))",
        "math.log(10000) / (half_dim - 1); torch.cat([torch.cos(a), torch.sin(a)], dim=1)",
        {**_T2T, "layout": "cos_sin"},
    ),
    "ddpm": Convention(
        "t2t's frequencies on diffusion timesteps: all sin then all cos",
        "DDPM, diffusers (flip_sin_to_cos=False, downscale_freq_shift=1)",
        "[i] = sin(t w_i), [h+i] = cos(t w_i), w_i = 10000^(-i/(h-1))",
        "get_timestep_embedding(t, d); SinusoidalPosEmb with math.log(10000) / (half_dim - 1)",
        _T2T,
    ),
    "adm": Convention(
        "all cos then all sin, frequency 10000^(-i/(d//2)), odd d ends in a zero channel",
        "guided-diffusion, DiT, diffusers (flip_sin_to_cos=True, downscale_freq_shift=0)",
        "[i] = cos(t w_i), [h+i] = sin(t w_i), w_i = 10000^(-i/h)",
        "timestep_embedding(t, d, max_period=10000); Timesteps(d, flip_sin_to_cos=True, downscale_freq_shift=0)",
        _ADM,
    ),
    "flux": Convention(
        "adm with timesteps in 0..1 times 1000",
        "FLUX",
        "adm at p = 1000 t",
        "timestep_embedding(t, d, time_factor=1000.0)",
        {**_ADM, "position_scale": 1000},
    ),
    "unit": Convention(
        "the paper's encoding divided by sqrt(d)",
        "NeMo (FixedPositionalEncoding)",
        "paper / sqrt(d)",
        "pos_enc.div_(math.sqrt(hidden_size))",
        {"amplitude": lambda dim: math.isqrt((1 << 400) // dim) / (1 << 200)},  # correctly rounded, unlike 1 / sqrt
    ),
    "nerf": Convention(
        "sin and cos alternate, frequency 2^i, without the raw input; axes=3 for points (x, y, z)",
        'NeRF\'s code and nerf-pytorch, torch-ngp (freqencoder), PyTorch3D (HarmonicEmbedding: layout="sin_cos", '
        'arrangement="grouped")',
        "[2i] = sin(2^i p), [2i+1] = cos(2^i p); of n coordinates side by side: sin of all, cos of all, for each i",
        "freq_bands = 2. ** torch.linspace(0., max_freq, N_freqs); sin(x * freq), cos(x * freq) for each freq",
        _OCTAVES,
        "interleaved",
    ),
    "tcnn": Convention(
        "sin and cos alternate, frequency 2^i pi; axes=3 for points, one coordinate after the other",
        "tiny-cuda-nn (Frequency), the NeRF paper's formula",
        "[2i] = sin(2^i pi p), [2i+1] = cos(2^i pi p); of n coordinates one after the other",
        '"otype": "Frequency", "n_frequencies": d / 2',
        {**_OCTAVES, "unit": "half_turn"},
        "blocks",
    ),
    "multidim1d": Convention(
        "paper, odd d as the first d channels of d + 1",
        "positional-encodings (PositionalEncoding1D)",
        "paper of 2 ceil(d/2) channels, the first d of them",
        "PositionalEncoding1D(d); channels = int(np.ceil(channels / 2) * 2)",
        {"odd": "round"},
    ),
}
NAMES = (*CATALOGUE, *GRIDS)


# The keys of `CATALOGUE` and of `GRIDS`, for type checkers.
_RowName = Literal[
    "paper", "paper_concat", "own_index", "doubled_index", "t2t", "fairseq", "ctranslate2", "musicgen", "ddpm",
    "adm", "flux", "unit", "nerf", "tcnn", "multidim1d",
]  # fmt: skip
_GridName = Literal[
    "mae2d", "hf2d", "bigvision2d", "timm2d", "cogvideo3d", "t2t2d", "multidim2d", "multidim3d", "detr2d",
    "fairseq2_2d", "fairseq2_3d", "monai2d", "monai3d",
]  # fmt: skip


@overload
def convention(name: _GridName, dim: int, **fields: Any) -> GridEncoding: ...
@overload
def convention(name: str, dim: int, *, axes: int, **fields: Any) -> GridEncoding: ...
@overload
def convention(name: _RowName, dim: int, **fields: Any) -> Encoding: ...
@overload
def convention(name: str, dim: int, **fields: Any) -> Encoding | GridEncoding: ...
def convention(name: str, dim: int, **fields: Any) -> Encoding | GridEncoding:
    """Returns the encoding of a library or paper by name.

    Equivalent to, for convention("t2t", 512, start=3)::

        Encoding(512, layout="sin_cos", shift=1, odd="pad", start=3)

    Args:
        name: a key of `conventions()`, in upper or lower case, with - or _.
        dim: number of channels.
        fields: fields of `Encoding` that override those of the convention. For a grid they override those of every
            axis, where a tuple has one value per axis; order and arrangement of the `GridEncoding` can be overridden as
            well. "nerf" and "tcnn" have the additional argument axes=n, for points with n coordinates.
    Returns:
        an Encoding; a GridEncoding for conventions of images, videos and volumes, and with axes=n.

    Raises:
        TypeError: a name that is not a string, or an unknown field.
        ValueError: an unknown name, a field out of range, or a dim that the library of the convention does not support.
    """
    key = resolve(name)
    dim = index(integer("dim", dim, 1, MAX_DIM, "pass the number of channels"))  # makes an int of a SymInt
    if key in GRIDS:
        return _override_fields(GRIDS[key].build(key, dim), fields)
    entry = CATALOGUE[key]
    if entry.arrangement and "axes" in fields:
        return _point_encoding(entry, key, dim, dict(fields))
    defaults = {key: value(dim) if callable(value) else value for key, value in entry.fields.items()}
    return Encoding(dim, **{**defaults, **fields})


def conventions() -> dict[str, str]:
    """Returns the names that `convention` accepts, each with a one-line description.

    Example:
        >>> sinpe.conventions()["unit"]
        "the paper's encoding divided by sqrt(d); used by NeMo (FixedPositionalEncoding)"

    Returns:
        a new dict from name to description, with the libraries and papers that use the convention; one-dimensional
        conventions first, then those of grids.
    """
    entries: dict[str, Any] = {**CATALOGUE, **GRIDS}
    return {name: f"{entry.description}; used by {entry.users}" for name, entry in entries.items()}


def resolve(name: str, argument: str = "name") -> str:
    """Checks the name of a convention, given as this argument, and returns it as spelled in the catalogue. Raises
    TypeError, ValueError."""
    advice = f"pass one of {', '.join(NAMES)}"
    if not isinstance(name, str):
        raise TypeError(f"{argument}: expected the name of a convention, got {type(name).__name__}; {advice}")
    key = name.lower().replace("-", "_")
    if key not in NAMES:
        raise ValueError(f'{argument}: expected the name of a convention, got "{name}"; {advice}')
    return key


def is_grid(name: str) -> bool:
    """Whether a name given as `encoding` is that of a grid. Raises as `resolve`."""
    return resolve(name, "encoding") in GRIDS


def _override_fields(grid: GridEncoding, fields: dict[str, Any]) -> GridEncoding:
    """A copy of a grid with fields of its own and of its axes changed.

    All are changed in one step because some are valid only together, as arrangement="grouped" and layout="sin_cos".
    """
    if not fields:
        return grid
    grid_fields = {name: fields[name] for name in ("order", "arrangement") if name in fields}
    of_axes = {name: value for name, value in fields.items() if name not in grid_fields}
    axes = (axis.replace(**of_axis(of_axes, k, grid.ndim)) for k, axis in enumerate(grid.axes))
    return grid.replace(axes=tuple(axes), **grid_fields)


def _point_encoding(entry: Convention, name: str, dim: int, fields: dict[str, Any]) -> GridEncoding:
    """The encoding of points with n coordinates, n = fields["axes"], of a one-dimensional convention."""
    number = integer("axes", fields.pop("axes"), 1, MAX_AXES, "pass the number of coordinates of a point")
    if dim % (2 * number):
        raise ValueError(
            f"dim: expected a multiple of {2 * number} for {name} of {number} coordinates, got {dim}; pass 2 * "
            f"{number} * the number of frequencies"
        )
    axis_fields: dict[str, Any] = dict(entry.fields)
    axes = (Encoding(dim // number, **axis_fields),) * number
    return _override_fields(GridEncoding(axes, arrangement=entry.arrangement or "blocks"), fields)

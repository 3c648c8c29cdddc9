"""Conventions for images, videos and volumes by name; `catalogue.convention` looks them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .encoding import Encoding
from .grid import GridEncoding


class GridConvention(NamedTuple):
    """The grid encoding that a name stands for; the fields are those of `Convention`, with C = dim.

    build: called with the name (for error messages) and the number of channels.
    """

    description: str
    users: str
    formula: str
    code: str
    build: Callable[[str, int], GridEncoding]


def _divided_by(name: str, dim: int, of: int) -> int:
    """dim / of. Raises ValueError if dim is not a multiple, which the library of the convention does not support."""
    if dim % of:
        raise ValueError(
            f"dim: expected a multiple of {of} for {name}, got {dim}; pass a multiple, as its library requires"
        )
    return dim // of


def _equal_axes(number: int, fields: dict[str, Any], **of_grid: Any) -> Callable[[str, int], GridEncoding]:
    """Axes with the same, even number of channels."""

    def build(name: str, dim: int) -> GridEncoding:
        width = 2 * _divided_by(name, dim, 2 * number)
        return GridEncoding((Encoding(width, **fields),) * number, **of_grid)

    return build


def _rounded_axes(number: int) -> Callable[[str, int], GridEncoding]:
    """positional-encodings: each axis has dim / number channels rounded up to an even number; the excess is cut off."""

    def build(name: str, dim: int) -> GridEncoding:
        width = 2 * -(-dim // (2 * number))
        return GridEncoding((Encoding(width, odd="round"),) * number, dim=dim)

    return build


def _t2t(number: int) -> Callable[[str, int], GridEncoding]:
    """add_timing_signal_nd: each axis has dim / number channels rounded down to an even number; the rest is zero."""

    def build(name: str, dim: int) -> GridEncoding:
        width = 2 * (dim // (2 * number))
        if not width:
            raise ValueError(f"dim: expected at least {2 * number} for {name}, got {dim}; pass more channels")
        return GridEncoding((Encoding(width, layout="sin_cos", shift=1),) * number, dim=dim)

    return build


def _cogvideo(name: str, dim: int) -> GridEncoding:
    """CogVideoX: a quarter of the channels for time, three eighths for each spatial axis, columns before rows."""
    quarter = 4 * _divided_by(name, dim, 16)
    time, place = Encoding(quarter, layout="sin_cos"), Encoding(3 * quarter // 2, layout="sin_cos")
    return GridEncoding((time, place, place), order=(0, 2, 1))


def _fairseq2(*shares: int) -> Callable[[str, int], GridEncoding]:
    """fairseq2: an axis of share k has 2 ceil(C/k) channels; the excess is cut off from the cos of the last axis."""

    def widths_of(dim: int) -> list[int]:
        return [2 * -(-dim // share) for share in shares]

    def fits(dim: int) -> bool:
        widths = widths_of(dim)
        return dim % 2 == 0 and all(dim - sum(widths[:k]) >= width // 2 for k, width in enumerate(widths))

    def build(name: str, dim: int) -> GridEncoding:
        if not fits(dim):
            remedy = next(larger for larger in range(dim, dim + 9) if fits(larger))  # a multiple of 8 always does
            raise ValueError(
                f"dim: expected an even number that leaves each axis all of its sines for {name}, got {dim}, which the "
                f"library {'refuses' if dim % 2 else 'would write past its table for'}; pass {remedy}"
            )
        return GridEncoding([Encoding(width, layout="sin_cos") for width in widths_of(dim)], dim=dim)

    return build


_HALVES = {"layout": "sin_cos"}

GRIDS: dict[str, GridConvention] = {
    "mae2d": GridConvention(
        "columns first then rows, each all sin then all cos, frequency 10000^(-i/(C/4))",
        "MAE, DiT, diffusers (get_2d_sincos_pos_embed), PixArt, SD3",
        "[sin_x | cos_x | sin_y | cos_y], w_i = 10000^(-i/(C/4)), x the column",
        "get_2d_sincos_pos_embed; grid = np.meshgrid(grid_w, grid_h)  # here w goes first",
        _equal_axes(2, _HALVES, order=(1, 0)),
    ),
    "hf2d": GridConvention(
        "rows first then columns, each all sin then all cos, frequency 10000^(-i/(C/4))",
        "Hugging Face transformers (build_2d_sinusoidal_position_embedding), timm (interleave_sin_cos=True), MoCo v3",
        "[sin_y | cos_y | sin_x | cos_x], w_i = 10000^(-i/(C/4)), y the row",
        "torch.cat([out_h.sin(), out_h.cos(), out_w.sin(), out_w.cos()], dim=1)",
        _equal_axes(2, _HALVES),
    ),
    "bigvision2d": GridConvention(
        "columns first then rows, each all sin then all cos, frequency 10000^(-i/(C/4-1))",
        "big_vision and vit-pytorch (posemb_sincos_2d)",
        "[sin_x | cos_x | sin_y | cos_y], w_i = 10000^(-i/(C/4-1)), x the column",
        "omega = jnp.arange(width // 4) / (width // 4 - 1)",
        _equal_axes(2, {**_HALVES, "shift": 1}, order=(1, 0)),
    ),
    "timm2d": GridConvention(
        "sin of rows, sin of columns, cos of rows, cos of columns, frequency 10000^(-i/(C/4))",
        "timm (build_sincos2d_pos_embed)",
        "[sin_y | sin_x | cos_y | cos_x], w_i = 10000^(-i/(C/4)), y the row",
        "build_sincos2d_pos_embed without interleave_sin_cos; torch.stack([sin(pos2), cos(pos2)], dim=1).flatten(1)",
        _equal_axes(2, _HALVES, arrangement="grouped"),
    ),
    "cogvideo3d": GridConvention(
        "a quarter of the channels for time, the rest mae2d, each all sin then all cos",
        "CogVideoX, diffusers (get_3d_sincos_pos_embed)",
        "[sin_t | cos_t] of C/4 channels, then mae2d of 3C/4",
        "embed_dim_spatial = 3 * embed_dim // 4; embed_dim_temporal = embed_dim // 4",
        _cogvideo,
    ),
    "t2t2d": GridConvention(
        "rows then columns, each all sin then all cos, frequency 10000^(-i/(C//4-1)); channels left over are zero",
        "Tensor2Tensor (add_timing_signal_nd)",
        "[sin_y | cos_y | sin_x | cos_x | 0], w_i = 10000^(-i/(K-1)), K = C // 4",
        "num_timescales = channels // (num_dims * 2)",
        _t2t(2),
    ),
    "multidim2d": GridConvention(
        "first axis then second, sin and cos alternate, frequency 10000^(-2i/c), c = 2 ceil(C/4); cut to C",
        "positional-encodings (PositionalEncoding2D)",
        "[sin_y cos_y ... | sin_x cos_x ...], w_i = 10000^(-2i/c), c = 2 ceil(C/4) for each axis, the first C channels",
        "channels = int(np.ceil(org_channels / 4) * 2)",
        _rounded_axes(2),
    ),
    "multidim3d": GridConvention(
        "three axes in turn, sin and cos alternate, frequency 10000^(-2i/c), c = 2 ceil(C/6); cut to C",
        "positional-encodings (PositionalEncoding3D)",
        "[sin_0 cos_0 ... | sin_1 cos_1 ... | sin_2 cos_2 ...], w_i = 10000^(-2i/c), c = 2 ceil(C/6), cut to C",
        "channels = int(np.ceil(org_channels / 6) * 2)",
        _rounded_axes(3),
    ),
    "detr2d": GridConvention(
        "rows then columns counted from 1, sin and cos alternate, frequency 10000^(-2i/(C/2))",
        "DETR and its descendants (PositionEmbeddingSine), mmdetection, SAM 2",
        "[sin_y cos_y ... | sin_x cos_x ...], w_i = 10000^(-2i/(C/2)), y and x from 1 (cumsum of the mask)",
        "y_embed = not_mask.cumsum(1); dim_t = temperature ** (2 * (dim_t // 2) / num_pos_feats)",
        _equal_axes(2, {"start": 1}),
    ),
    "fairseq2_2d": GridConvention(
        "rows then columns, each all sin then all cos, 2 ceil(C/4) channels an axis, cut to C",
        "fairseq2 (Sinusoidal2dPositionEncoder)",
        "[sin_y | cos_y | sin_x | cos_x], w_i = 10000^(-2i/c), c = 2 ceil(C/4) for each axis, the first C channels",
        "Sinusoidal2dPositionEncoder(model_dim, grid_dims)",
        _fairseq2(4, 4),
    ),
    "fairseq2_3d": GridConvention(
        "depth, rows, columns, each all sin then all cos, half of the channels for depth, cut to C",
        "fairseq2 (Sinusoidal3dPositionEncoder)",
        "[sin_d | cos_d | sin_y | cos_y | sin_x | cos_x], w_i = 10000^(-2i/c), c = 2 ceil(C/4), then 2 ceil(C/8) twice",
        "Sinusoidal3dPositionEncoder(model_dim, grid_dims)",
        _fairseq2(4, 8, 8),
    ),
    "monai2d": GridConvention(
        "columns first then rows, each all sin then all cos: the numbers of mae2d",
        "MONAI (build_sincos_position_embedding, spatial_dims=2)",
        "[sin_x | cos_x | sin_y | cos_y], w_i = 10000^(-i/(C/4)), x the second axis",
        "build_sincos_position_embedding(grid_size, embed_dim, spatial_dims=2)",
        _equal_axes(2, _HALVES, order=(1, 0)),
    ),
    "monai3d": GridConvention(
        "second axis, first, third, each all sin then all cos, frequency 10000^(-i/(C/6))",
        "MONAI (build_sincos_position_embedding, spatial_dims=3)",
        "[sin_1 | cos_1 | sin_0 | cos_0 | sin_2 | cos_2], w_i = 10000^(-i/(C/6)), axes 0, 1, 2 of the grid",
        "build_sincos_position_embedding(grid_size, embed_dim, spatial_dims=3)",
        _equal_axes(3, _HALVES, order=(1, 0, 2)),
    ),
}

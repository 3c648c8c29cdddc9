"""diffusers: timesteps, and the patch embeddings of images and videos.

Source: diffusers 0.42, models/embeddings.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..encodings.catalogue import convention
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..functional import add, encode, table
from ..positions import grid
from ..reference.tiles import widest
from .dropin import Candidate, DropIn, Left, has, number, owner, parameters, tensor_of
from .measure import Probe


class TimestepRows(DropIn):
    """Rows of timesteps in float32, for timesteps of any dtype; 16-bit timesteps (FLUX) are taken at their stored
    value."""

    def forward(self, timesteps: Tensor) -> Tensor:
        if timesteps.dim() != 1:
            raise ValueError(f"timesteps: expected shape (batch,), got {tuple(timesteps.shape)}; flatten them")
        # The cast is exact for 16 bits, and for float64 it is what Timesteps does.
        exact = timesteps.dtype == torch.float32 or not timesteps.is_floating_point()
        return encode(timesteps if exact else timesteps.float(), self._sinpe_encoding)


class PatchRows(DropIn):
    """Patches plus the encoding of their positions, with SD3's centred crop of the largest image."""

    pos_embed: Tensor
    pos_embed_max_size: int | None
    patch_size: int
    base_size: int
    interpolation_scale: float
    flatten: bool
    layer_norm: bool
    height: int
    width: int
    proj: Any
    norm: Any

    _sinpe_whole: Any = None  # the grid of the largest image, or of the layer's image size

    def _sinpe_rows(self, name: str, like: Tensor) -> Tensor:
        side = round((like.numel() // like.shape[-1]) ** 0.5)
        rows = table((side, side), self._sinpe_grid((side, side)), flatten=True, dtype=like.dtype, device=like.device)
        return rows.reshape(like.shape)

    def _sinpe_ready(self) -> None:
        usual = self.height if self.pos_embed_max_size is None else self.pos_embed_max_size
        self.__dict__["_sinpe_whole"] = self._sinpe_grid((usual, usual))

    def _sinpe_grid(self, whole: tuple[int, int]) -> GridEncoding:
        """The grid, interpolated to an image of this many patches; always the same object for the usual size."""
        usual = self.height if self.pos_embed_max_size is None else self.pos_embed_max_size
        if self._sinpe_whole is not None and whole == (usual, usual):
            return cast(GridEncoding, self._sinpe_whole)
        return stretched(self._sinpe_encoding, whole, self.base_size, self.interpolation_scale)

    def _sinpe_shape(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The numbers of patches of an image, and of the image from which it is cropped."""
        shape = height // self.patch_size, width // self.patch_size
        if self.pos_embed_max_size is None:
            return shape, shape
        for side, name in zip(shape, ("height", "width"), strict=True):
            if side > self.pos_embed_max_size:
                raise ValueError(
                    f"{name}: expected at most pos_embed_max_size={self.pos_embed_max_size} patches, got {side}; pass "
                    "a smaller picture"
                )
        return shape, (self.pos_embed_max_size, self.pos_embed_max_size)

    def cropped_pos_embed(self, height: int, width: int) -> Tensor:
        if self.pos_embed_max_size is None:
            raise ValueError("pos_embed_max_size: expected a number of patches, got None; there is nothing to crop")
        shape, whole = self._sinpe_shape(height, width)
        rows = table(
            shape, self._sinpe_grid(whole), start=_corner(shape, whole), flatten=True, device=self.pos_embed.device
        )
        return rows.unsqueeze(0).to(self.pos_embed.dtype)

    def forward(self, latent: Tensor) -> Tensor:
        shape, whole = self._sinpe_shape(*latent.shape[-2:])
        patches = self.proj(latent).flatten(2).transpose(1, 2)
        if self.layer_norm:
            patches = self.norm(patches)
        usual = self.height if self.pos_embed_max_size is None else self.pos_embed_max_size
        if torch.compiler.is_compiling() and whole != (usual, usual):
            # An Encoding cannot be created in a graph, so the coordinates are scaled instead.
            factors = [self.base_size / length / self.interpolation_scale for length in whole]
            wide = widest(latent.device)
            coordinates = grid(shape, device=latent.device).to(wide) * torch.tensor(factors, dtype=wide).to(
                latent.device
            )
            return add(patches, self._sinpe_encoding, positions=coordinates.flatten(0, 1), grid_shape=shape)
        return add(patches, self._sinpe_grid(whole), start=_corner(shape, whole), grid_shape=shape)


def _corner(shape: tuple[int, int], whole: tuple[int, int]) -> tuple[int, ...]:
    """The first patch of a centred crop."""
    return tuple((largest - length) // 2 for largest, length in zip(whole, shape, strict=True))


@lru_cache(maxsize=64)
def stretched(encoding: GridEncoding, whole: tuple[int, int], base_size: int, scale: float) -> GridEncoding:
    """A grid interpolated to an image of `whole` patches, cached."""
    return encoding.interpolated(whole, base_size=base_size, scale=scale)


class VideoRows(DropIn):
    """Text tokens without an encoding, then the patches of a video. The module keeps its forward; only the method that
    makes the rows is replaced."""

    patch_size: int
    temporal_compression_ratio: int
    max_text_seq_length: int
    sample_height: int
    sample_width: int
    sample_frames: int

    def _sinpe_rows(self, name: str, like: Tensor) -> Tensor:
        rows = self._get_positional_embeddings(self.sample_height, self.sample_width, self.sample_frames, like.device)
        return rows.to(like.dtype)

    def _get_positional_embeddings(
        self, sample_height: int, sample_width: int, sample_frames: int, device: torch.device | None = None
    ) -> Tensor:
        frames = (sample_frames - 1) // self.temporal_compression_ratio + 1
        shape = frames, sample_height // self.patch_size, sample_width // self.patch_size
        return table(
            shape, self._sinpe_encoding, extra_tokens=self.max_text_seq_length, flatten=True, device=device
        ).unsqueeze(0)


def diffusion_of(module: nn.Module) -> list[Candidate] | Left | None:
    """Candidates for a module of diffusers; None for any other."""
    names = parameters(module)
    if names == ("timesteps",) and has(module, "num_channels", "flip_sin_to_cos", "downscale_freq_shift"):
        return _timesteps(module)
    if names == ("latent",) and has(module, "pos_embed", "pos_embed_max_size", "base_size", "interpolation_scale"):
        return _patches(module)
    if owner(module).__name__ == "CogVideoXPatchEmbed":
        return _videos(module)
    return None


def _timesteps(module: Any) -> list[Candidate] | Left | None:
    """Candidates for Timesteps."""
    if not (number(module.num_channels) and number(module.downscale_freq_shift)):
        return None
    scale = getattr(module, "scale", 1)
    encoding = Encoding(
        module.num_channels,
        layout="cos_sin" if module.flip_sin_to_cos else "sin_cos",
        shift=module.downscale_freq_shift,
        odd="pad",
        position_scale=scale,
    )
    # The range that models use: 1000 steps, or 0 to 1 if there is a scale.
    most = max(1.0, abs(float(scale)))
    fractions = torch.tensor([0.0, 0.5, 1.0, 1.75, 3.0]) / most
    steps = torch.arange(1001.0) / most
    probes = [Probe((fractions,), {}, 3.0 / most), Probe((steps,), {}, 1000.0 / most)]
    # 16-bit timesteps at their stored values, some of which are slightly larger than 3 / most.
    probes += [
        Probe((fractions.to(dtype),), {}, 4.0 / most) for dtype in (torch.bfloat16, torch.float16, torch.float64)
    ]
    probes += [Probe((steps[::111].long(),), {}, 1000.0 / most)]
    return [Candidate(TimestepRows, encoding, (), probes, {}, "rows of timesteps")]


def _patches(module: Any) -> list[Candidate] | Left | None:
    """Candidates for PatchEmbed."""
    pos_embed = tensor_of(module, "pos_embed")
    if pos_embed is None:
        return None  # created without a pos_embed
    if pos_embed.requires_grad:
        return Left("its pos_embed is trained (requires_grad=True): freeze it first if it is not")
    if not getattr(module, "flatten", False):
        return Left("it adds its rows to pictures that are not flattened")
    largest, rows = module.pos_embed_max_size, pos_embed.numel() // pos_embed.shape[-1]
    if largest is None and (module.height != module.width or rows != module.height * module.width):
        return Left(f"its {rows} rows are of a square picture, its patches {module.height} x {module.width}")
    encoding = convention("mae2d", pos_embed.shape[-1])
    weight = module.proj.weight
    generator = torch.Generator().manual_seed(0)

    def latent(height: int, width: int) -> Probe:
        shape = (2, weight.shape[1], height * module.patch_size, width * module.patch_size)
        values = torch.randn(shape, generator=generator).to(weight) * 0.1
        # diffusers computes coordinates, and whole tables of other sizes, in float32.
        return Probe((values,), {}, float(module.base_size / module.interpolation_scale + 1), 2.0)

    most = largest or module.height
    sizes = {(min(module.height, most), min(module.width, most)), (most, max(1, most // 2)), (max(1, most // 3), most)}
    sizes = {(min(height, 48), min(width, 48)) for height, width in sizes} if largest else sizes
    probes = [latent(*size) for size in sorted(sizes)]
    return [Candidate(PatchRows, encoding, ("pos_embed",), probes, {}, "patches + rows")]


def _videos(module: Any) -> list[Candidate] | Left | None:
    """Candidates for CogVideoXPatchEmbed."""
    if not has(module, "_get_positional_embeddings", "spatial_interpolation_scale", "temporal_interpolation_scale"):
        return None
    if not (module.use_positional_embeddings or module.use_learned_positional_embeddings):
        return None
    spatial, temporal = module.spatial_interpolation_scale, module.temporal_interpolation_scale
    encoding = convention("cogvideo3d", module.embed_dim).with_axes(
        position_scale=tuple(_inverse(temporal, spatial, spatial))
    )
    held = tensor_of(module, "pos_embedding")
    if held is not None and held.requires_grad:
        return Left("its pos_embedding is trained (requires_grad=True): freeze it first if it is not")
    weight = module.text_proj.weight
    channels = module.proj.weight.shape[1]
    if module.patch_size_t is not None:
        channels //= module.patch_size**2 * module.patch_size_t
    frames = (module.sample_frames - 1) // module.temporal_compression_ratio + 1
    furthest = float(max(frames / temporal, module.sample_height, module.sample_width))

    def video(frames: int, height: int, width: int) -> Probe:
        text = torch.zeros(1, module.max_text_seq_length, weight.shape[1]).to(weight)
        return Probe((text, torch.zeros(1, frames, channels, height, width).to(weight)), {}, furthest, 2.0)

    probes = [video(frames, module.sample_height, module.sample_width)]
    if not module.use_learned_positional_embeddings:
        probes.append(video(1, 2 * module.patch_size, 3 * module.patch_size))
    tables = ("pos_embedding",) if held is not None else ()
    return [Candidate(VideoRows, encoding, tables, probes, {}, "text, then patches + rows")]


def _inverse(*scales: Any) -> list[Any]:
    """Exact reciprocals."""
    from fractions import Fraction

    return [1 / Fraction(scale) for scale in scales]

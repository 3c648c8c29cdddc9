"""Layers without tables: the tutorial's PositionalEncoding, nn.Embedding with one, and diffusion models' timesteps."""

from .layers import SinusoidalEmbedding, SinusoidalPositionalEncoding
from .timestep import TimestepEncoding

__all__ = ["SinusoidalEmbedding", "SinusoidalPositionalEncoding", "TimestepEncoding"]


def __dir__() -> list[str]:
    return list(__all__)

"""Layers that store no table: positional encoding, embedding with positional encoding, and timestep encoding."""

from .layers import SinusoidalEmbedding, SinusoidalPositionalEncoding
from .timestep import TimestepEncoding

__all__ = ["SinusoidalEmbedding", "SinusoidalPositionalEncoding", "TimestepEncoding"]


def __dir__() -> list[str]:
    return list(__all__)

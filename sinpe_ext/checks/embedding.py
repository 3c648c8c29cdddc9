"""Checks of the arguments that only `embed` has; each message is defined once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..encodings.values import integer
from . import INT64_MAX, INT64_MIN, MAX_RANK, dense_tensor, float_dtype
from .tensors import operand

if TYPE_CHECKING:
    import torch


def weight(value: Any) -> torch.Tensor:
    """Checks `weight` of `embed`: a dense floating-point tensor of shape (num_embeddings, channels)."""
    operand("weight", value)
    float_dtype("weight", value.dtype, "weight after ids, with one of these dtypes")
    if value.dim() != 2:
        raise ValueError(
            f"weight: expected shape (num_embeddings, channels), got {tuple(value.shape)}; pass the weight of an "
            "nn.Embedding"
        )
    return value


def weight_channels(value: torch.Tensor, width: int, dim: int) -> None:
    """Raises ValueError if weight, or the whole of which it is a shard, has another number of channels, `width`, than
    the encoding, `dim`."""
    if width != dim:
        raise ValueError(
            f"weight: expected {dim} channels, those of the encoding, got shape {tuple(value.shape)}; pass an encoding "
            f"of dim {width}"
        )


def ids(value: Any, weight: torch.Tensor) -> torch.Tensor:
    """Checks token ids, which have a sequence dimension; returns int64. `id_range` checks their values."""
    import torch

    dense_tensor("ids", value, may_be_dtensor=True)
    if value.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise TypeError(f"ids: expected an integer tensor, got {value.dtype}; pass int64 ids")
    if not 1 <= value.dim() < MAX_RANK:
        raise ValueError(
            f"ids: expected 1 to {MAX_RANK - 1} dimensions, (sequence,) or (batch, ..., sequence), got shape "
            f"{tuple(value.shape)}; unsqueeze or flatten it"
        )
    if value.device != weight.device:
        raise RuntimeError(
            f"ids: expected the device of weight, {weight.device}, got {value.device}; move it with "
            "ids.to(weight.device)"
        )
    if not torch.compiler.is_compiling() and value._is_zerotensor():
        return value.clone().to(torch.int64)  # torch's embedding crashes on a zero tensor, which has no memory
    return value.long()


def id_range(value: torch.Tensor, num_embeddings: int) -> None:
    """Raises IndexError if an id is not a row of weight; synchronizes with the device."""
    wrong = bad_ids(value, num_embeddings)
    if wrong is not None:
        raise wrong


def bad_ids(value: torch.Tensor, num_embeddings: int) -> IndexError | None:
    """The IndexError to raise if an id is not a row of weight, else None."""
    if not value.numel():
        return None
    import torch

    lowest, highest = torch.stack(value.aminmax()).tolist()
    if lowest >= 0 and highest < num_embeddings:
        return None
    wrong = int(value[(value < 0) | (value >= num_embeddings)][0])
    return IndexError(
        f"ids: expected 0 to {num_embeddings - 1}, rows of weight, got {wrong} (weight has {num_embeddings} rows); "
        "check the tokenizer's vocabulary, or enlarge the embedding"
    )


def has_padding(given: bool) -> None:
    """Raises ValueError for `encode_padding=False` without a padding_idx."""
    if not given:
        raise ValueError("encode_padding: expected a padding_idx with encode_padding=False, got None; pass one")


def masks_padding(padding_idx: int, ids: torch.Tensor) -> None:
    """Checks for `encode_padding=False` that there is a padding_idx (-1: none) and that a mask can be made of ids."""
    has_padding(padding_idx >= 0)
    if ids.dim() > 2:
        raise ValueError(
            f"encode_padding: expected ids of shape (sequence,) or (batch, sequence) with encode_padding=False, "
            f"got {tuple(ids.shape)}; flatten the dimensions between them"
        )


def padding_idx(value: Any, num_embeddings: int) -> int:
    """Checks `padding_idx`; returns it as a non-negative int, or -1 for None."""
    if value is None:
        return -1
    index = integer("padding_idx", value, INT64_MIN, INT64_MAX, "pass the id of the padding token or None")
    if not -num_embeddings <= index < num_embeddings:
        raise ValueError(
            f"padding_idx: expected {-num_embeddings} to {num_embeddings - 1}, a row of weight, got {index}; pass the "
            "id of the padding token"
        )
    return index % num_embeddings

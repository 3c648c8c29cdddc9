"""The public functions `table`, `encode`, `add`, `add_` and `embed`: signatures, and the class that makes a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import torch_state
from .backend import loader
from .encodings.encoding import Encoding
from .encodings.grid import GridEncoding
from .encodings.tracing import run_uncompiled
from .encodings.values import is_dtensor
from .operations import checks, nested, repetition
from .operations import table as tables
from .operations.add import AddArguments, check_add
from .operations.embed import EmbedArguments, check_embed
from .operations.table import EncodeArguments, TableArguments

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

__all__ = ["add", "add_", "embed", "encode", "table"]

_is_compiling = torch.compiler.is_compiling
loader.set_up_repetition = repetition.set_up


def __dir__() -> list[str]:
    return list(__all__)


def table(
    length: int | Sequence[int],
    encoding: Encoding | GridEncoding | str | int | None = None,
    dim: int | None = None,
    *,
    start: int | Sequence[int] = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    out: torch.Tensor | None = None,
    flatten: bool = False,
    extra_tokens: int = 0,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> torch.Tensor:
    """Returns the encodings of `length` consecutive positions, the first of which is encoding.start + start.

    Equivalent to, in real arithmetic and rounded once (default encoding)::

        angle = torch.arange(start, start + length)[:, None] * 10000 ** (-torch.arange(0, dim, 2) / dim)
        out[:, 0::2], out[:, 1::2] = angle.sin(), angle.cos()

    Args:
        length: number of rows, 0 or more; for a grid the lengths of its axes, such as (H, W).
        encoding: an Encoding, a GridEncoding, the name of a convention, or an int as short form of Encoding(int). None:
            Encoding(dim).
        dim: number of channels, for encoding=None and for the name of a convention, as in table(4096, "t2t", 512).
            Must be None for any other encoding.
        start: added to encoding.start; every position must fit into int64. For a grid an int, or one int per axis, such
            as the (top, left) corner of a crop.
        dtype: float32, float64, bfloat16 or float16. None: the dtype of `out`, or float32 without `out`.
        device: device of the result. None: the device of `out`, or the default device without `out`.
        out: output tensor of the shape of the result, with any strides.
        flatten: return the grid points as one dimension, in row-major order.
        extra_tokens: number of rows of zeros to prepend, for example 1 for a class token; implies `flatten` for a grid.
        device_mesh: return a DTensor on this mesh; every rank computes its own shard. `device` and `out` must be None.
        placements: one Shard or Replicate for each dimension of the mesh. None: Replicate.
    Returns:
        (length, dim); for a grid `(*length, dim)`, or (extra_tokens + H * W, dim) where flattened. `out` if given.
    Raises:
        TypeError, ValueError for arguments of the wrong type or value; RuntimeError if elements of `out` overlap in
        memory, or if its dtype or device differs from `dtype` or `device`.
    Accuracy:
        float32 is correctly rounded for abs(position) < 2^31; beyond, it is within 2^-24 absolute and correctly rounded
        except for values close to 0 (docs/accuracy.md). float64 is within 1 ULP up to 2^31. bfloat16 and float16 are
        the float32 value, rounded.
    Source:
        Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """
    if _is_compiling():
        torch_state.check_version()
    arguments = length, encoding, start, dtype, device, out, flatten, extra_tokens, dim
    if device_mesh is not None or placements is not None:
        if device is not None or out is not None:
            raise ValueError("device_mesh: expected device and out to stay None with it, got one of them; leave it out")
        from .distributed import table as sharded

        return sharded.table(TableArguments(*arguments), device_mesh, placements)
    result = None if _is_compiling() else loader.repeat(repetition.TABLE, arguments)
    return tables.table(TableArguments(*arguments)) if result is None else result


def encode(
    positions: torch.Tensor,
    encoding: Encoding | GridEncoding | str | int | None = None,
    dim: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    allow_16bit: bool = False,
) -> torch.Tensor:
    """Returns the encodings of the given positions, which may be integers or fractional.

    Equivalent to, in real arithmetic and rounded once (default encoding)::

        angle = positions[..., None] * 10000 ** (-torch.arange(0, dim, 2) / dim)
        out[..., 0::2], out[..., 1::2] = angle.sin(), angle.cos()

    Args:
        positions: any shape; integers of any width, float32 or float64, used at their exact value. encoding.start is
            not added. For a grid the last dimension holds the coordinates, one per axis.
        encoding: an Encoding, a GridEncoding, the name of a convention, or an int as short form of Encoding(int). None:
            Encoding(dim).
        dim: number of channels, for encoding=None and for the name of a convention, as in encode(t, "ddpm", 320).
            Must be None for any other encoding.
        dtype: float32, float64, bfloat16 or float16.
        allow_16bit: accept float16 and bfloat16 positions and use their stored value; by default they are refused.
    Returns:
        `(*positions.shape, dim)`, for a grid `(*positions.shape[:-1], dim)`, on the device of `positions`; NaN where a
        position is NaN or infinite. A jagged tensor if positions is one (`layout=torch.jagged`).
    Raises:
        TypeError, ValueError for arguments of the wrong type or value.
    Accuracy:
        as `table` for integer positions and for float positions below 2^31 in absolute value; within 2^-24 absolute for
        float positions up to 2^53.
    Gradient:
        for float positions, of any order.
    """
    arguments = positions, encoding, dim, dtype, allow_16bit
    result = None if _is_compiling() else loader.repeat(repetition.ENCODE, arguments)
    if result is not None:
        return result
    if _is_compiling():
        torch_state.check_version()
    if is_dtensor(positions):
        from .distributed import table as sharded

        return sharded.encode(EncodeArguments(*arguments))
    if nested.is_jagged(positions):
        return nested.encode(EncodeArguments(*arguments))
    return tables.encode(EncodeArguments(*arguments))


def add(
    x: torch.Tensor,
    encoding: Encoding | GridEncoding | str | int | None = None,
    *,
    positions: torch.Tensor | None = None,
    start: int | Sequence[int] | torch.Tensor = 0,
    scale: float = 1.0,
    alpha: float | torch.Tensor = 1.0,
    dropout: float = 0.0,
    seed: int | torch.Tensor | torch.Generator | None = None,
    padding_mask: torch.Tensor | None = None,
    seq_dim: int = -2,
    channel_dim: int = -1,
    grid_shape: Sequence[int] | None = None,
    extra_tokens: int = 0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns dropout(scale * x + alpha * PE), in one pass over x, storing neither the encoding nor the mask.

    Equivalent to, with acc = float64 for float64 x and float32 otherwise::

        total = scale * x.to(acc) + alpha * sinpe.table(S, encoding, start=start, dtype=acc)
        torch.nn.functional.dropout(total, dropout).to(x.dtype)               # with the mask that `seed` determines

    Args:
        x: (batch, ..., sequence, channels) or (sequence, channels), float32, float64, bfloat16 or float16, any strides.
            A jagged nested tensor (`layout=torch.jagged`, a prototype feature of torch) is (batch, sequence, channels):
            positions start again in each sequence, and the dropout mask uses the order of x.values()
            (docs/training.md).
        encoding: an Encoding, a GridEncoding, the name of a convention, or an int as short form of Encoding(int). None:
            the paper's encoding with the channels of x.
        positions: (S,) or (B, S), integers, float32 or float64. encoding.start is not added, and `start` must be 0. For
            a jagged x: a jagged tensor (B, S) with the offsets of x.
        start: position of the first row, added to encoding.start: an int, a 0-d integer tensor, or a tensor (B,) with
            one value per sample.
        scale: factor of x.
        alpha: factor of the encoding, a float or a tensor of shape () or (1,).
        dropout: probability that an element of the sum is set to zero; the other elements are divided by the
            probability of being kept. Applied regardless of the training mode of any module. Rounded to a multiple of
            1/65536, but to 0 or 1 only if it is exactly 0 or 1.
        seed: seed of the dropout mask: an int, or an int64 tensor of one element. A torch.Generator: the seed is drawn
            from it. None: the seed is drawn from torch's default generator of the device. No seed is drawn if dropout
            is 0 or 1 or x is empty. The mask is Philox 4x32-10 of the seed and the row-major index of the element in x,
            so it is the same on every backend, for any number of threads, under torch.compile and in the backward pass.
        padding_mask: (S,) or (B, S), bool; rows where it is True are padding and get no encoding. Positions count
            through them, unless `positions` are those of `sinpe_ext.positions.from_padding_mask`.
        seq_dim, channel_dim: dimensions of x that hold the sequence and the channels. positions, start and padding_mask
            are batch-first whatever seq_dim is; the batch is the first remaining dimension of x.
        grid_shape: lengths of the axes of a GridEncoding, if its points are the sequence of x in row-major order,
            (B, H * W, C). None: the axes are dimensions of x, (B, H, W, C), or (B, C, H, W) with channel_dim=1. With a
            grid, `start` may also be one int per axis (the corner of a crop) or a tensor (axes,) or (B, axes);
            `positions` has the coordinates in an additional last dimension, (S, axes) or (B, S, axes), with H, W in
            place of S if x has them; padding_mask is (S,), (B, S), (H, W) or (B, H, W).
        extra_tokens: number of rows at the start of the sequence that get no encoding, for example 1 for a class token;
            positions and padding_mask do not include them.
        out: output tensor of the shape, dtype and device of x; may be x itself.
    Returns:
        a tensor like x, with the strides of torch.empty_like(x). `out` if given.
    Raises:
        TypeError, ValueError, IndexError for arguments of the wrong type, value or shape; RuntimeError for arguments on
        different devices, and for an `out` whose elements overlap in memory, that overlaps a part of x or another
        argument, or whose derivative would be lost: with arguments that require grad, and under torch.func.
    Accuracy:
        the encoding is as accurate as `table`. Each product, the sum, and the kept sum times 1 / (1 - dropout) are
        rounded to acc; the result is then rounded to the dtype of x. A dropped element is +0, even if it was NaN or
        infinite; kept NaN and infinite elements remain NaN and infinite.
    Gradient:
        for x, alpha and float positions, of any order; the backward pass recomputes the mask.
    Source:
        dropout, Srivastava et al. 2014; Philox, Salmon et al. 2011.
    """
    arguments = (x, encoding, positions, start, scale, alpha, dropout, seed, padding_mask,
             seq_dim, channel_dim, grid_shape, extra_tokens, out)  # fmt: skip
    result = None if _is_compiling() else loader.repeat(repetition.ADD, arguments)
    if result is not None:
        return result
    call = add_call(AddArguments(*arguments))
    return call.result() if out is None else call.result_into(out)


def add_(
    x: torch.Tensor,
    encoding: Encoding | GridEncoding | str | int | None = None,
    *,
    positions: torch.Tensor | None = None,
    start: int | Sequence[int] | torch.Tensor = 0,
    scale: float = 1.0,
    alpha: float | torch.Tensor = 1.0,
    dropout: float = 0.0,
    seed: int | torch.Tensor | torch.Generator | None = None,
    padding_mask: torch.Tensor | None = None,
    seq_dim: int = -2,
    channel_dim: int = -1,
    grid_shape: Sequence[int] | None = None,
    extra_tokens: int = 0,
) -> torch.Tensor:
    """In-place version of `add`: writes the result into x and returns x.

    Arguments, accuracy and gradients are those of `add`.

    Equivalent to::

        x.copy_(sinpe.add(x, encoding, ...))

    Raises:
        as `add`; RuntimeError for an x whose elements overlap in memory (as after expand), for another argument that
        overlaps x, and for an x that is a leaf tensor and requires grad.
    """
    arguments = (x, encoding, positions, start, scale, alpha, dropout, seed, padding_mask,
             seq_dim, channel_dim, grid_shape, extra_tokens, x)  # fmt: skip
    result = None if _is_compiling() else loader.repeat(repetition.ADD, arguments)
    if result is not None:
        return result
    return add_call(AddArguments(*arguments)).result_in_place()


def embed(
    ids: torch.Tensor,
    weight: torch.Tensor,
    encoding: Encoding | str | int | None = None,
    *,
    positions: torch.Tensor | None = None,
    start: int | torch.Tensor = 0,
    scale: float = 1.0,
    alpha: float | torch.Tensor = 1.0,
    dropout: float = 0.0,
    seed: int | torch.Tensor | torch.Generator | None = None,
    padding_idx: int | None = None,
    padding_mask: torch.Tensor | None = None,
    sparse: bool = False,
    encode_padding: bool = True,
    seq_dim: int = -1,
) -> torch.Tensor:
    """Returns dropout(scale * weight[ids] + alpha * PE): embedding lookup, encoding and dropout in one pass.

    Equivalent to::

        sinpe.add(torch.nn.functional.embedding(ids, weight, padding_idx, sparse=sparse), encoding, ...)

    Args:
        ids: (batch, ..., sequence) or (sequence,), integers, any strides; or a jagged tensor (batch, sequence).
        weight: (num_embeddings, channels), float32, float64, bfloat16 or float16.
        encoding, positions, start, scale, alpha, dropout, seed: as in `add`, for x of shape `(*ids.shape, channels)`.
        padding_idx: id whose row of weight gets no gradient, as in nn.Embedding; the row itself is used as stored.
        padding_mask: (S,) or (B, S), bool; tokens where it is True are padding and get no encoding; as in `add`.
        sparse: return the gradient of weight as a sparse tensor, as nn.Embedding(sparse=True) does.
        encode_padding: if False, tokens equal to padding_idx get no encoding, as if padding_mask were True for them;
            ids must then be (S,) or (B, S).
        seq_dim: dimension of ids that holds the sequence. positions, start and padding_mask are batch-first whatever
            seq_dim is; the batch is the first remaining dimension.
    Returns:
        `(*ids.shape, channels)` in the dtype of weight; contiguous if ids is.
    Raises:
        IndexError for an id outside of weight, before anything is written; otherwise as `add`. On CUDA the ids are not
        read back for this check: such an id gives a row of NaN and no gradient, unless the environment variable
        SINPE_EXT_CHECK=1 asks for the IndexError.
    Accuracy:
        as `add`. The gradient of a row of weight is summed in float32 (float64 for float64) in a fixed order, as a tree
        of 64 tokens per node (docs/training.md), and rounded once. So it has the same bits in every run and for any
        number of threads.
    Gradient:
        for weight, alpha and float positions, of any order (with sparse=True of first order).
    """
    arguments = (ids, weight, encoding, positions, start, scale, alpha, dropout, seed,
             padding_idx, padding_mask, sparse, encode_padding, seq_dim)  # fmt: skip
    result = None if _is_compiling() else loader.repeat(repetition.EMBED, arguments)
    return embed_call(EmbedArguments(*arguments)).result() if result is None else result


for _function in (table, encode, add, add_, embed):
    setattr(_function, "__script_unsupported", checks.NO_SCRIPT)


def add_call(arguments: AddArguments) -> Any:
    """Checks the arguments of `add` and returns the call: of an ordinary tensor, a DTensor or a jagged x."""
    if _is_compiling():
        torch_state.check_version()
    if type(arguments.x) is not Tensor:
        if is_dtensor(arguments.x):
            from .distributed.call import ShardedAdd

            return ShardedAdd(arguments)
        if nested.is_jagged(arguments.x):
            return nested.check_add(arguments)
    return check_add(arguments)


def embed_call(arguments: EmbedArguments) -> Any:
    """Checks the arguments of `embed` and returns the call object for its tensors: plain, DTensor or jagged."""
    if _is_compiling():
        torch_state.check_version()
    if type(arguments.ids) is not Tensor or type(arguments.weight) not in (Tensor, nn.Parameter):
        if nested.is_jagged(arguments.ids):
            return nested.check_embed(arguments)
        if is_dtensor(arguments.ids) or is_dtensor(arguments.weight):
            from .distributed.call import ShardedEmbed

            return ShardedEmbed(arguments)
    return check_embed(arguments)


run_uncompiled()

"""The functions: `table`, `encode`, `add`, `add_`, `embed`. Arguments are checked once, for kernels and eager twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import checks
from .calls import jagged, plain, tables
from .calls.add import AddCall
from .calls.embed import EmbedCall
from .calls.rows import AddArguments, EmbedArguments
from .checks import memory
from .encodings import in_graph
from .encodings.encoding import Encoding
from .encodings.grid import GridEncoding
from .runtime.parallel import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement
    from typing_extensions import Never

__all__ = ["add", "add_", "embed", "encode", "table"]

_is_compiling = torch.compiler.is_compiling


def __dir__() -> list[str]:
    return list(__all__)


def table(
    length: int | Sequence[int],
    encoding: Encoding | GridEncoding | str | int | None = None,
    *,
    dim: int | None = None,
    start: int | Sequence[int] = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    out: torch.Tensor | None = None,
    flatten: bool = False,
    extra_tokens: int = 0,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    **unknown: Never,
) -> torch.Tensor:
    """Rows encoding.start + start, ..., + length - 1 of an encoding.

    Equivalent to, in real arithmetic rounded once (default encoding):
        angle = torch.arange(start, start + length)[:, None] * 10000 ** (-torch.arange(0, dim, 2) / dim)
        out[:, 0::2], out[:, 1::2] = angle.sin(), angle.cos()

    Args:
        length: number of rows, 0 or more; for a grid the lengths of its axes, (H, W).
        encoding: an Encoding, a GridEncoding, a convention's name, or an int for Encoding(int).
        dim: number of channels, with a name: table(4096, "t2t", dim=512). Alone: of the default encoding.
        start: added to encoding.start; every position must fit int64. For a grid also one per axis: (top, left) of a
            crop.
        dtype: float32, float64, bfloat16 or float16. None: that of `out`, else float32.
        device: of the result. None: that of `out`, else the default device.
        out: of the result's shape, to write into, of any strides; it is returned.
        flatten: give a grid's places, row-major, as one dimension.
        extra_tokens: rows of zeros in front, say 1 for a class token; a grid is then flattened.
        device_mesh: give a DTensor on this mesh, of which each rank makes its own part; device and out stay None.
        placements: Shard or Replicate, one for each dimension of the mesh; None: Replicate.
    Returns: (length, dim); of a grid (*length, dim), or (extra_tokens + H * W, dim).
    Raises: TypeError, ValueError for arguments of the wrong type or value; RuntimeError where `out` overlaps itself
        or has another dtype or device than the one that is given.
    Accuracy: float32 correctly rounded for abs(position) < 2^31 and, but for values that are all but 0, at every int64
        (docs/accuracy.md); float64 <= 1 ULP; 16-bit the float32 value, rounded.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """
    if unknown:
        checks.no_unknown(table, unknown)
    if _is_compiling():
        encoding = in_graph.constant(encoding)
    given = length, encoding, start, dtype, device, out, flatten, extra_tokens, dim
    if device_mesh is not None or placements is not None:
        if device is not None or out is not None:
            raise ValueError("device_mesh: expected device and out to stay None with it, got one of them; leave it out")
        from .distributed import rows as sharded_rows

        return sharded_rows.table(table, tables.TableArguments(*given), device_mesh, placements)
    result = plain.tabled(given)
    return tables.table(tables.TableArguments(*given)) if result is None else result


def encode(
    positions: torch.Tensor,
    encoding: Encoding | GridEncoding | str | int | None = None,
    *,
    dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    allow_16bit: bool = False,
    **unknown: Never,
) -> torch.Tensor:
    """The encoding of any positions, whole or fractional.

    Equivalent to, in real arithmetic rounded once (default encoding):
        angle = positions[..., None] * 10000 ** (-torch.arange(0, dim, 2) / dim)
        out[..., 0::2], out[..., 1::2] = angle.sin(), angle.cos()

    Args:
        positions: any shape; integers of any width, float32 or float64 (taken at their exact value). Final:
            encoding.start is not added. For a grid the last dimension holds the coordinates, one per axis.
        encoding: an Encoding, a GridEncoding, a convention's name, or an int for Encoding(int).
        dim: number of channels, with a name: encode(t, "ddpm", dim=320). Alone: of the default encoding.
        dtype: float32, float64, bfloat16 or float16.
        allow_16bit: take float16 and bfloat16 positions at their stored value instead of refusing them.
    Returns: (*positions.shape, dim), for a grid (*positions.shape[:-1], dim), on the device of `positions`; NaN where a
        position is NaN or infinite; jagged where positions are (`layout=torch.jagged`).
    Raises: TypeError, ValueError for arguments of the wrong type or value.
    Accuracy: as `table`; float positions likewise, below 2^31 in size; float64 <= 1 ULP.
    Gradient: to float positions, of any order.
    """
    if unknown:
        checks.no_unknown(encode, unknown)
    result = plain.encoded(positions, encoding, dtype) if dim is None else None
    if result is not None:
        return result
    if _is_compiling():
        encoding = in_graph.constant(encoding)
    if is_dtensor(positions):
        from .distributed import rows as sharded_rows

        return sharded_rows.encode(encode, positions, encoding, dim, dtype, allow_16bit)
    if jagged.is_jagged(positions):
        return jagged.encode(positions, encoding, dim, dtype, allow_16bit)
    return tables.encode(positions, encoding, dim, dtype, allow_16bit)


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
    **unknown: Never,
) -> torch.Tensor:
    """dropout(scale * x + alpha * PE) in one pass: encoding and mask are made while x streams past, and not kept.

    Equivalent to, with acc = float64 for float64 x and float32 otherwise:
        total = scale * x.to(acc) + alpha * sinpe.table(S, encoding, start=start, dtype=acc)
        torch.nn.functional.dropout(total, dropout).to(x.dtype)               # with the mask that `seed` names

    Args:
        x: (batch, ..., sequence, channels) or (sequence, channels), float32, float64, bfloat16 or float16, any strides.
            A jagged nested tensor (`layout=torch.jagged`, a prototype of torch's) is (batch, sequence, channels): each
            sequence is counted for itself, and elements for the mask as they lie in x.values() (docs/training.md).
        encoding: an Encoding, a convention's name (its dim from x), an int, or None for the paper's with x's channels.
        positions: (S,) or (B, S), integers or float32/float64; final: encoding.start is not added, `start` must stay 0.
            For a jagged x: jagged, (B, S) with the offsets of x.
        start: position of the first row, on top of encoding.start: an int, a 0-d integer tensor, or (B,), one a sample.
        scale: factor of x.
        alpha: factor of the encoding, a float or a tensor of shape () or (1,).
        dropout: probability that an element of the sum is dropped, whatever the training mode of any module; the others
            are divided by the probability of keeping them. Rounded to a multiple of 1/65536, but to 0 and 1 only when
            it is 0 and 1.
        seed: names the mask: an int or an int64 tensor of one element; a torch.Generator, to draw one from; None, to
            draw one from torch's generator of the device. Nothing is drawn where nothing is random (dropout 0 or 1, no
            elements). The mask is Philox 4x32-10 of the seed and the element's row-major index in x: the same on
            every backend, at any number of threads, under torch.compile and in the backward pass.
        padding_mask: (S,) or (B, S), bool; True = padding: those rows get no encoding.
        seq_dim, channel_dim: dimensions of x that hold the sequence and the channels. positions, start and padding_mask
            are batch-first whatever seq_dim is; the batch is x's first remaining dimension.
        grid_shape: of a GridEncoding, the lengths of its axes, where the places are row-major in the sequence of x,
            (B, H * W, C). None: they are dimensions of x, (B, H, W, C), or (B, C, H, W) with channel_dim=1. With a grid
            `start` may be one int per axis (a crop's corner) or a tensor (axes,) or (B, axes), `positions` has
            coordinates in one dimension more, (S, axes), (B, S, axes), or with H, W in place of S where x has them, and
            padding_mask is (S,), (B, S), (H, W) or (B, H, W).
        extra_tokens: rows in front of the sequence that get no encoding, say 1 for a class token; positions and
            padding_mask speak of the others.
        out: like x; x itself is allowed.
    Returns: like x (its strides are those of torch.empty_like(x)).
    Raises: TypeError, ValueError, IndexError for arguments of the wrong type, value or shape; RuntimeError for devices
        that differ and for an `out` that overlaps itself, part of x, or another argument.
    Accuracy: the encoding as in `table`; each product, then the sum, then the kept sum times 1 / (1 - dropout) rounded
        to acc, then once to the dtype of x. A dropped element is +0 whatever it was; NaN and infinity stay where kept.
    Gradient: to x, alpha and float positions, of any order; the mask is made again, not stored.
    Source: dropout, Srivastava et al. 2014; Philox, Salmon et al. 2011.
    """
    if unknown:
        checks.no_unknown(add, unknown)
    given = (x, encoding, positions, start, scale, alpha, padding_mask,
             seq_dim, channel_dim, dropout, seed, grid_shape, extra_tokens)  # fmt: skip
    result = plain.added(given, out)
    if result is not None:
        return result
    call = add_call(AddArguments(*given))
    if out is None:
        return call.result()
    memory.output(*call.written(out))
    memory.apart(out, positions=positions, start=start, alpha=alpha, padding_mask=padding_mask, seed=seed)
    if torch.is_grad_enabled() and (call.needs_grad(x) or out.requires_grad):
        raise RuntimeError(
            "out: expected no gradient to be needed, got an argument that requires it; leave out unset, or call under "
            "torch.no_grad()"
        )
    return call.write_to(out)


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
    **unknown: Never,
) -> torch.Tensor:
    """`add` that writes into x and returns it. Arguments, accuracy and gradients as `add`.

    Equivalent to:
        x.copy_(sinpe.add(x, encoding, ...))

    Raises: as `add`; RuntimeError for an x whose elements share memory (expand), an argument that shares memory with
        x, or a leaf that requires grad.
    """
    if unknown:
        checks.no_unknown(add_, unknown)
    given = (x, encoding, positions, start, scale, alpha, padding_mask,
             seq_dim, channel_dim, dropout, seed, grid_shape, extra_tokens)  # fmt: skip
    result = plain.added(given, x)
    if result is not None:
        return result
    call = add_call(AddArguments(*given))
    memory.in_place(x)
    memory.apart(x, positions=positions, start=start, alpha=alpha, padding_mask=padding_mask, seed=seed)
    return call.result_in_place()


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
    **unknown: Never,
) -> torch.Tensor:
    """dropout(scale * weight[ids] + alpha * PE): token lookup, encoding and dropout in one pass.

    Equivalent to:
        sinpe.add(torch.nn.functional.embedding(ids, weight, padding_idx, sparse=sparse), encoding, ...)

    Args:
        ids: (batch, ..., sequence) or (sequence,), integers, any strides; or jagged, (batch, sequence).
        weight: (num_embeddings, channels), float32, float64, bfloat16 or float16.
        encoding, positions, start, scale, alpha, dropout, seed: as `add`, for an x of shape (*ids.shape, channels).
        padding_idx: id whose row of weight gets no gradient, as in nn.Embedding; the row itself is used as stored.
        padding_mask: (S,) or (B, S), bool; True = padding: those rows get no encoding.
        sparse: make the gradient of weight a sparse tensor, as nn.Embedding(sparse=True) does.
        encode_padding: False: tokens equal to padding_idx get no encoding either, as if in padding_mask; ids must then
            be (S,) or (B, S).
        seq_dim: dimension of ids that holds the sequence. positions, start and padding_mask are batch-first whatever it
            is; the batch is the first remaining dimension.
    Returns: (*ids.shape, channels) in the dtype of weight; contiguous where seq_dim is the last dimension.
    Raises: IndexError for an id that is no row of weight, before anything is written; else as `add`. On CUDA nothing
        waits to look at the ids: such a token gives a row of NaN and no gradient, and with SINPE_EXT_CHECK=1 in the
        environment the IndexError.
    Accuracy: as `add`. The gradient of a row of weight is summed in float32 (float64 for float64) in the order of the
        tokens, then rounded once: the same bits in every run, at any number of threads.
    Gradient: to weight, alpha and float positions, of any order (the sparse one: first order).
    """
    if unknown:
        checks.no_unknown(embed, unknown)
    given = (ids, weight, encoding, positions, start, scale, alpha, dropout, seed,
             padding_idx, padding_mask, sparse, encode_padding, seq_dim)  # fmt: skip
    result = plain.embedded(given)
    return embed_call(EmbedArguments(*given)).result() if result is None else result


for _function in (table, encode, add, add_, embed):
    setattr(_function, "__script_unsupported", checks.NO_SCRIPT)


def add_call(given: AddArguments) -> Any:
    """The checked call of `add`."""
    if _is_compiling():
        given = given._replace(encoding=in_graph.constant(given.encoding))
    if type(given.x) is Tensor:
        return AddCall(given)
    if is_dtensor(given.x):
        from .distributed.call import ShardedAdd

        return ShardedAdd(given)
    return jagged.JaggedAdd(given) if jagged.is_jagged(given.x) else AddCall(given)


def embed_call(given: EmbedArguments) -> Any:
    """The checked call of `embed`."""
    if _is_compiling():
        given = given._replace(encoding=in_graph.constant(given.encoding))
    if type(given.ids) is not Tensor and jagged.is_jagged(given.ids):
        return jagged.JaggedEmbed(given)
    if is_dtensor(given.ids) or is_dtensor(given.weight):
        from .distributed.call import ShardedEmbed

        return ShardedEmbed(given)
    return EmbedCall(given)

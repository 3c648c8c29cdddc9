"""The layers `SinusoidalPositionalEncoding` and `SinusoidalEmbedding`, which store no table of encodings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..backend import loader
from ..encodings import resolve, values
from ..encodings.catalogue import conventions
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.tracing import refuse_in_graph
from ..encodings.values import MAX_DIM, integer
from ..functional import add_call, embed_call
from ..operations import checks, repetition
from ..operations.add import AddArguments
from ..operations.embed import EmbedArguments
from ..reference.tiles import accumulation
from . import checkpoint, shared

_is_compiling = torch.compiler.is_compiling


class SinusoidalPositionalEncoding(nn.Module):
    """Computes dropout(scale * x + alpha * PE) for any sequence length; by default its state dict is empty.

    Equivalent to, except for the rounding of a stored table::

        self.dropout(scale * x + alpha * self.pe[:, start : start + x.size(1)])

    The default is batch first. PyTorch's tutorial and nn.Transformer have the sequence first: the tutorial's
    `PositionalEncoding(512, 0.1, 5000)` is `SinusoidalPositionalEncoding(512, 0.1, 5000, batch_first=False)`. A table
    `pe` in a checkpoint is accepted but not used: loading warns if it is not the table of this layer's encoding.

    Args:
        d_model: number of channels.
        dropout: dropout probability, 0 to 1, applied in training mode only, in the same pass as the sum. The attribute
            `dropout` is an nn.Dropout, whose p and training mode may be changed as usual.
        max_len: number of positions that are accepted, encoding.start to encoding.start + max_len - 1. max_len
            alone stores no table. None: any position.
        encoding: an Encoding, a GridEncoding or the name of a convention. None: the paper's encoding.
        batch_first: x is (batch, sequence, channels) if True and (sequence, batch, channels) if False; (sequence,
            channels) is accepted in either case.
        scale, alpha: factors of x and of the encoding.
        learned_alpha: make alpha a parameter of shape (1,), initialized to `alpha`.
        persistent_table: register a buffer `pe`, for code that expects one: the float32 table of max_len rows (and of
            extra_tokens rows before them), (1, max_len, d_model) or, with batch_first=False, (max_len, 1, d_model).
            forward does not read it, and state_dict() always contains the exact table, even after the buffer was cast.
        grid_shape: lengths of the axes of a GridEncoding, for x of shape (batch, H * W, channels). None if the axes are
            dimensions of x. For a grid it replaces max_len as the size of the table `pe`.
        extra_tokens: number of rows at the start of the sequence that get no encoding, for example 1 for a class token.
        channel_dim: dimension of x that holds the channels, 1 for images of shape (batch, channels, H, W).
        require_positions: refuse a call without `positions`. For models whose sequence may be sharded over processes:
            a shard that is an ordinary tensor would otherwise be encoded from position 0. DTensors need no positions.
        device: device of a learned alpha and of the buffer `pe`. The result has the device and the dtype of x.
        dtype: dtype of a learned alpha. For a 16-bit dtype alpha is float32, because 16 bits would lose small updates.
    Raises:
        TypeError, ValueError for arguments of the wrong type or value.
    """

    alpha: Any
    __prepare_scriptable__ = shared.refuse_script

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        max_len: int | None = None,
        *,
        encoding: Encoding | GridEncoding | str | None = None,
        batch_first: bool = True,
        scale: float = 1.0,
        alpha: float = 1.0,
        learned_alpha: bool = False,
        persistent_table: bool = False,
        grid_shape: Sequence[int] | None = None,
        extra_tokens: int = 0,
        channel_dim: int = -1,
        require_positions: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        refuse_in_graph(type(self).__name__)
        super().__init__()
        where = shared.factory_kwargs(device, dtype)
        self.d_model = integer("d_model", d_model, 1, MAX_DIM, "pass the number of channels")
        is_grid = resolve.is_grid(encoding)
        self.encoding: Any
        resolved = resolve.grid(encoding, self.d_model) if is_grid else resolve.encoding(encoding, self.d_model)
        self.encoding = resolve.uncached(resolved, encoding)
        if self.encoding.dim != self.d_model:
            raise ValueError(
                f"encoding: expected dim {self.d_model}, that of d_model, got {self.encoding.dim}; make them agree"
            )
        self.max_len = None if max_len is None else values.length(max_len, "max_len")
        self.persistent_table = values.flag("persistent_table", persistent_table)
        if is_grid and max_len is not None:
            raise ValueError(
                f"max_len: expected None for a grid, got {values.shown(max_len)}; pass grid_shape, its axes' lengths"
            )
        if is_grid and persistent_table and grid_shape is None:
            raise ValueError("persistent_table: expected grid_shape with it for a grid, got None; pass grid_shape")
        if not is_grid:
            checks.refuse_grid_shape(grid_shape, "pass encoding= a GridEncoding, or the name of one")
        axes = self.encoding.ndim if is_grid else 0
        self.grid_shape = None if grid_shape is None else checks.grid_lengths("grid_shape", grid_shape, axes)
        self.extra_tokens = checks.extra_tokens(extra_tokens)
        self.channel_dim = integer("channel_dim", channel_dim, -checks.MAX_RANK, checks.MAX_RANK, "pass a dimension")
        if persistent_table and max_len is None and not is_grid:
            raise ValueError("persistent_table: expected max_len with it, the table's length, got None; pass max_len")
        self.batch_first = values.flag("batch_first", batch_first)
        self.require_positions = values.flag("require_positions", require_positions)
        self.scale = values.factor("scale", scale)
        if isinstance(dropout, (Encoding, GridEncoding)) or (isinstance(dropout, str) and dropout in conventions()):
            raise TypeError(
                f"dropout: expected a float, got {dropout!r}; dropout is the second argument, pass encoding={dropout!r}"
            )
        hint = "pass a probability; if this is max_len, that is the third argument, pass max_len=... by name"
        self.dropout = nn.Dropout(values.probability("dropout", dropout, hint))
        self._first_alpha = values.factor("alpha", alpha)
        learned = values.flag("learned_alpha", learned_alpha)
        where["dtype"] = accumulation(torch.get_default_dtype() if dtype is None else dtype)
        self.alpha = nn.Parameter(torch.tensor([self._first_alpha], **where)) if learned else self._first_alpha
        if self.persistent_table:
            self.register_buffer("pe", checkpoint.table_of(self, where["device"]))
        self.register_state_dict_post_hook(checkpoint.write_table)
        self.register_load_state_dict_pre_hook(checkpoint.compare_table)

    def reset_parameters(self) -> None:
        """Resets a learned alpha to its initial value and the buffer `pe` to the table; needed after `to_empty`."""
        if isinstance(self.alpha, nn.Parameter):
            nn.init.constant_(self.alpha, self._first_alpha)
        pe = self._buffers.get("pe")
        table = None if pe is None else checkpoint.table_of(self, pe.device)
        if pe is not None and table is not None:
            pe.copy_(table)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            advice = "; it stores no table: pass persistent_table=True and max_len, or call sinpe_ext.table"
            raise AttributeError(f"{error}{advice if name == 'pe' else ''}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "pe" and isinstance(value, Tensor) and "pe" in self._buffers and "_is_replica" not in vars(self):
            checkpoint.compare_assigned(self, value)
            value = checkpoint.table_of(self, value.device)  # whatever was assigned, `pe` is the table of this layer
        super().__setattr__(name, value)

    def forward(
        self,
        x: Tensor,  # [B, S, D], [S, B, D] or [S, D]
        *,
        positions: Tensor | None = None,  # [S] or [B, S]
        start: int | Sequence[int] | Tensor = 0,  # int, [] or [B]
        padding_mask: Tensor | None = None,  # [S] or [B, S]
        seed: int | Tensor | torch.Generator | None = None,
        grid_shape: Sequence[int] | None = None,
    ) -> Tensor:
        """Adds the encoding to x, with dropout in training mode.

        Args:
            x: (batch, sequence, channels), (sequence, batch, channels) with batch_first=False, or (sequence, channels);
                for a grid also with the axes as dimensions. float32, float64, bfloat16 or float16.
            positions: (S,) or (B, S), integers, float32 or float64; batch-first whatever batch_first is.
                encoding.start is not added, and `start` must be 0.
            start: position of the first row, added to encoding.start: an int, a 0-d tensor, or (B,), one per sample.
            padding_mask: (S,) or (B, S), bool; rows where it is True are padding and get no encoding; as in `add`.
            seed: seed of the dropout mask, as in `add`. None: drawn from torch's generator of the device.
            grid_shape: overrides the grid_shape of the layer, for images of another size.
        Returns:
            a tensor of the shape, dtype and device of x.
        Raises:
            IndexError for a position that max_len does not allow; otherwise as `add`.
        """
        if type(x) is not Tensor and shared.is_fx_proxy(x):
            options = {"positions": positions, "start": start, "padding_mask": padding_mask, "seed": seed}
            return shared.record_fx_call(self, x, grid_shape=grid_shape, **options)
        shared.check_required_positions(self, x, positions)
        p, others = shared.rate(self._modules.get("dropout"))
        seq_dim = 0 if not self.batch_first and isinstance(x, Tensor) and x.dim() > 2 else -2
        if self.channel_dim != -1 and isinstance(x, Tensor) and self.channel_dim % max(x.dim(), 1) == x.dim() - 2:
            seq_dim = -1  # (batch, channels, sequence)
        grid_shape = self.grid_shape if grid_shape is None else grid_shape
        # In the order of AddArguments, which names them: to make it here would take a quarter of a short call.
        arguments = (x, self.encoding, positions, start, self.scale, self.alpha, p, seed, padding_mask,
                 seq_dim, self.channel_dim, grid_shape, self.extra_tokens, None)  # fmt: skip
        is_limited = self.max_len is not None and (positions is not None or not self._is_within(x, start, seq_dim))
        encoded = None if is_limited or _is_compiling() else loader.repeat(repetition.ADD, arguments)
        if encoded is None:
            call = add_call(AddArguments(*arguments))
            if self.max_len is not None:
                shared.check_limit(call, self.max_len)
            encoded = call.result()
        return encoded if others is None else others(encoded)

    def _is_within(self, x: Any, start: Any, seq_dim: int) -> bool:
        """Whether x is an ordinary tensor and max_len allows all its rows, decided without reading data."""
        return type(x) is Tensor and x.dim() > 1 and shared.is_within(start, x.shape[seq_dim], self.max_len or 0)

    def extra_repr(self) -> str:
        parts = shared.repr_parts(self)
        parts += [f"grid_shape={self.grid_shape}"] if self.grid_shape is not None else []
        parts += [f"extra_tokens={self.extra_tokens}"] if self.extra_tokens else []
        parts += [f"channel_dim={self.channel_dim}"] if self.channel_dim != -1 else []
        return ", ".join([*parts, *(["persistent_table=True"] if self.persistent_table else [])])


class SinusoidalEmbedding(nn.Embedding):
    """Computes dropout(scale * weight[ids] + alpha * PE): nn.Embedding and positional encoding in one pass.

    Equivalent to::

        SinusoidalPositionalEncoding(embedding_dim, dropout, scale=scale)(nn.Embedding(num_embeddings, ...)(ids))

    A subclass of nn.Embedding with the same parameter `weight` (which may be tied to another layer), state dict,
    initialization and `padding_idx`. max_norm and scale_grad_by_freq are not supported and must be None and False.

    Args:
        num_embeddings, embedding_dim, padding_idx, sparse, device, dtype: as in nn.Embedding; dtype is float32,
            float64, bfloat16 or float16.
        dropout: dropout probability, 0 to 1, applied in training mode only; see SinusoidalPositionalEncoding.
        encoding: an Encoding or the name of a convention. None: the paper's encoding.
        scale, alpha: factors of the token embedding, often sqrt(embedding_dim), and of the encoding.
        learned_alpha: make alpha a parameter of shape (1,), initialized to `alpha`.
        encode_padding: if False, tokens equal to padding_idx get no encoding.
        batch_first: ids are (batch, ..., sequence) if True and (sequence, batch, ...) if False.
        require_positions, max_len: as in SinusoidalPositionalEncoding.
    Raises:
        TypeError, ValueError for arguments of the wrong type or value.
    """

    alpha: Any
    __prepare_scriptable__ = shared.refuse_script

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        dropout: float = 0.1,
        sparse: bool = False,
        encoding: Encoding | str | None = None,
        scale: float = 1.0,
        alpha: float = 1.0,
        learned_alpha: bool = False,
        encode_padding: bool = True,
        batch_first: bool = True,
        max_len: int | None = None,
        require_positions: bool = False,
        max_norm: None = None,
        scale_grad_by_freq: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        _weight: Tensor | None = None,
        _freeze: bool = False,
    ):
        refuse_in_graph(type(self).__name__)
        num_embeddings = integer("num_embeddings", num_embeddings, 1, values.INT64_MAX, "pass the vocabulary's size")
        embedding_dim = integer("embedding_dim", embedding_dim, 1, MAX_DIM, "pass the number of channels")
        if padding_idx is not None:
            padding_idx = checks.padding_idx(padding_idx, num_embeddings)
        encode_padding, sparse = values.flag("encode_padding", encode_padding), values.flag("sparse", sparse)
        checks.has_padding(encode_padding or padding_idx is not None)
        shared.check_unsupported(max_norm, scale_grad_by_freq)
        where = shared.factory_kwargs(device, dtype)
        if _weight is not None and tuple(checks.weight(_weight).shape) != (num_embeddings, embedding_dim):
            raise ValueError(
                f"_weight: expected shape ({num_embeddings}, {embedding_dim}), got {tuple(_weight.shape)}; pass "
                "a weight of num_embeddings rows and embedding_dim channels"
            )
        values.addressable("num_embeddings", num_embeddings, embedding_dim, 8)
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, sparse=sparse, _weight=_weight, _freeze=_freeze, **where
        )
        self.encoding = resolve.uncached(resolve.encoding(encoding, embedding_dim), encoding)
        if self.encoding.dim != embedding_dim:
            raise ValueError(
                f"encoding: expected dim {embedding_dim}, that of embedding_dim, got {self.encoding.dim}; make "
                "them agree"
            )
        self.max_len = None if max_len is None else values.length(max_len, "max_len")
        self.scale = values.factor("scale", scale)
        self.encode_padding = encode_padding
        self.batch_first = values.flag("batch_first", batch_first)
        self.require_positions = values.flag("require_positions", require_positions)
        self.dropout = nn.Dropout(values.probability("dropout", dropout))
        self._first_alpha = values.factor("alpha", alpha)
        self.alpha = self._first_alpha
        if values.flag("learned_alpha", learned_alpha):
            where["dtype"] = accumulation(self.weight.dtype)
            self.alpha = nn.Parameter(torch.tensor([self._first_alpha], **where))

    @property
    def embed_scale(self) -> float:
        """`scale`, by the name under which PEFT looks it up: LoRA multiplies its own part of the token embedding by
        it."""
        return self.scale

    def reset_parameters(self) -> None:
        """Initializes weight as nn.Embedding does and resets a learned alpha to its initial value."""
        super().reset_parameters()
        if isinstance(getattr(self, "alpha", None), nn.Parameter):
            nn.init.constant_(self.alpha, self._first_alpha)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, **options: Any
    ) -> SinusoidalEmbedding:
        """Creates a layer from existing embeddings, as nn.Embedding.from_pretrained does.

        Args:
            embeddings: (num_embeddings, embedding_dim), float32, float64, bfloat16 or float16; the weight of the layer
                shares its memory.
            freeze: if True, weight does not require grad.
            padding_idx, options: arguments of the constructor.
        Returns:
            the layer.
        Raises:
            TypeError, ValueError for arguments of the wrong type or value.
        """
        if isinstance(embeddings, nn.Embedding):
            raise TypeError("embeddings: expected a torch.Tensor, got an nn.Embedding; pass its weight")
        checks.weight(embeddings)
        rows, columns = embeddings.shape
        return cls(rows, columns, padding_idx, _weight=embeddings, _freeze=freeze, **options)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        checkpoint.reshape_alpha(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(  # type: ignore[override]
        self,
        ids: Tensor,  # [S] or [B, ..., S], or [S, B, ...]
        *,
        positions: Tensor | None = None,  # [S] or [B, S]
        start: int | Tensor = 0,  # int, [] or [B]
        padding_mask: Tensor | None = None,  # [S] or [B, S]
        seed: int | Tensor | torch.Generator | None = None,
    ) -> Tensor:  # [*ids.shape, embedding_dim]
        """Returns the embeddings of the tokens plus the encoding of their positions, with dropout in training mode.

        Args:
            ids: (batch, ..., sequence) or (sequence,), or (sequence, batch, ...) with batch_first=False; integers.
            positions: (S,) or (B, S), integers, float32 or float64; batch-first whatever batch_first is.
                encoding.start is not added, and `start` must be 0.
            start: position of the first token, added to encoding.start: an int, a 0-d tensor, or (B,), one per sample.
            padding_mask: (S,) or (B, S), bool; tokens where it is True are padding and get no encoding; as in `add`.
            seed: seed of the dropout mask, as in `add`. None: drawn from torch's generator of the device.
        Returns:
            `(*ids.shape, embedding_dim)`, in the dtype and on the device of weight.
        Raises:
            IndexError for an id outside of weight and for a position that max_len does not allow; otherwise as `embed`.
        """
        shared.check_unsupported(self.max_norm, self.scale_grad_by_freq)
        if type(ids) is not Tensor and shared.is_fx_proxy(ids):
            options = {"positions": positions, "start": start, "padding_mask": padding_mask, "seed": seed}
            return shared.record_fx_call(self, ids, **options)
        shared.check_required_positions(self, ids, positions)
        p, others = shared.rate(self._modules.get("dropout"))
        seq_dim = -1 if self.batch_first else 0
        # In the order of EmbedArguments, as in SinusoidalPositionalEncoding.forward.
        arguments = (ids, self.weight, self.encoding, positions, start, self.scale, self.alpha, p, seed,
                 self.padding_idx, padding_mask, self.sparse, self.encode_padding, seq_dim)  # fmt: skip
        is_limited = self.max_len is not None and (positions is not None or not self._is_within(ids, start, seq_dim))
        encoded = None if is_limited or _is_compiling() else loader.repeat(repetition.EMBED, arguments)
        if encoded is None:
            call = embed_call(EmbedArguments(*arguments))
            if self.max_len is not None:
                shared.check_limit(call, self.max_len)
            encoded = call.result()
        return encoded if others is None else others(encoded)

    def _is_within(self, ids: Any, start: Any, seq_dim: int) -> bool:
        """Whether max_len allows all positions of the ids, decided without reading data."""
        return type(ids) is Tensor and ids.dim() > 0 and shared.is_within(start, ids.shape[seq_dim], self.max_len or 0)

    def extra_repr(self) -> str:
        bare = [] if self.encode_padding else ["encode_padding=False"]
        return ", ".join([super().extra_repr(), *shared.repr_parts(self), *bare])

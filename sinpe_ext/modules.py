"""Layers without tables: `SinusoidalPositionalEncoding`, the tutorial's PositionalEncoding, `SinusoidalEmbedding`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from . import _backend, _checkpoint, _checks, _embed_checks
from ._add_call import AddCall
from ._call import RowsCall
from ._embed_call import EmbedCall
from ._operator import ADD, EMBED, is_traced
from ._ops import host_words, plan_words
from ._tiles import accumulation
from .encoding import MAX_DIM, Encoding, integer

_grad_enabled = torch.is_grad_enabled
_add, _embed, _add_cuda, _embed_cuda = ADD.direct, EMBED.direct, ADD.direct_cuda, EMBED.direct_cuda


class SinusoidalPositionalEncoding(nn.Module):
    """dropout(scale * x + alpha * PE), with nothing in the state dict and no longest sequence.

    Equivalent to, but for the table's rounding:
        self.dropout(scale * x + alpha * self.pe[:, start : start + x.size(1)])

    `SinusoidalPositionalEncoding(512, 0.1, 5000)`, the tutorial's arguments, works; max_len is then a limit only. A
    `pe` in a checkpoint is accepted, compared with this layer's encoding and dropped; a difference warns.

    Args:
        d_model: channels.
        dropout: probability, 0 to 1, in training only; in the same pass, with a mask that is never stored. `dropout` is
            an nn.Dropout that says how much and when: set its p, or switch it alone to training, as with any other.
        max_len: number of rows that a table would have: positions encoding.start to encoding.start + max_len - 1 are
            accepted; None: any.
        encoding: an Encoding or a convention's name; None: the paper's.
        batch_first: x is (batch, sequence, channels), else (sequence, batch, channels); in either case also
            (sequence, channels).
        scale, alpha: factors of x and of the encoding.
        learned_alpha: make alpha a parameter of shape (1,), starting at `alpha`.
        persistent_table: write the table `pe` of max_len rows into the state dict, (1, max_len, d_model) or, for
            batch_first=False, (max_len, 1, d_model), for code that expects one.
    Raises: TypeError, ValueError for arguments of the wrong type or value.
    """

    alpha: Any

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        max_len: int | None = None,
        *,
        encoding: Encoding | str | None = None,
        batch_first: bool = True,
        scale: float = 1.0,
        alpha: float = 1.0,
        learned_alpha: bool = False,
        persistent_table: bool = False,
    ):
        super().__init__()
        self.d_model = integer("d_model", d_model, 1, MAX_DIM, "pass the number of channels")
        self.encoding = _checks.encoding(encoding, self.d_model)
        if self.encoding.dim != self.d_model:
            raise ValueError(
                f"encoding: expected dim {self.d_model}, that of d_model, got {self.encoding.dim}; make them agree"
            )
        self.max_len = None if max_len is None else _checks.length(max_len, "max_len")
        if persistent_table and max_len is None:
            raise ValueError("persistent_table: expected max_len with it, the table's length, got None; pass max_len")
        self.batch_first = bool(batch_first)
        self.scale = _checks.factor("scale", scale)
        self.persistent_table = bool(persistent_table)
        hint = "max_len is the third argument, pass max_len=... by name"
        self.dropout = nn.Dropout(_checks.probability("dropout", dropout, hint))
        self._first_alpha = _checks.factor("alpha", alpha)
        self.alpha = nn.Parameter(torch.tensor([self._first_alpha])) if learned_alpha else self._first_alpha
        self.register_state_dict_post_hook(_checkpoint.write_table)
        self.register_load_state_dict_pre_hook(_checkpoint.compare_table)

    def reset_parameters(self) -> None:
        """Puts a learned alpha back to its first value, as after `to_empty`."""
        if isinstance(self.alpha, nn.Parameter):
            nn.init.constant_(self.alpha, self._first_alpha)

    def forward(
        self,
        x: Tensor,  # [B, S, D], [S, B, D] or [S, D]
        *,
        positions: Tensor | None = None,  # [S] or [B, S]
        start: int | Tensor = 0,  # int, [] or [B]
        padding_mask: Tensor | None = None,  # [S] or [B, S]
        seed: int | Tensor | torch.Generator | None = None,
    ) -> Tensor:
        """The encoded x, in its own shape and dtype. Arguments as in `add`; positions etc. are batch-first.

        Raises: IndexError for a position outside of what max_len allows, where that is set; else as `add`.
        """
        if _is_plain(self, x, x, positions, start, padding_mask) and (
            self.max_len is None or (x.dim() > 1 and 0 <= start <= self.max_len - x.shape[-2])
        ):
            # One token at a time costs microseconds: the operator checks what memory safety needs, and what it refuses
            # goes to the checker below for its message.
            try:
                if x.is_cpu:
                    return _add(x, host_words(self.encoding), start, self.scale)
                return _add_cuda(x, plan_words(self.encoding, x.device), start, self.scale)
            except (RuntimeError, OverflowError):
                pass
        p, others = _rate(self.dropout)
        seq_dim = 0 if not self.batch_first and isinstance(x, Tensor) and x.dim() > 2 else -2
        rows = positions, start, self.scale, self.alpha, padding_mask
        call = AddCall(x, self.encoding, *rows, seq_dim, -1, p, seed)
        if self.max_len is not None:
            _check_limit(call, self.max_len)
        encoded = call.result()
        return encoded if others is None else others(encoded)

    def extra_repr(self) -> str:
        return ", ".join([*_options(self), *(["persistent_table=True"] if self.persistent_table else [])])


class SinusoidalEmbedding(nn.Embedding):
    """dropout(scale * weight[ids] + alpha * PE): nn.Embedding and its positional encoding in one pass.

    Equivalent to:
        SinusoidalPositionalEncoding(embedding_dim, dropout, scale=scale)(nn.Embedding(num_embeddings, ...)(ids))

    An nn.Embedding in its parameter (`weight`, which another layer may share), its state dict, its first values and its
    `padding_idx`; max_norm and scale_grad_by_freq are not offered, a value other than None and False is refused.

    Args:
        num_embeddings, embedding_dim, padding_idx, sparse, device, dtype: as nn.Embedding; float32, float64, bfloat16
            or float16.
        dropout: probability, 0 to 1, in training only; see SinusoidalPositionalEncoding.
        encoding: an Encoding or a convention's name; None: the paper's.
        scale, alpha: factors of the token's row, often sqrt(embedding_dim), and of the encoding.
        learned_alpha: make alpha a parameter of shape (1,), starting at `alpha`.
        encode_padding: False: tokens equal to padding_idx get no encoding.
        batch_first: ids are (batch, ..., sequence), else (sequence, batch, ...).
        max_len: as SinusoidalPositionalEncoding.
    Raises: TypeError, ValueError for arguments of the wrong type or value.
    """

    alpha: Any

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
        max_norm: None = None,
        scale_grad_by_freq: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        _weight: Tensor | None = None,
        _freeze: bool = False,
    ):
        num_embeddings = integer("num_embeddings", num_embeddings, 1, _checks.INT64_MAX, "pass the vocabulary's size")
        embedding_dim = integer("embedding_dim", embedding_dim, 1, MAX_DIM, "pass the number of channels")
        _embed_checks.padding_idx(padding_idx, num_embeddings)
        if padding_idx is None and not encode_padding:
            raise ValueError("encode_padding: expected a padding_idx with encode_padding=False, got None; pass one")
        _not_offered(max_norm, scale_grad_by_freq)
        _checks.float_dtype("dtype", torch.get_default_dtype() if dtype is None else dtype)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, sparse=bool(sparse), _weight=_weight, _freeze=_freeze, **where
        )
        _embed_checks.weight(self.weight)
        self.encoding = _checks.encoding(encoding, embedding_dim)
        if self.encoding.dim != embedding_dim:
            raise ValueError(
                f"encoding: expected dim {embedding_dim}, that of embedding_dim, got {self.encoding.dim}; make "
                "them agree"
            )
        self.max_len = None if max_len is None else _checks.length(max_len, "max_len")
        self.scale = _checks.factor("scale", scale)
        self.encode_padding = bool(encode_padding)
        self.batch_first = bool(batch_first)
        self.dropout = nn.Dropout(_checks.probability("dropout", dropout))
        self._first_alpha = _checks.factor("alpha", alpha)
        self.alpha = self._first_alpha
        if learned_alpha:
            where["dtype"] = accumulation(self.weight.dtype)
            self.alpha = nn.Parameter(torch.tensor([self._first_alpha], **where))

    def reset_parameters(self) -> None:
        """First values as nn.Embedding's, and a learned alpha's own."""
        super().reset_parameters()
        if isinstance(getattr(self, "alpha", None), nn.Parameter):
            nn.init.constant_(self.alpha, self._first_alpha)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, **options: Any
    ) -> SinusoidalEmbedding:
        """A layer whose weight is `embeddings`, (num_embeddings, embedding_dim), which it shares.

        Args:
            freeze: keep it out of training, as nn.Embedding.from_pretrained does by default.
            padding_idx, options: those of the constructor.
        """
        if isinstance(embeddings, nn.Embedding):
            raise TypeError("embeddings: expected a torch.Tensor, got an nn.Embedding; pass its weight")
        _embed_checks.weight(embeddings)
        rows, columns = embeddings.shape
        return cls(rows, columns, padding_idx, _weight=embeddings, _freeze=freeze, **options)

    def forward(  # type: ignore[override]
        self,
        ids: Tensor,  # [S] or [B, ..., S], or [S, B, ...]
        *,
        positions: Tensor | None = None,  # [S] or [B, S]
        start: int | Tensor = 0,  # int, [] or [B]
        padding_mask: Tensor | None = None,  # [S] or [B, S]
        seed: int | Tensor | torch.Generator | None = None,
    ) -> Tensor:  # [*ids.shape, embedding_dim]
        """The encoded rows of weight. Arguments as in `embed`.

        Raises: IndexError for an id that is no row of weight and for a position beyond max_len; else as `embed`.
        """
        _not_offered(self.max_norm, self.scale_grad_by_freq)
        if (
            _is_plain(self, ids, self.weight, positions, start, padding_mask)
            and ids.dtype == torch.int64
            and (self.encode_padding or self.padding_idx is None)
            and type(self.weight) is nn.Parameter
            and self.weight.device == ids.device
            and (ids.is_cpu or not _checks.of_values())
            and (self.max_len is None or (ids.dim() > 0 and 0 <= start <= self.max_len - ids.shape[-1]))
        ):
            try:  # as above
                kernel = _embed if ids.is_cpu else _embed_cuda
                words = host_words(self.encoding) if ids.is_cpu else plan_words(self.encoding, ids.device)
                none = None, None, None, None  # positions, padding_mask, alpha, seed
                return kernel(ids, self.weight, words, *none, start, False, self.scale, -1, False, 0, [])
            except (RuntimeError, OverflowError):
                pass
        p, others = _rate(self.dropout)
        rows = positions, start, self.scale, self.alpha, p, seed
        padding = self.padding_idx, padding_mask, self.sparse, self.encode_padding
        call = EmbedCall(ids, self.weight, self.encoding, *rows, *padding, -1 if self.batch_first else 0)
        if self.max_len is not None:
            _check_limit(call, self.max_len)
        encoded = call.result()
        return encoded if others is None else others(encoded)

    def extra_repr(self) -> str:
        bare = [] if self.encode_padding else ["encode_padding=False"]
        return ", ".join([super().extra_repr(), *_options(self), *bare])


def _options(layer: Any) -> list[str]:
    """What both layers print of themselves: the encoding, and what differs from its default."""
    parts = [repr(layer.encoding)]
    parts += [f"max_len={layer.max_len}"] if layer.max_len is not None else []
    parts += ["batch_first=False"] if not layer.batch_first else []
    parts += [f"scale={layer.scale:g}"] if layer.scale != 1.0 else []
    parts += [f"alpha={layer._first_alpha:g}"] if layer._first_alpha != 1.0 else []
    return [*parts, "learned_alpha=True"] if isinstance(layer.alpha, nn.Parameter) else parts


def _not_offered(max_norm: Any, scale_grad_by_freq: Any) -> None:
    if max_norm is not None or scale_grad_by_freq:
        raise ValueError(
            f"max_norm, scale_grad_by_freq: expected None and False, got {max_norm} and {scale_grad_by_freq}; they are "
            "nn.Embedding's alone, use it with SinusoidalPositionalEncoding"
        )


def _is_plain(layer: Any, t: Any, differentiated: Tensor, positions: Any, start: Any, padding_mask: Any) -> bool:
    """Whether a call is one that a kernel serves without any of the layers above it. Attributes may be set anew."""
    dropout = layer._modules.get("dropout")
    return (
        type(t) is Tensor
        and not layer.training
        and layer.batch_first
        and type(layer.scale) is float
        and "alpha" in vars(layer)  # a parameter is elsewhere
        and type(layer.alpha) is float
        and layer.alpha == 1.0
        and layer.encoding.angle == "exact"
        and type(dropout) is nn.Dropout
        and not dropout.training
        and not dropout._forward_hooks
        and not dropout._forward_pre_hooks
        and (t.is_cpu or t.is_cuda)
        and positions is None
        and padding_mask is None
        and type(start) is int
        and abs(start) < 4611686018427387904  # 2**62; a CUDA kernel has no way to refuse rows beyond int64
        and not (differentiated.requires_grad and _grad_enabled())
        and forward_ad._current_level < 0
        and not is_traced()
        and not t.is_neg()
        and not differentiated.is_neg()
        and _backend.compiled("cpu" if t.is_cpu else "cuda")
    )


def _rate(dropout: nn.Module) -> tuple[float, nn.Module | None]:
    """The probability to drop with in the fused pass, and what else a layer put in nn.Dropout's place has to do."""
    if type(dropout) is nn.Dropout and not (dropout._forward_hooks or dropout._forward_pre_hooks):
        return (dropout.p if dropout.training else 0.0), None
    return 0.0, dropout


def _check_limit(call: RowsCall, max_len: int) -> None:
    """Rows 0 .. max_len - 1 of the encoding, as an index into a table of max_len rows would have it."""
    rows, lowest = call.shape[-2], call.encoding.start
    highest = lowest + max_len - 1
    first: float
    last: float
    if call.positions is None:
        first = lowest + call.start
        last = first + rows - 1
    elif not rows or not call.positions.numel() or call.device.type == "meta":
        return
    else:
        p = call.positions
        ahead = rows - 1 if call.are_starts else 0
        if _checks.unreadable(p):
            allowed = ((p >= lowest) & (p <= highest - ahead)).all()
            torch._assert_async(allowed, _limit_message(lowest, highest, "others"))
            return
        first, last = torch.stack(p.aminmax()).tolist()  # on a device: the one wait
        last += ahead
    if rows and not (first >= lowest and last <= highest):
        raise IndexError(_limit_message(lowest, highest, f"{last if first >= lowest else first}"))


def _limit_message(lowest: int, highest: int, got: str) -> str:
    return (
        f"positions: expected {lowest} to {highest}, the rows that max_len allows, got {got}; raise max_len or leave "
        "it unset, there is no table to outgrow"
    )

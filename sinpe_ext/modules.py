"""Layers: `SinusoidalPositionalEncoding`, the tutorial's PositionalEncoding without its table."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from . import _backend, _checks, functional
from ._ops import plan_words
from .encoding import Encoding

_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_add = torch.ops.sinpe_ext.add.default

# A checkpoint's table in float32 carries the float32 rounding of its angles, about 6e-8 a position; in 16 bits its own.
_TABLE_ANGLE_ERROR = 2.0**-22
_TABLE_ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


class SinusoidalPositionalEncoding(nn.Module):
    """dropout(scale * x + alpha * PE), with nothing in the state dict and no longest sequence.

    Equivalent to, but for the table's rounding:
        self.dropout(scale * x + alpha * self.pe[:, start : start + x.size(1)])

    `SinusoidalPositionalEncoding(512, 0.1, 5000)`, the tutorial's arguments, works; max_len is then a limit only. A `pe`
    in a checkpoint is accepted, compared with this layer's encoding and dropped; a difference warns.

    Args:
        d_model: channels.
        dropout: probability, 0 to 1, of torch's own dropout, in training only.
        max_len: longest position + 1 that is accepted; None: any.
        encoding: an Encoding or a convention's name; None: the paper's.
        batch_first: x is (batch, sequence, channels), else (sequence, batch, channels); (sequence, channels) in either case.
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
        self.encoding = _checks.encoding(d_model if encoding is None else encoding, d_model)
        if self.encoding.dim != d_model:
            raise ValueError(f"encoding: expected dim {d_model}, that of d_model, got {self.encoding.dim}")
        self.d_model = self.encoding.dim
        self.max_len = None if max_len is None else _checks.length(max_len, "max_len")
        if persistent_table and max_len is None:
            raise ValueError("persistent_table: expected max_len with it, the table's length, got None")
        self.batch_first = bool(batch_first)
        self.scale = _checks.factor("scale", scale)
        self.persistent_table = bool(persistent_table)
        self.dropout = nn.Dropout(_checks.probability("dropout", dropout))
        if learned_alpha:
            self.alpha = nn.Parameter(torch.tensor([_checks.factor("alpha", alpha)]))
        else:
            self.alpha = _checks.factor("alpha", alpha)
        self._seq_dim = -2 if self.batch_first else 0
        self._direct = self.batch_first and not learned_alpha and self.alpha == 1.0 and self.encoding.angle == "exact"
        self.register_state_dict_post_hook(_write_table)
        self.register_load_state_dict_pre_hook(_compare_table)

    def forward(
        self,
        x: Tensor,  # [B, S, D], [S, B, D] or [S, D]
        *,
        positions: Tensor | None = None,  # [S] or [B, S]
        start: int | Tensor = 0,  # int, [] or [B]
        padding_mask: Tensor | None = None,  # [S] or [B, S]
    ) -> Tensor:
        """The encoded x, in its own shape and dtype. positions, start and padding_mask are batch-first: see `add`.

        Raises: IndexError for a position of max_len or more, or below 0, where max_len is set; else as `add`.
        """
        if (
            self._direct
            and not self.training
            and positions is None
            and padding_mask is None
            and type(start) is int
            and type(x) is Tensor
            and x.is_cpu
            and not (x.requires_grad and _grad_enabled())
            and not _is_compiling()
            and _backend.compiled("cpu")
            and (self.max_len is None or (x.dim() > 1 and 0 <= start <= self.max_len - x.shape[-2]))
        ):
            # One token at a time costs microseconds: the operator checks what memory safety needs, and whatever it refuses
            # goes to the checker below for its message.
            try:
                return _add(x, plan_words(self.encoding), start, self.scale)
            except (RuntimeError, OverflowError):
                pass
        if self.max_len is not None:
            self._check_limit(x, positions, start)
        encoded = functional.add(
            x,
            self.encoding,
            positions=positions,
            start=start,
            scale=self.scale,
            alpha=self.alpha,
            padding_mask=padding_mask,
            seq_dim=self._seq_dim if isinstance(x, Tensor) and x.dim() > 2 else -2,
        )
        return self.dropout(encoded) if self.training else encoded

    def _check_limit(self, x: Tensor, positions: Tensor | None, start: int | Tensor) -> None:
        """Positions 0 .. max_len - 1, as an index into a table of max_len rows would have it."""
        _checks.summand(x)
        rows = x.shape[self._seq_dim if x.dim() > 2 else -2]
        if positions is not None:
            if not positions.numel() or positions.device.type == "meta":
                return
            first, last = float(positions.min()), float(positions.max())
        elif isinstance(start, Tensor):
            if not start.numel() or start.device.type == "meta":
                return
            first, last = int(start.min()), int(start.max()) + rows - 1
        else:
            first = start
            last = start + rows - 1
        if rows and (first < 0 or last >= self.max_len):
            beyond = first if first < 0 else last
            raise IndexError(
                f"positions: expected 0 to {self.max_len - 1}, below max_len, got {beyond:g}; raise max_len or leave it "
                "unset, there is no table to outgrow"
            )

    def extra_repr(self) -> str:
        parts = [repr(self.encoding)]
        parts += [f"max_len={self.max_len}"] if self.max_len is not None else []
        parts += ["batch_first=False"] if not self.batch_first else []
        parts += [f"scale={self.scale:g}"] if self.scale != 1.0 else []
        return ", ".join(parts)


def _table_shape(layer: SinusoidalPositionalEncoding) -> tuple[int, int, int]:
    length = layer.max_len or 0
    return (1, length, layer.d_model) if layer.batch_first else (length, 1, layer.d_model)


def _write_table(layer: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    if layer.persistent_table:
        table = functional.table(layer.max_len, layer.encoding, device="cpu")
        state[prefix + "pe"] = table.reshape(_table_shape(layer))


def _compare_table(layer: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Takes a checkpoint's `pe` out of `state`, so that strict loading is content, and warns when it is another encoding."""
    pe = state.pop(prefix + "pe", None)
    if pe is None:
        return
    problem = table_mismatch(pe, layer.encoding)
    if problem:
        warnings.warn(
            f"{prefix}pe: the checkpoint's table is not this layer's encoding, {layer.encoding!r}: {problem}. The layer "
            "keeps its own encoding; pass the encoding= that the model was trained with",
            UserWarning,
            stacklevel=2,
        )


def table_mismatch(pe: Any, encoding: Encoding) -> str:
    """How a checkpoint's table differs from an encoding beyond its own rounding, or "" when it does not."""
    if not isinstance(pe, Tensor):
        return f"it is a {type(pe).__name__}, not a tensor"
    rows = pe.squeeze(0) if pe.dim() == 3 and pe.shape[0] == 1 else pe.squeeze(1) if pe.dim() == 3 else pe
    if rows.dim() != 2 or rows.shape[1] != encoding.dim:
        return f"its shape {tuple(pe.shape)} does not hold rows of {encoding.dim} channels"
    if rows.device.type == "meta" or not rows.numel():
        return ""
    ours = functional.table(rows.shape[0], encoding, dtype=torch.float64, device="cpu")
    error = (rows.detach().to("cpu", torch.float64) - ours).abs().amax(1)
    allowed = torch.arange(rows.shape[0], dtype=torch.float64) * _TABLE_ANGLE_ERROR + 1e-6
    allowed = (allowed + _TABLE_ROUNDING.get(rows.dtype, 0.0)) * max(1.0, abs(encoding.amplitude))
    wrong = ~(error <= allowed)
    if not bool(wrong.any()):
        return ""
    row = int(wrong.nonzero()[0])
    return f"row {row} differs by {error[row]:.3g}, and {int(wrong.sum())} of {rows.shape[0]} rows differ"

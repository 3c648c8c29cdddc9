"""Layers: `SinusoidalPositionalEncoding`, the tutorial's PositionalEncoding without its table."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from . import _backend, _checkpoint, _checks, _grad
from ._call import AddCall
from ._ops import plan_words
from .encoding import MAX_DIM, Encoding, integer

_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_add = torch.ops.sinpe_ext.add.default


class SinusoidalPositionalEncoding(nn.Module):
    """dropout(scale * x + alpha * PE), with nothing in the state dict and no longest sequence.

    Equivalent to, but for the table's rounding:
        self.dropout(scale * x + alpha * self.pe[:, start : start + x.size(1)])

    `SinusoidalPositionalEncoding(512, 0.1, 5000)`, the tutorial's arguments, works; max_len is then a limit only. A
    `pe` in a checkpoint is accepted, compared with this layer's encoding and dropped; a difference warns.

    Args:
        d_model: channels.
        dropout: probability, 0 to 1, of torch's own dropout, in training only.
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
        self.dropout = nn.Dropout(_checks.probability("dropout", dropout))
        self._first_alpha = _checks.factor("alpha", alpha)
        self.alpha = nn.Parameter(torch.tensor([self._first_alpha])) if learned_alpha else self._first_alpha
        self._seq_dim = -2 if self.batch_first else 0
        exact = self.encoding.angle == "exact"
        self._direct = self.batch_first and not learned_alpha and self.alpha == 1.0 and exact
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
    ) -> Tensor:
        """The encoded x, in its own shape and dtype. positions, start and padding_mask are batch-first: see `add`.

        Raises: IndexError for a position outside of what max_len allows, where that is set; else as `add`.
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
            and forward_ad._current_level < 0
            and _backend.compiled("cpu")
            and (self.max_len is None or (x.dim() > 1 and 0 <= start <= self.max_len - x.shape[-2]))
        ):
            # One token at a time costs microseconds: the operator checks what memory safety needs, and what it refuses
            # goes to the checker below for its message.
            try:
                return _add(x, plan_words(self.encoding), start, self.scale)
            except (RuntimeError, OverflowError):
                pass
        seq_dim = self._seq_dim if isinstance(x, Tensor) and x.dim() > 2 else -2
        call = AddCall(x, self.encoding, positions, start, self.scale, self.alpha, padding_mask, seq_dim, -1)
        if self.max_len is not None:
            _check_limit(call, self.max_len)
        encoded = _grad.add(call)
        return self.dropout(encoded) if self.training else encoded

    def extra_repr(self) -> str:
        parts = [repr(self.encoding)]
        parts += [f"max_len={self.max_len}"] if self.max_len is not None else []
        parts += ["batch_first=False"] if not self.batch_first else []
        parts += [f"scale={self.scale:g}"] if self.scale != 1.0 else []
        parts += [f"alpha={self._first_alpha:g}"] if self._first_alpha != 1.0 else []
        parts += ["learned_alpha=True"] if isinstance(self.alpha, nn.Parameter) else []
        parts += ["persistent_table=True"] if self.persistent_table else []
        return ", ".join(parts)


def _check_limit(call: AddCall, max_len: int) -> None:
    """Rows 0 .. max_len - 1 of the encoding, as an index into a table of max_len rows would have it."""
    rows, lowest = call.shape[-2], call.encoding.start
    highest = lowest + max_len - 1
    if not rows:
        return
    first: float
    last: float
    if call.positions is None:
        first = lowest + call.start
        last = first + rows - 1
    elif not call.positions.numel() or call.device.type == "meta":
        return
    else:
        p = call.positions
        ahead = rows - 1 if call.are_starts else 0
        if _checks.unreadable(p) or call.device.type != "cpu":  # looking at the numbers would wait for the device
            allowed = ((p >= lowest) & (p <= highest - ahead)).all()
            torch._assert_async(allowed, _limit_message(lowest, highest, "others"))
            return
        first, last = p.min().item(), p.max().item() + ahead
    if not (first >= lowest and last <= highest):
        raise IndexError(_limit_message(lowest, highest, f"{last if first >= lowest else first}"))


def _limit_message(lowest: int, highest: int, got: str) -> str:
    return (
        f"positions: expected {lowest} to {highest}, the rows that max_len allows, got {got}; raise max_len or leave "
        "it unset, there is no table to outgrow"
    )

"""One call of `add`: its checked arguments in canonical form, and the choice between kernel and eager twin."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from . import _backend, _checks, _grad, _rows, _traced, reference
from ._ops import plan_words
from ._plan import plan as _plan_of

_is_compiling = torch.compiler.is_compiling


class AddCall:
    """The arguments of `add` after every check, with x as (batch, *middle, sequence, channels).

    Attributes:
        x: as given.   view: x in canonical form.   shape: its sizes.   device.   acc: the dtype of products and sum.
        encoding.   given: the arguments that it came from.
        positions: None, (1 or B, S), or (1 or B, 1) int64 with `are_starts`: the first position of each sample.
        start: int, on top of encoding.start, where positions is None.
        alpha: float or tensor.   padding_mask: None or (1 or B, S) bool.
    """

    __slots__ = (
        "acc",
        "alpha",
        "are_starts",
        "axes",
        "device",
        "encoding",
        "given",
        "padding_mask",
        "positions",
        "scale",
        "shape",
        "start",
        "view",
        "x",
    )

    def __init__(
        self,
        x: Any,
        encoding: Any,
        positions: Any,
        start: Any,
        scale: Any,
        alpha: Any,
        padding_mask: Any,
        seq_dim: Any,
        channel_dim: Any,
    ):
        _checks.summand(x)
        rank = x.dim()
        rows_at, channels_at = _checks.axis("seq_dim", seq_dim, rank), _checks.axis("channel_dim", channel_dim, rank)
        if rows_at == channels_at:
            raise ValueError(
                f"seq_dim, channel_dim: expected two dimensions of x, got {seq_dim} and {channel_dim}, which are one; "
                "pass different ones"
            )
        self.x: Tensor = x
        self.device = x.device
        self.acc = torch.float64 if x.dtype == torch.float64 else torch.float32
        self.axes = (rows_at, channels_at)
        self.view = self.canonical(x)
        self.shape = self.view.shape
        rows, width = x.shape[rows_at], operator.index(x.shape[channels_at])
        batch = self.shape[0] if rank > 2 else 1
        self.given = (encoding, width)
        self.encoding = _checks.encoding(encoding, width)
        if encoding is not None or width:
            _checks.channels(x, width, self.encoding.dim)
        self.scale = _checks.factor("scale", scale)
        if isinstance(alpha, Tensor):
            _checks.alpha_tensor(alpha, x)
            self.alpha: float | Tensor = alpha
        else:
            self.alpha = _checks.factor("alpha", alpha)
        self.padding_mask = None if padding_mask is None else _checks.padding_mask(padding_mask, x, batch, rows)
        self._set_positions(positions, start, batch, rows)

    def _set_positions(self, positions: Any, start: Any, batch: int, rows: int) -> None:
        self.positions: Tensor | None = None
        self.are_starts = False
        self.start: Any = 0
        if positions is not None:
            if not isinstance(start, int) or start != 0:
                raise ValueError(
                    "start: expected 0 together with positions, which are final, got "
                    f"{start if isinstance(start, int) else type(start).__name__}; add it to positions"
                )
            positions = _checks.positions(positions)
            _checks.same_device("positions", positions, self.x)
            self.positions = _checks.companion("positions", positions, self.x, batch, rows)
        elif isinstance(start, Tensor):
            self.positions = _checks.start_tensor(start, self.x, batch, rows, self.encoding.start)
            self.are_starts = True
        elif _is_compiling() and isinstance(start, (int, torch.SymInt)):
            self.start = start  # may be a symbol of the graph; the operator checks the range
        else:
            self.start = _checks.start(start)
            _checks.position_range(self.encoding.start + self.start, rows)

    def canonical(self, t: Tensor) -> Tensor:
        """A tensor of x's shape as (batch, *middle, sequence, channels)."""
        rank, (rows_at, channels_at) = t.dim(), self.axes
        if (rows_at, channels_at) == (rank - 2, rank - 1):
            return t
        others = [d for d in range(rank) if d not in self.axes]
        return t.permute(*others, rows_at, channels_at)

    def restored(self, t: Tensor) -> Tensor:
        """The inverse of `canonical`."""
        rank, (rows_at, channels_at) = t.dim(), self.axes
        if (rows_at, channels_at) == (rank - 2, rank - 1):
            return t
        order = [d for d in range(rank) if d not in self.axes] + [rows_at, channels_at]
        return t.permute(*(order.index(d) for d in range(rank)))

    def needs_grad(self) -> bool:
        """Whether autograd wants to know of this call."""
        return torch.is_grad_enabled() and (
            self.x.requires_grad
            or (isinstance(self.alpha, Tensor) and self.alpha.requires_grad)
            or (self.positions is not None and self.positions.requires_grad)
        )

    def run(self, out: Tensor | None = None) -> Tensor:
        """Computes, without autograd; `out` in canonical form. The result is in x's own form where `out` is None."""
        with torch.no_grad():
            if out is not None and out.is_neg():  # its sign turns on reading; kernels write plain numbers
                return out.copy_(self.canonical(self.run()))
            target = self.canonical(torch.empty_like(self.x)) if out is None else out
            if self.view.numel() and not _rows.no_data(self.device):
                self._fill(target)
            return self.restored(target) if out is None else out

    def _fill(self, target: Tensor) -> None:
        view = self.view
        if self.encoding.angle != "exact":
            target.copy_(self._sum())
        elif view.device.type == "cpu" and _backend.compiled("cpu"):
            torch.ops.sinpe_ext.add_out.default(
                view.detach(),
                plan_words(self.encoding),
                self.positions,
                self.padding_mask,
                self.start,
                self.are_starts,
                self.scale,
                self.alpha.item() if isinstance(self.alpha, Tensor) else self.alpha,
                target.detach(),
            )
        else:
            plan, first = _plan_of(self.encoding), self.encoding.start + self.start
            positions, mask = self.positions, self.padding_mask
            reference.add(plan, view.detach(), positions, first, self.scale, self.alpha, mask, target.detach())

    def rows(self, positions: Tensor | None) -> Tensor:
        """The encoding in acc, broadcastable to `view`; differentiable in `positions`, of self.positions' form."""
        length, acc, device = self.shape[-2], self.acc, self.device
        if positions is not None and self.are_starts:
            positions = positions + torch.arange(length, device=device)
        if _is_compiling():
            if positions is None:
                rows = _traced.table(self.given, length, self.start, acc, device)
            else:
                rows = _traced.encode(self.given, positions, acc)
        elif positions is None:
            rows = _rows.table(self.encoding, length, self.start, acc, device)
        else:
            rows = _grad.encode_any(positions, self.encoding, acc)
        return self.arranged(rows)

    def arranged(self, rows: Tensor) -> Tensor:
        """(S, *) or (1 or B, S, *) as a tensor broadcastable to `view`."""
        if rows.dim() == 2:
            return rows
        if len(self.shape) == 2:
            return rows[0]
        return rows.reshape(rows.shape[0], *(1,) * (len(self.shape) - 3), *rows.shape[1:])

    def masked(self, t: Tensor, mask: Tensor | None, value: float) -> Tensor:
        """A tensor broadcastable to `view` with `value` where `mask` says padding."""
        return t if mask is None else torch.where(self.arranged(mask.unsqueeze(-1)), value, t)

    def _sum(self) -> Tensor:
        """scale * x + alpha * PE in acc and canonical form, differentiable."""
        x, rows = self.view.to(self.acc), self.rows(self.positions)
        if self.scale != 1.0:
            x = x * self.scale
        if isinstance(self.alpha, Tensor):
            rows = rows * self.alpha.to(self.acc)
        elif self.alpha != 1.0:
            rows = rows * self.alpha
        # x + (-0.0) is x for every x; adding +0.0 would turn -0.0 around.
        return x + self.masked(rows, self.padding_mask, -0.0)

    def traced(self) -> Tensor:
        """The whole of `add` in differentiable operations, for a compiler that fuses them into its neighbours."""
        return self.restored(self._sum().to(self.x.dtype))

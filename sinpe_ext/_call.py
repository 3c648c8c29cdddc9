"""One call of `add`: its checked arguments in canonical form, and the choice between kernel and eager twin."""

from __future__ import annotations

from typing import Any

import torch

from . import _backend, _checks, reference
from ._ops import plan_words
from ._plan import plan as _plan_of
from .encoding import Encoding


class AddCall:
    """The arguments of `add` after every check, with x as (batch, *middle, sequence, channels).

    Attributes:
        x: as given.   view: x in canonical form.   encoding, plan.
        positions: None, (1 or B, S), or (1 or B, 1) int64 with `are_starts`: the first position of each sample.
        start: int, on top of encoding.start, where positions is None.
        alpha: float or tensor.   padding_mask: None or (1 or B, S) bool.
    """

    __slots__ = ("alpha", "are_starts", "axes", "encoding", "padding_mask", "plan", "positions", "scale", "start", "view", "x")

    def __init__(
        self,
        x: torch.Tensor,
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
            raise ValueError(f"seq_dim, channel_dim: expected two dimensions of x, got {seq_dim} and {channel_dim}")
        self.x = x
        self.axes = (rows_at, channels_at)
        self.view = self.canonical(x)
        width, rows = x.shape[channels_at], x.shape[rows_at]
        batch = self.view.shape[0] if rank > 2 else 1
        self.encoding = _checks.encoding(Encoding(max(width, 1)) if encoding is None else encoding, width)
        if encoding is not None or width:
            _checks.channels(x, width, self.encoding.dim)
        self.plan = _plan_of(self.encoding)
        self.scale = _checks.factor("scale", scale)
        if isinstance(alpha, torch.Tensor):
            _checks.alpha_tensor(alpha, x)
            self.alpha: float | torch.Tensor = alpha
        else:
            self.alpha = _checks.factor("alpha", alpha)
        self.padding_mask = None if padding_mask is None else _checks.padding_mask(padding_mask, x, batch, rows)
        self._set_positions(positions, start, batch, rows)

    def _set_positions(self, positions: Any, start: Any, batch: int, rows: int) -> None:
        self.positions: torch.Tensor | None = None
        self.are_starts = False
        self.start = 0
        if positions is not None:
            if isinstance(start, torch.Tensor) or start != 0:
                raise ValueError(
                    "start: expected 0 together with positions, which are final, got "
                    f"{'a tensor' if isinstance(start, torch.Tensor) else start}; add it to positions"
                )
            positions = _checks.positions(positions)
            _checks.same_device("positions", positions, self.x)
            self.positions = _checks.companion("positions", positions, self.x, batch, rows)
        elif isinstance(start, torch.Tensor):
            start = start + self.encoding.start if self.encoding.start else start
            self.positions = _checks.start_tensor(start, self.x, batch, rows)
            self.are_starts = True
        else:
            self.start = start if torch.compiler.is_compiling() else _checks.start(start)
            if not torch.compiler.is_compiling():
                _checks.position_range(self.encoding.start + self.start, rows)

    def canonical(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor of x's shape as (batch, *middle, sequence, channels)."""
        rank, (rows_at, channels_at) = t.dim(), self.axes
        if (rows_at, channels_at) == (rank - 2, rank - 1):
            return t
        others = [d for d in range(rank) if d not in self.axes]
        return t.permute(*others, rows_at, channels_at)

    def needs_grad(self) -> bool:
        """Whether autograd wants to know of this call."""
        return torch.is_grad_enabled() and (
            self.x.requires_grad
            or (isinstance(self.alpha, torch.Tensor) and self.alpha.requires_grad)
            or (self.positions is not None and self.positions.requires_grad)
        )

    @property
    def compiled(self) -> bool:
        return self.x.device.type == "cpu" and self.encoding.angle == "exact" and _backend.compiled("cpu")

    def run(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Computes, without autograd; `out` in canonical form. The result is in x's own form where `out` is None."""
        with torch.no_grad():
            return self._run(out)

    def _run(self, out: torch.Tensor | None) -> torch.Tensor:
        view = self.view
        target = self.canonical(torch.empty_like(self.x)) if out is None else out
        if view.numel() == 0 or view.device.type == "meta":
            pass
        elif self.compiled:
            alpha = float(self.alpha)
            torch.ops.sinpe_ext.add_out.default(
                view.detach(),
                plan_words(self.encoding),
                self.positions,
                self.padding_mask,
                self.start,
                self.are_starts,
                self.scale,
                alpha,
                target.detach(),
            )
        elif self.encoding.angle != "exact":
            acc = self.acc()
            target.copy_(self._scaled(view, acc) + self.rows() * self._alpha(acc))
        else:
            first = self.encoding.start + self.start
            reference.add(
                self.plan, view.detach(), self.positions, first, self.scale, self.alpha, self.padding_mask, target.detach()
            )
        return self.restored(target) if out is None else out

    def restored(self, t: torch.Tensor) -> torch.Tensor:
        """The inverse of `canonical`."""
        rank, (rows_at, channels_at) = t.dim(), self.axes
        if (rows_at, channels_at) == (rank - 2, rank - 1):
            return t
        order = [d for d in range(rank) if d not in self.axes] + [rows_at, channels_at]
        return t.permute(*(order.index(d) for d in range(rank)))

    def acc(self) -> torch.dtype:
        return torch.float64 if self.x.dtype == torch.float64 else torch.float32

    def _scaled(self, view: torch.Tensor, acc: torch.dtype) -> torch.Tensor:
        return view.to(acc) * self.scale

    def _alpha(self, acc: torch.dtype) -> Any:
        return self.alpha.to(acc) if isinstance(self.alpha, torch.Tensor) else self.alpha

    def rows(self, positions: torch.Tensor | None = None) -> torch.Tensor:
        """The encoding of this call in acc, broadcastable to `view`, -0.0 on padding.

        positions: stands for self.positions in a differentiable computation.
        """
        from .functional import encode, table

        view, acc = self.view, self.acc()
        length = view.shape[-2]
        positions = self.positions if positions is None else positions
        if positions is None:
            rows = table(length, self.encoding, start=self.start, dtype=acc, device=view.device)
        else:
            if self.are_starts:
                positions = positions + torch.arange(length, device=view.device)
            rows = encode(positions, self.encoding, dtype=acc)
        return self.arranged(rows)

    def arranged(self, rows: torch.Tensor) -> torch.Tensor:
        """(S, D) or (1 or B, S, D) as a tensor broadcastable to `view`, -0.0 on padding."""
        if self.padding_mask is not None:
            # x + (-0.0) is x for every x; adding +0.0 would turn -0.0 around.
            rows = rows.masked_fill(self.padding_mask.unsqueeze(-1), -0.0)
        if rows.dim() == 3:
            middle = (1,) * (self.view.dim() - 3)
            return rows.reshape(rows.shape[0], *middle, *rows.shape[1:]) if self.view.dim() > 2 else rows[0]
        return rows

    def traced(self) -> torch.Tensor:
        """The whole of `add` in differentiable operations, for a compiler that fuses them into its neighbours."""
        acc = self.acc()
        out = self._scaled(self.view, acc) + self.rows() * self._alpha(acc)
        return self.restored(out.to(self.x.dtype))

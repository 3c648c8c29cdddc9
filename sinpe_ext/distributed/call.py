"""One call of `add` or `embed` with DTensors: the same call on this rank's shard, and the result as a DTensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ..operations import checks, memory
from ..operations.add import AddArguments, Addition, SequenceAdd
from ..operations.embed import EmbedArguments, EmbedCall
from . import dtensor
from .grid import local_call


class _OutsideMesh:
    """The call in a process that is not part of the mesh. As in torch's own operations, its result is empty, and its
    other arguments are not checked."""

    def needs_grad(self, *others: Tensor) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in others)


class ShardedAdd:
    """`add` of a DTensor, with the methods of Addition.

    Attributes:
        original: x of the caller.
        x: x with Shard and Replicate placements only.
        local: the call on this rank's shard.
    """

    local: Addition | _OutsideMesh

    def __init__(self, arguments: AddArguments) -> None:
        x: DTensor = arguments.x
        checks.check_x(x)
        self.original = x
        dtensor.check_part("x", x)
        self.x = dtensor.plain_shards(x)
        dtensor.equal_in_graph("x", self.x)
        self.layout = dtensor.layout(x.device_mesh, self.x.placements, x.shape)
        if dtensor.is_outside(x.device_mesh):
            self.local = _OutsideMesh()
            return
        part = self.x.to_local(grad_placements=self.x.placements)
        if arguments.is_sequence():
            self.local = self._sequence(arguments, part)
        else:
            self.local = local_call(arguments._replace(x=self.x), part, self.layout)

    def _sequence(self, arguments: AddArguments, part: Tensor) -> SequenceAdd:
        """The call on this rank's shard for a one-dimensional encoding."""
        x, rank = self.x, self.x.dim()
        rows_at = checks.axis("seq_dim", arguments.seq_dim, rank)
        channels_at = checks.axis("channel_dim", arguments.channel_dim, rank)
        batch_at = next((d for d in range(rank) if d not in (rows_at, channels_at)), None)
        of = checks.Target("x", x.shape, x.device, 1 if batch_at is None else x.shape[batch_at], x.shape[rows_at])
        arguments = dtensor.companions(self.layout, of, batch_at, rows_at, arguments)
        seed = dtensor.seed_of_all(arguments.seed, arguments.dropout, self.layout, part.device)
        arguments = arguments._replace(x=part, seq_dim=rows_at, channel_dim=channels_at, seed=seed)
        return SequenceAdd(arguments, self.layout.part)

    def result(self) -> Tensor:
        """`add`, differentiable."""
        if isinstance(self.local, _OutsideMesh):
            return self.x.clone()
        return self.layout.result(self.local.result(), self.x.shape, self.x)

    def needs_grad(self, *others: Tensor) -> bool:
        return self.local.needs_grad(*others)

    def result_in_place(self) -> Tensor:
        """`add_`, differentiable."""
        memory.in_place(self.original)
        self._same_places("x", self.original)
        if isinstance(self.local, _OutsideMesh):
            return self.original
        self.local.check_disjoint(self.local.x)
        if self.needs_grad(self.original):
            return self.original.copy_(self.result())
        with torch.no_grad():
            self.local.write_to(self.local.x)
        return _written(self.original)

    def result_into(self, out: Any) -> Tensor:
        """`add` with `out`."""
        if not isinstance(out, DTensor):
            raise TypeError(f"out: expected a DTensor, as x is, got {type(out).__name__}; pass torch.empty_like(x)")
        if out.shape != self.x.shape:
            raise ValueError(f"out: expected shape {tuple(self.x.shape)}, got {tuple(out.shape)}; pass empty_like(x)")
        self._same_places("out", out)
        if isinstance(self.local, _OutsideMesh):
            return out
        dtensor.check_part("out", out)
        memory.refuse_gradient(self.needs_grad(self.x) or out.requires_grad)
        with torch.no_grad():
            self.local.result_into(out.to_local())
        return _written(out)

    def _same_places(self, name: str, t: DTensor) -> None:
        """Raises ValueError if a DTensor that is written to has another mesh or other placements than x."""
        if t.device_mesh != self.x.device_mesh or tuple(t.placements) != self.layout.placements:
            raise ValueError(
                f"{name}: expected placements {self.layout.placements} on the mesh of x to write to, got "
                f"{tuple(t.placements)} on {t.device_mesh}; redistribute it first"
            )


def _written(t: Tensor) -> Tensor:
    """Increments the version counter of a DTensor whose shard was written to."""
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(t)
    return t


class ShardedEmbed:
    """`embed` of DTensors, with the methods of EmbedCall.

    ids may be sharded, and weight by its channels; ids is replicated over mesh dimensions that shard weight.
    """

    local: EmbedCall | _OutsideMesh

    def __init__(self, arguments: EmbedArguments) -> None:
        ids, weight = arguments.ids, arguments.weight
        checks.weight(weight)
        mesh = weight.device_mesh if isinstance(weight, DTensor) else ids.device_mesh
        weight = dtensor.plain_shards(dtensor.on_mesh("weight", weight, mesh))
        if any(isinstance(p, Shard) and p.dim == 0 for p in weight.placements):
            raise ValueError(
                "weight: expected all rows on every rank, replicated or sharded by channels (ColwiseParallel), got "
                f"placements {tuple(weight.placements)}; redistribute it, or look up with torch's embedding and call "
                "add on the result"
            )
        ids = dtensor.plain_shards(dtensor.on_mesh("ids", checks.ids(ids, weight), mesh))
        if arguments.sparse:
            raise ValueError("sparse: expected False for DTensors, which have no sparse gradients, got True")
        rank = ids.dim()
        rows_at = checks.axis("seq_dim", arguments.seq_dim, rank, "ids")
        batch_at = next((d for d in range(rank) if d != rows_at), None)
        both = list(zip(ids.placements, weight.placements, strict=True))
        ids = ids.redistribute(placements=[Replicate() if isinstance(w, Shard) else p for p, w in both])
        placements: list[Placement] = [
            Shard(rank) if isinstance(w, Shard) else p for p, w in zip(ids.placements, weight.placements, strict=True)
        ]
        shape = (*ids.shape, weight.shape[1])
        self.layout = dtensor.layout(mesh, placements, shape)
        dtensor.equal_in_graph("ids", ids)
        if dtensor.is_outside(mesh):
            self.local = _OutsideMesh()
            self.nothing = weight.to_local().new_empty(0)
            return
        of = checks.Target(
            "ids", ids.shape, ids.device, 1 if batch_at is None else ids.shape[batch_at], ids.shape[rows_at]
        )
        arguments = dtensor.companions(self.layout, of, batch_at, rows_at, arguments)
        part = self.layout.local("weight", weight, {rank: 1})
        seed = dtensor.seed_of_all(arguments.seed, arguments.dropout, self.layout, part.device)
        arguments = arguments._replace(ids=ids.to_local(), weight=part, seed=seed, seq_dim=rows_at)
        self.local = EmbedCall(arguments, self.layout.part)

    def result(self) -> Tensor:
        """`embed`, differentiable."""
        if isinstance(self.local, _OutsideMesh):
            return self.layout.result(self.nothing, self.layout.part.shape)
        return self.layout.result(self.local.result(), self.layout.part.shape)

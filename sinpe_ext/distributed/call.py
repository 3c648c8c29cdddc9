"""One call of `add` or `embed` with DTensors: the same call on this rank's shard, and the result as a DTensor.

In a process that is not part of the mesh there is no call: as in torch's own operations the result is empty, and the
other arguments are not checked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ..operations import checks, layout, memory
from ..operations.add import AddArguments, CheckedAdd, check_add
from ..operations.embed import CheckedEmbed, EmbedArguments, check_embed
from . import dtensor


class ShardedAdd:
    """`add` of a DTensor, with the methods of CheckedAdd.

    Attributes:
        original: x of the caller.
        x: x with Shard and Replicate placements only.
        call: the call on this rank's shard.
    """

    call: CheckedAdd | None = None

    def __init__(self, arguments: AddArguments) -> None:
        x = self.original = arguments.x
        checks.check_x(x)
        dtensor.check_part("x", x)
        self.x: DTensor = dtensor.plain_shards(x)
        dtensor.equal_in_graph("x", self.x)
        self.sharding = dtensor.sharding(x.device_mesh, self.x.placements, x.shape)
        if not dtensor.is_outside(x.device_mesh):
            part = self.x.to_local(grad_placements=self.x.placements)
            companions = self._of_sequence if arguments.is_sequence() else self._of_grid
            local = companions(arguments._replace(x=self.x), part.device)
            self.call = check_add(local._replace(x=part), self.sharding.part)

    def _of_sequence(self, arguments: AddArguments, device: torch.device) -> AddArguments:
        """The arguments for this rank's shard of a sequence."""
        return dtensor.companions(self.sharding, layout.of_x(arguments), arguments, device)

    def _of_grid(self, arguments: AddArguments, device: torch.device) -> AddArguments:
        """The arguments for this rank's samples or channels of a grid, or of a sequence with extra tokens."""
        sharding, names = self.sharding, ("positions", "start", "alpha", "padding_mask")
        arguments = arguments._replace(**{name: sharding.local(name, getattr(arguments, name), {}) for name in names})
        arguments = arguments._replace(seed=dtensor.seed_of_all(arguments.seed, arguments.dropout, sharding, device))
        whole = check_add(arguments).sum
        for placement in sharding.placements:
            if isinstance(placement, Shard) and placement.dim in whole.layout.rows_at:
                raise ValueError(
                    "x: expected the whole grid (or sequence with extra_tokens) on every rank, got a DTensor that is "
                    f"sharded along dimension {placement.dim} of shape {tuple(self.x.shape)}; shard its samples or "
                    "channels, or call add on x.to_local() with the positions of its rows"
                )
        own = slice(None)
        if whole.layout.batch_at:
            first = sharding.part.first[whole.layout.batch_at[0]]
            own = slice(first, first + sharding.sizes[whole.layout.batch_at[0]])
        checked = {"positions": whole.positions, "start": whole.positions, "padding_mask": whole.padding_mask}
        have_samples = [name for name, t in checked.items() if t is not None and t.shape[0] > 1]
        given = {name: getattr(arguments, name) for name in have_samples}
        return arguments._replace(**{name: t[own] for name, t in given.items() if isinstance(t, Tensor)})

    def result(self) -> Tensor:
        """`add`, differentiable."""
        return self.x.clone() if self.call is None else self.sharding.result(self.call.result(), self.x.shape, self.x)

    def result_in_place(self) -> Tensor:
        """`add_`, differentiable."""
        memory.in_place(self.original)
        self._same_places("x", self.original)
        if self.call is None:
            return self.original
        self.call.check_disjoint(self.call.x)
        if self._needs_grad(self.original):
            return self.original.copy_(self.result())
        with torch.no_grad():
            self.call.write_to(self.call.x)
        return _written(self.original)

    def result_into(self, out: Any) -> Tensor:
        """`add` with `out`."""
        if not isinstance(out, DTensor):
            raise TypeError(f"out: expected a DTensor, as x is, got {type(out).__name__}; pass torch.empty_like(x)")
        if out.shape != self.x.shape:
            raise ValueError(f"out: expected shape {tuple(self.x.shape)}, got {tuple(out.shape)}; pass empty_like(x)")
        self._same_places("out", out)
        if self.call is None:
            return out
        dtensor.check_part("out", out)
        if self._needs_grad(out):
            memory.refuse_gradient()
        with torch.no_grad():
            self.call.result_into(out.to_local())
        return _written(out)

    def _needs_grad(self, written: Tensor) -> bool:
        needs_grad = self.call is not None and self.call.sum.needs_grad
        return torch.is_grad_enabled() and (needs_grad or self.x.requires_grad or written.requires_grad)

    def _same_places(self, name: str, t: DTensor) -> None:
        """Raises ValueError if a DTensor that is written to has another mesh or other placements than x."""
        if t.device_mesh != self.x.device_mesh or tuple(t.placements) != self.sharding.placements:
            raise ValueError(
                f"{name}: expected placements {self.sharding.placements} on the mesh of x to write to, got "
                f"{tuple(t.placements)} on {t.device_mesh}; redistribute it first"
            )


def _written(t: Tensor) -> Tensor:
    """Increments the version counter of a DTensor whose shard was written to."""
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(t)
    return t


class ShardedEmbed:
    """`embed` of DTensors, with the method of CheckedEmbed.

    ids may be sharded, and weight by its channels; ids is replicated over mesh dimensions that shard weight.
    """

    call: CheckedEmbed | None = None

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
        rank, shards_weight = ids.dim(), [isinstance(p, Shard) for p in weight.placements]
        whole = layout.of_ids(ids, weight.shape[1], arguments.seq_dim)
        both = list(zip(ids.placements, shards_weight, strict=True))
        ids = ids.redistribute(placements=[Replicate() if of_weight else p for p, of_weight in both])
        placements: list[Placement] = [Shard(rank) if of_weight else p for p, of_weight in both]
        self.sharding = dtensor.sharding(mesh, placements, whole.shape)
        dtensor.equal_in_graph("ids", ids)
        self.weight = weight
        if not dtensor.is_outside(mesh):
            local = dtensor.companions(self.sharding, whole, arguments, ids.device)
            part = self.sharding.local("weight", weight, {rank: 1})
            self.call = check_embed(local._replace(ids=ids.to_local(), weight=part), self.sharding.part)

    def result(self) -> Tensor:
        """`embed`, differentiable."""
        local = self.weight.to_local().new_empty(0) if self.call is None else self.call.result()
        return self.sharding.result(local, self.sharding.part.shape)

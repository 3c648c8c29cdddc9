"""`add`, `embed`, `encode` and `table` of DTensors: every rank computes its own shard, described by a `Part`.

DTensor's redistribute does the communication, its to_local and from_local the reduction of gradients. The `Part` gives
the shard's offset: its first position, its first channel, and the index of its first element, which determines the
dropout mask. So the result is bitwise equal to that of one process, for any sharding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from ..encodings import values
from ..encodings.values import strided_tensor
from ..operations import checks, dropout
from ..operations.layout import Layout, Part
from . import chunk


class Sharding(NamedTuple):
    """Where this rank's shard of a DTensor lies.

    Attributes:
        mesh: the device mesh.
        placements: Shard or Replicate, one for each dimension of the mesh.
        part: offset of the shard in the whole.
        sizes: shape of the shard.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    part: Part
    sizes: tuple[int, ...]

    def result(self, local: Tensor, shape: Sequence[int], like: Tensor | None = None) -> DTensor:
        """The DTensor of `shape` with `local` as this rank's shard, and the strides of torch.empty_like(like)."""
        join = _join if torch.compiler.is_compiling() or not local.requires_grad else _Join.apply
        return join(local, self.mesh, self.placements, torch.Size(shape), _dense_stride(shape, like))

    def local(self, name: str, value: Any, along: Mapping[int, int]) -> Any:
        """This rank's shard of an argument that accompanies the data: a DTensor, or a tensor that all ranks have.

        Args:
            along: maps a dimension of the data to the corresponding dimension of `value`. Over mesh dimensions that
                shard a dimension of the data without a corresponding one, the gradient of `value` is a sum over ranks.
        """
        if not isinstance(value, Tensor):
            return value
        wanted: list[Placement] = []
        gradient: list[Placement] = []
        for placement in self.placements:
            at = along.get(placement.dim) if isinstance(placement, Shard) else None
            wanted.append(Replicate() if at is None else Shard(at))
            sums = at is None and isinstance(placement, Shard)
            gradient.append(Partial() if sums else wanted[-1])
        spread = on_mesh(name, value, self.mesh).redistribute(placements=wanted)
        return spread.to_local(grad_placements=gradient)


def _join(
    local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: torch.Size, stride: tuple[int, ...]
) -> DTensor:
    """The DTensor with `local` as the shard of this rank."""
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


class _Join(torch.autograd.Function):
    """from_local with a second derivative: torch's own redistributes a gradient with other placements (which occur if a
    dimension is shorter than the number of ranks) in a way that autograd does not record."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, *where: Any) -> DTensor:
        _, ctx.placements, *_ = where
        return _join(local.detach(), *where)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        mine = grad.redistribute(placements=ctx.placements).to_local(grad_placements=ctx.placements)
        return mine, None, None, None, None


def sharding(mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]) -> Sharding:
    """Where this rank's shard of a tensor of `shape` lies, with the sizes of torch.chunk along each dimension."""
    first, sizes = [0] * len(shape), list(shape)
    coordinate = mesh.get_coordinate()
    if not torch.compiler.is_compiling() and any(type(k) is not int for k in coordinate or ()):
        raise TypeError(
            "device_mesh: expected the mesh of one process, got one of torch's simulation of many ranks in one; run "
            "the ranks as processes, or leave its mode"
        )
    for k, placement in enumerate(placements):
        if isinstance(placement, Shard):
            d = placement.dim
            # A process that is not part of the mesh has an empty shard.
            rank = mesh.size(k) if coordinate is None else coordinate[k]
            at, sizes[d] = chunk(sizes[d], mesh.size(k), rank)
            first[d] += at
    return Sharding(mesh, tuple(placements), Part(tuple(shape), tuple(first)), tuple(sizes))


def is_outside(mesh: DeviceMesh) -> bool:
    """Whether this process is not part of a mesh: it has no shards, and nothing to compute."""
    return mesh.get_coordinate() is None


def check_part(name: str, t: DTensor) -> None:
    """Raises ValueError if the shard of this rank does not have the size that torch.chunk gives it.

    `DTensor.from_local` allows such a shard. Its offset in the whole is unknown, so it would get the positions and the
    dropout mask of other rows.
    """
    places = t.placements
    if torch.compiler.is_compiling() or is_outside(t.device_mesh):
        return
    if not any(isinstance(p, Shard) for p in places) or not all(type(p) in (Shard, Replicate, Partial) for p in places):
        return  # replicated, or placements that redistribute converts first
    expected = sharding(t.device_mesh, places, t.shape).sizes
    with torch.no_grad():
        got = tuple(t.to_local().shape)
    if got != expected:
        raise ValueError(
            f"{name}: expected a part of shape {expected} on this rank, as torch.chunk cuts {tuple(t.shape)}, got "
            f"{got}; make the DTensor by distribute_tensor, or pass the part as an ordinary tensor with its positions"
        )


def equal_in_graph(name: str, t: DTensor) -> None:
    """Raises ValueError for shards of different sizes under torch.compile.

    A graph is recompiled if the size of the shard changes, but not if only the size of the whole changes. It would then
    use an offset and a dropout mask that belong to another size of the whole.
    """
    if not torch.compiler.is_compiling():
        return
    sizes = list(t.shape)
    for k, placement in enumerate(t.placements):
        if isinstance(placement, Shard):
            ranks = t.device_mesh.size(k)
            if sizes[placement.dim] % ranks:
                raise ValueError(
                    f"{name}: expected shards of one size under torch.compile, got dimension {placement.dim} of "
                    f"{sizes[placement.dim]} over {ranks} ranks, where a graph cannot see that the whole has changed; "
                    "pad it to a multiple, or call this layer outside of the compiled function"
                )
            sizes[placement.dim] //= ranks


def plain_shards(t: DTensor) -> DTensor:
    """Redistributes to Shard and Replicate placements only: reduces Partial ones and undoes strided sharding."""
    wanted = [p if type(p) is Shard else Replicate() for p in t.placements]
    return t if list(t.placements) == wanted else t.redistribute(placements=wanted)


def on_mesh(name: str, value: Tensor, mesh: DeviceMesh) -> DTensor:
    """Checks a DTensor and returns it; a tensor, which is the same on all ranks, becomes a replicated DTensor."""
    if not isinstance(value, DTensor):
        strided_tensor(name, value)
        if value.device.type != mesh.device_type:
            raise RuntimeError(
                f"{name}: expected the device of the mesh, {mesh.device_type}, got {value.device}; move it there"
            )
        return DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
    if value.device_mesh != mesh:
        raise ValueError(
            f"{name}: expected a DTensor on the mesh of the data, {mesh}, got one on {value.device_mesh}; redistribute "
            "it, or pass full_tensor()"
        )
    check_part(name, value)
    return value


def seed_of_all(seed: Any, dropout: Any, of: Sharding, device: torch.device) -> Any:
    """The seed for the calls of all ranks; drawn by the first rank if none was given and dropout is random.

    Called before any check of a rank's own values, so that a rank that raises leaves no other rank waiting.
    """
    seed = checks.seed(seed, device)
    is_drawn = seed is None or isinstance(seed, torch.Generator)
    if not is_drawn or not 0 < values.drop_threshold(dropout) < values.DROP_UNIT or 0 in of.part.shape:
        return seed
    return agreed_seed(seed, of.mesh, device)


def agreed_seed(seed: Any, mesh: DeviceMesh, device: torch.device) -> Tensor:
    """The seed of the first rank, given or drawn, on all ranks of a mesh."""
    drawn = dropout.seed_tensor(seed, device).to(device)
    if not torch.compiler.is_compiling():
        copies: Tensor = distribute_tensor(drawn, mesh, [Replicate()] * mesh.ndim).to_local()
        return copies
    # torch.compile does not support distribute_tensor, but it does support a sum over the ranks.
    coordinate = mesh.get_coordinate()
    mine = drawn if coordinate is None or not any(coordinate) else torch.zeros_like(drawn)
    pending = DTensor.from_local(mine, mesh, [Partial()] * mesh.ndim, run_check=False)
    return pending.redistribute(placements=[Replicate()] * mesh.ndim).to_local()


def companions(sharding: Sharding, whole: Layout, arguments: Any, device: torch.device) -> Any:
    """The arguments with this rank's shards of positions, start, alpha and padding_mask, after checking their shapes
    against the whole, which has one row for each position; and with the seed of all ranks."""
    of, batch_at = whole.target, whole.batch_at[:1]

    def local(name: str, value: Any) -> Any:
        """This rank's shard of a value of shape (1 or B, S), or of starts of shape (B,)."""
        if not isinstance(value, Tensor):
            return value
        along = {whole.rows_at[0]: 1} if value.dim() > 1 else {}
        has_samples = value.dim() and value.shape[0] == of.batch != 1
        return sharding.local(name, value, along | ({d: 0 for d in batch_at} if has_samples else {}))

    shards: dict[str, Any] = {}
    for name, value in (("positions", arguments.positions), ("padding_mask", arguments.padding_mask)):
        if isinstance(value, Tensor):
            try:
                value = checks.of_rows(name, on_mesh(name, value, sharding.mesh), of)
            except ValueError as error:
                raise ValueError(f"{error}; with DTensors that is the whole, or a DTensor of its own") from None
        shards[name] = local(name, value)
    if isinstance(arguments.start, Tensor):
        checks.start_shape(arguments.start.shape, (), of)
    shards["start"], shards["alpha"] = local("start", arguments.start), sharding.local("alpha", arguments.alpha, {})
    return arguments._replace(**shards, seed=seed_of_all(arguments.seed, arguments.dropout, sharding, device))


def _dense_stride(shape: Sequence[int], like: Tensor | None) -> tuple[int, ...]:
    """Strides of a dense tensor of `shape` whose dimensions have the same order in memory as those of `like`."""
    order = list(range(len(shape)))
    if like is not None and not like.is_contiguous():
        order.sort(key=like.stride, reverse=True)
    stride, step = [0] * len(shape), 1
    for d in reversed(order):
        stride[d] = step
        step *= max(shape[d], 1)
    return tuple(stride)

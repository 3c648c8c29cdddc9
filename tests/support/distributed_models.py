"""Cases of embeddings and layers in distributed models: see distributed_support.py."""

from __future__ import annotations

import contextlib
import copy
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from distributed_support import SUM, case, distribute, raises, same
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import sinpe_ext as sinpe


@case
def embed(mesh: DeviceMesh) -> None:
    """ids sharded by sample or sequence, or weight by channel."""
    for (b, s), (rows, d) in (((4, 6), (8, 8)), ((3, 7), (9, 10)), ((2, 3), (3, 5))):
        ids, weight = torch.randint(0, rows, (b, s)), torch.randn(rows, d)
        calls = {
            "plain": {},
            "padding": {"padding_idx": 1, "encode_padding": False, "start": 4, "scale": 2.0},
            "all": {"dropout": 0.3, "seed": 5, "alpha": torch.tensor([0.5]), "padding_mask": torch.rand(b, s) > 0.5},
            "positions": {"positions": torch.randint(0, 10**6, (b, s)), "encoding": "t2t"},
        }
        places: list[tuple[Placement, Placement, Placement]] = [
            (Shard(0), Replicate(), Shard(0)),
            (Shard(1), Replicate(), Shard(1)),
            (Replicate(), Shard(1), Shard(2)),
            (Shard(0), Shard(1), Shard(2)),
        ]
        for name, arguments in calls.items():
            for of_ids, of_weight, result in places:
                what = name, (b, s), of_ids, of_weight
                one, many = weight.clone().requires_grad_(), distribute(weight, mesh, of_weight)
                y = sinpe.embed(ids, one, **arguments)
                ys = sinpe.embed(distribute_tensor(ids, mesh, [of_ids]), many, **arguments)
                assert list(ys.placements) == [result], (what, ys.placements)
                same(ys, y, what)
                grad = torch.randint(-4, 5, y.shape).float()
                y.backward(grad)
                ys.backward(distribute_tensor(grad, mesh, ys.placements))
                if not arguments.get("dropout"):  # integers: sums are exact
                    assert torch.equal(many.grad.full_tensor(), one.grad), what
                torch.testing.assert_close(many.grad.full_tensor(), one.grad, rtol=SUM, atol=1e-5)
        one = weight.clone().requires_grad_()
        y = sinpe.embed(ids, one)
        many = weight.clone().requires_grad_()  # replicated
        ys = sinpe.embed(distribute_tensor(ids, mesh, [Shard(1)]), many)
        same(ys, y)
        y.sum().backward()
        ys.sum().backward()
        assert torch.equal(many.grad, one.grad)


@case
def embed_on_two_dimensions(mesh: DeviceMesh) -> None:
    if mesh.size() < 4:
        return
    square = init_device_mesh("cpu", (2, mesh.size() // 2))
    ids, weight = torch.randint(0, 8, (4, 6)), torch.randn(8, 4)
    expected = sinpe.embed(ids, weight, dropout=0.3, seed=5)
    places = [Replicate(), Shard(0), Shard(1)]
    for of_weight in ([Shard(1), Replicate()], [Replicate(), Shard(1)], [Shard(1), Shard(1)]):
        for a in places:
            for b in places:
                many = distribute(weight, square, of_weight)
                y = sinpe.embed(distribute_tensor(ids, square, [a, b]), many, dropout=0.3, seed=5)
                same(y, expected, (of_weight, a, b))
                one = weight.clone().requires_grad_()
                sinpe.embed(ids, one, dropout=0.3, seed=5).sum().backward()
                y.sum().backward()
                torch.testing.assert_close(many.grad.full_tensor(), one.grad, rtol=SUM, atol=1e-5)


@case
def layers(mesh: DeviceMesh) -> None:
    """Modules after distribute_module and parallel styles: parameters are DTensors."""
    from torch.distributed.tensor import distribute_module

    layer = sinpe.SinusoidalPositionalEncoding(8, 0.0, max_len=16, learned_alpha=True)
    x = torch.randn(2, 7, 8)
    expected = layer(x)
    expected.sum().backward()
    grad = layer.alpha.grad.clone()
    layer.alpha.grad = None
    many = distribute_module(layer, mesh)
    for placement in (Shard(0), Shard(1), Shard(2)):
        y = many(distribute_tensor(x, mesh, [placement]))
        same(y, expected.detach())
        y.sum().backward()
        torch.testing.assert_close(many.alpha.grad.full_tensor(), grad, rtol=SUM, atol=1e-4)
        many.alpha.grad = None
    raises(IndexError, "x: expected at most 16 rows", many, distribute_tensor(torch.randn(2, 17, 8), mesh, [Shard(1)]))


class Front(nn.Module):
    """The embedding layers of a model, and one layer after them."""

    def __init__(self, rows: int = 16, dim: int = 8, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, dim)
        self.encoding = sinpe.SinusoidalPositionalEncoding(dim, 0.0, learned_alpha=True, scale=dim**0.5, **options)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, rows)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.head(self.norm(self.encoding(self.embedding(ids), positions=positions)))


def same_gradients(one: nn.Module, many: nn.Module, factor: float = 1.0) -> None:
    expected = dict(one.named_parameters())
    for name, parameter in many.named_parameters():
        grad = parameter.grad
        grad = grad.full_tensor() if isinstance(grad, DTensor) else grad
        close = {"rtol": 1e-4, "atol": 1e-5}  # sums over samples, in another order
        torch.testing.assert_close({name: grad * factor}, {name: expected[name].grad}, **close)


@case
def parallel_styles(mesh: DeviceMesh) -> None:
    """parallelize_module: sequence parallel layers after an embedding sharded by rows or by channels."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    ids = torch.randint(0, 16, (2, 8))
    for seed, style in enumerate((RowwiseParallel, ColwiseParallel)):
        torch.manual_seed(seed)
        one = Front()
        many = copy.deepcopy(one)
        plan = {
            "embedding": style(input_layouts=Replicate(), output_layouts=Shard(1)),
            "encoding": SequenceParallel(),
            "norm": SequenceParallel(),
            "head": PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate()),
        }
        many.head = nn.Identity()
        one.head = nn.Identity()
        parallelize_module(many, mesh, plan)
        expected, actual = one(ids), many(ids)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)  # reductions of the norm
        expected.square().sum().backward()
        actual.square().sum().backward()
        same_gradients(one, many)


@case
def embedding_styles(mesh: DeviceMesh) -> None:
    """SinusoidalEmbedding instead of nn.Embedding in a tensor parallel plan."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    ids = torch.randint(0, 16, (2, 8))
    for result in (Replicate(), Shard(1)):
        one = nn.Sequential(sinpe.SinusoidalEmbedding(16, 8, 0, dropout=0.0, scale=2.0))
        many = copy.deepcopy(one)
        layouts = {"input_layouts": Replicate(), "output_layouts": result, "use_local_output": False}
        by_rows = copy.deepcopy(one)
        parallelize_module(many, mesh, {"0": ColwiseParallel(**layouts)})
        expected, actual = one(ids), many(ids)
        same(actual, expected.detach(), result)
        expected.sum().backward()
        actual.sum().backward()
        assert torch.equal(many[0].weight.grad.full_tensor(), one[0].weight.grad), result
        parallelize_module(by_rows, mesh, {"0": RowwiseParallel(**layouts)})
        raises(ValueError, "weight: expected all rows on every rank", by_rows, ids)


@case
def fsdp2(mesh: DeviceMesh) -> None:
    """fully_shard: each rank has different samples; a learned alpha of one element is sharded like other parameters."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    rank, ranks = mesh.get_local_rank(), mesh.size()
    ids = torch.randint(0, 16, (ranks, 6))
    torch.manual_seed(1)
    one = Front()
    many = fully_shard(copy.deepcopy(one), mesh=mesh)
    assert many.encoding.alpha.shape == (1,) and isinstance(many.encoding.alpha, DTensor)
    expected, actual = one(ids), many(ids[rank : rank + 1])
    assert torch.equal(actual, expected[rank : rank + 1])
    expected.square().sum().backward()
    actual.square().sum().backward()
    same_gradients(one, many, factor=ranks)  # FSDP averages
    # Mixed precision casts floating-point inputs: int64 positions are unchanged, float ones are rejected.
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    many = fully_shard(copy.deepcopy(one), mesh=mesh, mp_policy=half)
    at = torch.arange(6) + 100_003
    cast = copy.deepcopy(one).bfloat16()
    assert torch.equal(many(ids[rank : rank + 1], at), cast(ids[rank : rank + 1], at))
    raises(TypeError, "cast_forward_inputs=False", many, ids[rank : rank + 1], at.float())
    whole = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
    many = fully_shard(copy.deepcopy(one), mesh=mesh, mp_policy=whole)
    assert torch.equal(many(ids[rank : rank + 1], at.float()), cast(ids[rank : rank + 1], at))


@case
def scalar_alpha(mesh: DeviceMesh) -> None:
    """A full checkpoint on the first rank only, with an alpha of shape (), for layers sharded by FSDP2."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    for shape in ((), (1,)):
        with torch.device("meta"):
            empty = fully_shard(Front(), mesh=mesh)
        full = {name: torch.full(t.shape, 0.5) for name, t in Front().state_dict().items()}
        full["encoding.alpha"] = torch.full(shape, 2.5)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        for many in (fully_shard(Front(), mesh=mesh), empty):
            set_model_state_dict(many, dict(full) if mesh.get_local_rank() == 0 else {}, options=options)
            assert many.encoding.alpha.full_tensor().tolist() == [2.5], shape


@case
def context_parallel(mesh: DeviceMesh) -> None:
    """Head-tail load balancing: positions are sharded with the data; a call without them is rejected."""
    from torch.distributed.tensor.experimental import context_parallel

    from sinpe_ext import distributed

    for length in (8 * mesh.size(), 3 * mesh.size()):  # the second cannot be balanced
        x = torch.randn(2, length, 8)
        expected = sinpe.add(x, start=5)
        local, at, wanted = x.clone(), torch.arange(length) + 5, expected.clone()
        layer = sinpe.SinusoidalPositionalEncoding(8).eval()
        assert not distributed.in_context_parallel()
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), layer(x))
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(context_parallel(mesh, buffers=[local, at, wanted], buffer_seq_dims=[1, 0, 1]))
            except AssertionError:  # torch 2.11 supports balanced parts only
                assert length % (2 * mesh.size())
                continue
            assert distributed.in_context_parallel()
            assert local.shape[1] == length // mesh.size()
            assert torch.equal(sinpe.add(local, positions=at), wanted)
            assert torch.equal(layer(local, positions=at), wanted)
            assert torch.equal(distributed.context_parallel_positions(length, mesh, start=5), at)
            words = "positions: expected the positions of these rows inside of context_parallel"
            raises(ValueError, words, sinpe.add, local)
            raises(ValueError, words, sinpe.add_, local.clone(), start=3)
            raises(ValueError, words, layer, local)
            raises(Exception, "positions: expected the positions of these rows", compiled, local)
            raises(ValueError, words, sinpe.SinusoidalEmbedding(9, 8).eval(), torch.zeros(2, 4).long())
            raises(ValueError, words, sinpe.add, local.unflatten(1, (-1, 1)), "mae2d")
        assert not distributed.in_context_parallel()
        assert torch.equal(sinpe.add(x, start=5), expected)


@case
def plain_shards(mesh: DeviceMesh) -> None:
    """Plain tensors, of which each rank has a part."""
    from sinpe_ext import distributed

    rank = mesh.get_local_rank()
    for length in (8, 7, 3):
        x = torch.randn(2, length, 8)
        parts = list(x.chunk(mesh.size(), 1))
        mine = parts[rank] if rank < len(parts) else x[:, :0]
        first = distributed.shard_start(length, mesh)
        at = distributed.shard_positions(length, mesh, start=9)
        expected = sinpe.add(x, start=9)[:, first : first + mine.shape[1]]
        assert torch.equal(sinpe.add(mine, start=9 + first), expected)
        layer = sinpe.SinusoidalPositionalEncoding(8, require_positions=True).eval()
        assert torch.equal(layer(mine, positions=at), expected)
        raises(ValueError, "require_positions", layer, mine)
        raises(ValueError, "require_positions", layer, mine, start=first)
        same(layer(distribute_tensor(x, mesh, [Shard(1)])), sinpe.add(x))
    torch.manual_seed(dist.get_rank())
    seed = distributed.agreed_seed(mesh)
    seeds = [torch.zeros_like(seed) for _ in range(mesh.size())]
    dist.all_gather(seeds, seed)
    assert len(set(map(int, seeds))) == 1


@case
def compiled(mesh: DeviceMesh) -> None:
    """One graph with the same results and gradients."""
    x = torch.randn(4, 8, 8)
    for placement in (Shard(0), Shard(1), Shard(2)):
        for arguments in ({}, {"dropout": 0.3, "seed": 5, "start": 4}, {"positions": torch.arange(8) * 7}):
            torch.compiler.reset()
            run = torch.compile(lambda t, a=arguments: sinpe.add(t, **a) * 2, backend="aot_eager", fullgraph=True)
            one, many = x.clone().requires_grad_(), distribute(x, mesh, placement)
            y = sinpe.add(one, **arguments) * 2
            ys = run(many)
            same(ys, y, (placement, list(arguments)))
            y.sum().backward()
            ys.sum().backward()
            same(many.grad, one.grad, (placement, list(arguments)))
    torch.compiler.reset()
    run = torch.compile(lambda t: sinpe.add(t), backend="aot_eager", fullgraph=True)
    uneven = distribute_tensor(torch.randn(2, 2 * mesh.size() + 1, 8), mesh, [Shard(1)])
    raises(Exception, "expected shards of one size under torch.compile", run, uneven)
    for length in (2 * mesh.size(), 5 * mesh.size(), 3 * mesh.size(), 2 * mesh.size()):
        x = torch.randn(2, length, 8)
        same(run(distribute_tensor(x, mesh, [Shard(1)])), sinpe.add(x), length)
    for placement in (Shard(0), Shard(1), Replicate()):  # two shards of channels are two parts of one encoding
        torch.compiler.reset()
        more: Any = {"device_mesh": mesh, "placements": [placement]}
        run = torch.compile(lambda k=more: sinpe.table(6, 8, **k) * 2, backend="aot_eager", fullgraph=True)
        same(run(), sinpe.table(6, 8) * 2, placement)
    torch.compiler.reset()
    run = torch.compile(lambda t: sinpe.add(t, dropout=0.5), backend="aot_eager", fullgraph=True)
    torch.manual_seed(dist.get_rank())  # the seed is the first rank's
    kept = (run(distribute_tensor(torch.ones(4, 6, 8), mesh, [Replicate()])).to_local() != 0).float()
    total = kept.clone()
    dist.all_reduce(total)
    assert torch.equal(total, kept * mesh.size())


@case
def page(mesh: DeviceMesh) -> None:
    """The marked blocks of docs/distributed.md run on each rank."""
    text = (Path(__file__).parent.parent.parent / "docs" / "distributed.md").read_text()
    blocks = re.findall(r"<!-- runs on every rank in the tests -->\n```python\n(.*?)```", text, re.S)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "distributed.md", "exec"), names)
    first = names["distributed"].shard_start(7, mesh)
    expected = sinpe.add(names["x"])[:, first : first + names["part"].shape[1]]
    assert torch.equal(names["layer"].eval()(names["part"], positions=names["positions"]), expected)

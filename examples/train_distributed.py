"""Trains a small language model in one process and in several (FSDP2, sequence parallelism) and compares the losses.

    With the package installed or PYTHONPATH=.:
    torchrun --nproc-per-node 4 examples/train_distributed.py             # 2 groups of samples x 2 parts of rows
    torchrun --nproc-per-node 2 examples/train_distributed.py             # sequence and tensor parallelism only

Every rank first trains the whole model alone, then its shard of the same model together with the other ranks, with the
same weights, batches and dropout seeds. The encoding follows an embedding whose weight is sharded by rows of the
vocabulary and whose result is sharded along the sequence; no code passes the position of a shard. The output is both
losses at each step, and their largest difference. The exit status is 1 if the difference is larger than float32 sums in
another order explain.
"""

from __future__ import annotations

import argparse
import copy
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

import sinpe_ext as sinpe

WIDTH, HEADS, LAYERS, LENGTH, SAMPLES, RATE = 64, 4, 2, 96, 4, 3e-3
TOLERANCE = 1e-4  # for losses of 2 to 6: other orders of sums, amplified by the optimizer over some tens of steps


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(*(h.transpose(1, 2) for h in heads), is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.feed_norm = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.feed(self.feed_norm(x))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        self.encoding = sinpe.SinusoidalPositionalEncoding(WIDTH, dropout, scale=WIDTH**0.5, learned_alpha=True)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: Tensor, seed: int) -> Tensor:
        x = self.encoding(self.embedding(ids), seed=seed)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).clone()  # FSDP2 warns of a view


def distributed(model: LanguageModel, mesh: DeviceMesh) -> LanguageModel:
    """The sharded model: tensor and sequence parallelism over the mesh dimension "rows", FSDP2 over the other one."""
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "encoding": SequenceParallel(use_local_output=True),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    of_block = {
        "norm": SequenceParallel(),
        "attention": gathered,
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "feed_norm": SequenceParallel(),
        "feed": gathered,
        "feed.0": ColwiseParallel(),
        "feed.2": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, mesh["rows"], plan)
    for block in model.blocks:
        parallelize_module(block, mesh["rows"], of_block)
        fully_shard(block, mesh=mesh["samples"])
    return fully_shard(model, mesh=mesh["samples"])


def batch(data: Tensor, step: int, group: int) -> tuple[Tensor, Tensor]:
    """The windows of one group of ranks at a step, and the targets, which are shifted by one."""
    generator = torch.Generator().manual_seed(1000 * step + group)
    begin = torch.randint(len(data) - LENGTH - 1, (SAMPLES, 1), generator=generator)
    window = data[begin + torch.arange(LENGTH + 1)]
    return window[:, :-1], window[:, 1:]


def seed_of(step: int, group: int) -> int:
    return 1000 * step + group


def loss_of(model: LanguageModel, data: Tensor, step: int, group: int) -> Tensor:
    ids, targets = batch(data, step, group)
    return functional.cross_entropy(model(ids, seed_of(step, group)).flatten(0, 1), targets.flatten())


def train(model: LanguageModel, data: Tensor, steps: int, groups: list[int]) -> list[Tensor]:
    """The loss at each step, averaged over these groups of samples."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        total = torch.zeros(())
        for group in groups:
            loss = loss_of(model, data, step, group) / len(groups)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(total)
    return losses


def read_text() -> str:
    """The language reference that comes with Python."""
    from pydoc_data import topics

    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--dropout", type=float, default=0.1)
    of_samples = "groups of samples, each with its part of the ranks; 2 where there are 4, 1 where there are 2"
    parser.add_argument("--samples", type=int, help=of_samples)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("run it by torchrun: torchrun --nproc-per-node 4 examples/train_distributed.py")
    ranks = int(os.environ["WORLD_SIZE"])
    possible = [ranks // rows for rows in range(1, HEADS + 1) if ranks % rows == 0 and HEADS % rows == 0]
    options.samples = options.samples or (2 if ranks >= 4 and 2 in possible else min(possible))
    if options.samples not in possible:
        known = " or ".join(map(str, sorted(possible)))
        parser.error(f"--samples {options.samples}: expected {known}, for {ranks} ranks and {HEADS} heads")
    if options.steps < 1:
        parser.error(f"--steps {options.steps}: expected 1 or more")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shape = (options.samples, ranks // options.samples)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("samples", "rows"))
    text = read_text()
    alphabet = sorted(set(text))
    # A multiple of the number of ranks, because torch's lookup needs rows of the weight on each rank.
    vocabulary = -(-len(alphabet) // ranks) * ranks
    index = {character: number for number, character in enumerate(alphabet)}
    data = torch.tensor([index[character] for character in text])

    torch.manual_seed(0)
    one = LanguageModel(vocabulary, options.dropout)
    many = distributed(copy.deepcopy(one), mesh)
    alone = train(one, data, options.steps, list(range(options.samples)))
    shared = torch.stack(train(many, data, options.steps, [mesh["samples"].get_local_rank()]))
    dist.all_reduce(shared, group=mesh["samples"].get_group())  # the other ranks of a group have the same loss
    shared /= options.samples
    difference = (torch.stack(alone) - shared).abs()
    alpha = many.encoding.alpha.full_tensor().item(), one.encoding.alpha.item()
    if dist.get_rank() == 0:
        print(f"{ranks} ranks: {shape[0]} group(s) of samples x {shape[1]} part(s) of rows, dropout {options.dropout}")
        print("step   one process   distributed   difference")
        for step in sorted({*range(0, options.steps, 5), options.steps - 1}):
            print(f"{step:4}   {alone[step]:11.6f}   {shared[step]:11.6f}   {difference[step]:.1e}")
        print(f"learned alpha: {alpha[1]:.6f} and {alpha[0]:.6f}")
        verdict = "the same" if difference.max() <= TOLERANCE else f"NOT the same: more than {TOLERANCE:g}"
        print(f"largest difference {difference.max():.1e}: {verdict}", flush=True)
    dist.destroy_process_group()
    # Not sys.exit: a thread of gloo that lets go of its last tensor while the interpreter ends would abort the process
    # (https://github.com/pytorch/pytorch/issues/190489).
    os._exit(int(difference.max() > TOLERANCE))


if __name__ == "__main__":
    main()

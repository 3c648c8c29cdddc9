"""Diffusion in two dimensions: a small MLP that gets the timestep as a sinusoidal encoding.

    python examples/diffusion_toy.py                     # with the package installed, or PYTHONPATH=. before it
    python examples/diffusion_toy.py --quick             # takes seconds: fewer steps, samples and repetitions

The data are two spirals with a little noise. The network predicts v of x at timestep t with a cosine schedule (Salimans
and Ho 2022; if it predicted the noise, an error at the noisiest steps would be a hundred times as large in the sample).
It gets t in one of three ways: "encoding" is TimestepEncoding with the convention of ADM and DiT, "number" is t / 1000
as an additional input, and "none" gives it no timestep. Training draws fractional timesteps between 0 and 1000; samples
take 50 DDIM steps.

The quality measure is the energy distance of the samples to new data. That between two sets of new data is printed for
comparison, since perfect samples would have it. examples/README.md has the results.
"""

from __future__ import annotations

import argparse
import math
import time
from itertools import pairwise
from statistics import mean, stdev

import torch
from torch import Tensor, nn

import sinpe_ext as sinpe

TIMESTEPS, WIDTH, CHANNELS, BATCH, RATE, SAMPLER_STEPS = 1000, 128, 64, 512, 2e-3, 50
KINDS = ("encoding", "number", "none")


def spirals(count: int, generator: torch.Generator) -> Tensor:
    """Points on two spiral arms, (count, 2), with coordinates of about 1."""
    turn = 0.25 + 1.25 * torch.rand(count, generator=generator).sqrt()
    arm = torch.randint(2, (count,), generator=generator)
    angle = 2 * math.pi * (turn + arm / 2)
    points = turn.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], -1)
    return points + 0.03 * torch.randn(count, 2, generator=generator)


def signal(t: Tensor) -> Tensor:
    """The fraction of the variance of x at t that comes from the data, (n, 1): 1 at 0, nearly 0 at TIMESTEPS."""
    return (0.5 * math.pi * (t / TIMESTEPS + 0.008) / 1.008).cos().square().clamp(1e-4, 0.9999).unsqueeze(-1)


class Denoiser(nn.Module):
    """Predicts v = sqrt(s) noise - sqrt(1 - s) data, (n, 2), from x = sqrt(s) data + sqrt(1 - s) noise and t, (n,)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.time = nn.Sequential(sinpe.TimestepEncoding(CHANNELS, encoding="adm"), nn.Linear(CHANNELS, WIDTH))
        self.enter = nn.Linear(2 + (kind == "number"), WIDTH)
        self.hidden = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.leave = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if self.kind == "number":
            x = torch.cat([x, (t / TIMESTEPS).unsqueeze(-1)], -1)
        h = self.enter(x)
        if self.kind == "encoding":
            h = h + self.time(t)
        for layer in self.hidden:
            h = h + layer(nn.functional.silu(h))
        return self.leave(nn.functional.silu(h))


def train(kind: str, steps: int, seed: int) -> tuple[Denoiser, list[float]]:
    """A trained network, and its loss at each step."""
    torch.manual_seed(seed)
    model, order, losses = Denoiser(kind), torch.Generator().manual_seed(seed), []
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(steps):
        x, noise = spirals(BATCH, order), torch.randn(BATCH, 2, generator=order)
        t = TIMESTEPS * torch.rand(BATCH, generator=order)
        kept, added = signal(t).sqrt(), (1 - signal(t)).sqrt()
        loss = (model(kept * x + added * noise, t) - (kept * noise - added * x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return model, losses


@torch.no_grad()
def draw(model: Denoiser, count: int, seed: int) -> Tensor:
    """Samples, (count, 2), by deterministic DDIM."""
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    times = torch.linspace(TIMESTEPS, 0, SAMPLER_STEPS + 1)
    for now, then in pairwise(times):
        v, here, there = model(x, now.expand(count)), signal(now[None]), signal(then[None])
        clean, noise = here.sqrt() * x - (1 - here).sqrt() * v, (1 - here).sqrt() * x + here.sqrt() * v
        x = there.sqrt() * clean + (1 - there).sqrt() * noise
    return x


def energy_distance(a: Tensor, b: Tensor) -> float:
    """2 E|a - b| - E|a - a'| - E|b - b'| over pairs of distinct points; 0 on average for equal distributions."""
    within = sum(torch.cdist(p, p).sum() / (len(p) * (len(p) - 1)) for p in (a, b))
    return float(2 * torch.cdist(a, b).mean() - within)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="of training")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="one seed, 500 steps, 1000 samples")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps, options.samples = [0], 500, 1000
    fresh = torch.Generator().manual_seed(10**6)
    spirals(options.samples, fresh)  # the published numbers are those after this draw

    def to_fresh(points: Tensor) -> float:
        return energy_distance(points, spirals(options.samples, fresh))

    floor = [to_fresh(spirals(options.samples, fresh)) for _ in range(20)]
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for seed in options.seeds:
        for kind in KINDS:
            began = time.perf_counter()
            model, losses = train(kind, options.steps, seed)
            found[kind].append(to_fresh(draw(model, options.samples, seed)))
            tenth = max(options.steps // 10, 1)
            fell = f"loss {mean(losses[:tenth]):.3f} -> {mean(losses[-tenth:]):.3f}"
            seconds = time.perf_counter() - began
            print(
                f"seed {seed}  {kind:9}  {fell} in {seconds:.0f} s, energy distance {found[kind][-1]:.5f}", flush=True
            )
    print(f"\nenergy distance of {options.samples} samples to as many points of data")
    print(f"{'data':9}  {mean(floor):+.5f} +- {stdev(floor):.5f} over {len(floor)} draws")
    for kind, values in found.items():
        spread = f" +- {stdev(values):.5f} over {len(values)} seeds" if len(values) > 1 else ""
        print(f"{kind:9}  {mean(values):+.5f}{spread}")


if __name__ == "__main__":
    main()

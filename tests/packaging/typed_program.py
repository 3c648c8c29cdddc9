"""A user program that test_wheels.py checks with `mypy --strict` against the installed wheel, and runs.

Uses each public function, class and layer. A comment "error: [code]" marks a line that mypy must reject; those lines
are not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import sinpe_ext as sinpe
from sinpe_ext import Encoding, GridEncoding, Match, Matches, SinusoidalPositionalEncoding, TimestepEncoding
from sinpe_ext import positions as places


def tables() -> list[Tensor]:
    encoding = assert_type(sinpe.convention("t2t", 8, base=500.0, start=1), Encoding)
    assert_type(encoding.replace(dim=16), Encoding)
    grid = assert_type(sinpe.convention("mae2d", 8), GridEncoding)
    assert_type(encoding.timescales(), tuple[float, ...])
    for name in sinpe.conventions():  # the convention is known at run time only
        either = assert_type(sinpe.convention(name, 48), Encoding | GridEncoding)
        sinpe.table((2,) * either.ndim if isinstance(either, GridEncoding) else 2, either)
    assert_type(grid.interpolated((4, 4), base_size=2), GridEncoding)
    assert_type(sinpe.conventions(), dict[str, str])
    points = sinpe.encode(torch.rand(5, 3), sinpe.convention("nerf", 60, axes=3), dtype=torch.float64)
    rows = sinpe.table(4, encoding, start=-3, dtype=torch.bfloat16, device="cpu")
    out = sinpe.table(4, Encoding(8, cos_frequency="own"), out=torch.empty(4, 8))
    return assert_type([sinpe.table((2, 3), grid, flatten=False), points, rows, out], list[Tensor])


def sums(x: Tensor, generator: torch.Generator) -> list[Tensor]:
    alpha = torch.ones(1, requires_grad=True)
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    two = sinpe.add(x, "t2t", start=2, scale=8**0.5, alpha=alpha, dropout=0.1, seed=3)
    three = sinpe.add(x, 8, positions=torch.arange(x.size(1)), seed=generator, padding_mask=mask)
    grid = sinpe.add(x.view(2, 2, 3, 8), "mae2d", start=(1, 2))
    rows = sinpe.embed(torch.zeros(2, 3, dtype=torch.long), torch.rand(5, 8), padding_idx=0)
    return assert_type([sinpe.add(x), two, three, grid, rows, sinpe.add_(x.clone(), seq_dim=1)], list[Tensor])


class Model(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.front = sinpe.SinusoidalEmbedding(32, dim, padding_idx=0, dropout=0.1, scale=dim**0.5)
        self.again = SinusoidalPositionalEncoding(dim, dropout=0.0, encoding="fairseq", learned_alpha=True)
        self.time = TimestepEncoding(dim, encoding="adm")

    def forward(self, ids: Tensor, t: Tensor) -> Tensor:
        assert_type(self.again.forward(assert_type(self.front.forward(ids), Tensor), start=3), Tensor)
        y: Tensor = self.again(self.front(ids)) + self.time(t)[:, None]
        return y


def counted(ids: Tensor) -> list[Tensor]:
    where, mask = assert_type(places.from_padding_idx(ids, 0), tuple[Tensor, Tensor])
    made = [places.from_padding_mask(mask, "t2t"), places.packed(torch.tensor([0, 2]), None), places.relative(4)]
    made += [places.grid((2, 3), "mae2d"), places.from_mask_2d(torch.zeros(1, 2, 3).bool(), "detr2d")]
    return assert_type([where, *made], list[Tensor])


def others(model: nn.Module) -> tuple[object, ...]:
    matches = assert_type(sinpe.identify(sinpe.table(64, sinpe.convention("fairseq", 64))), Matches)
    best = assert_type(matches[0], Match)
    with sinpe.use_backend("eager"):
        info = assert_type(sinpe.backend_info(), sinpe.BackendInfo)
    rows = sinpe.numpy.table(4, 8)
    rows[:] = sinpe.numpy.encode(range(4), 8)
    report = assert_type(sinpe.integrations.swap(model, dry_run=True), sinpe.integrations.Report)
    return rows.size, best.code, best.max_error, len(report.swapped), info.device("cpu").reason


def not_run(mesh: DeviceMesh) -> None:
    assert_type(sinpe.distributed.shard_start(8, mesh), int)
    assert_type(sinpe.distributed.shard_positions(8, mesh), Tensor)
    assert_type(sinpe.distributed.agreed_seed(mesh, 3), Tensor)
    sinpe.plot.heatmap(Encoding(8), length=20).set_title("paper")
    sinpe.plot.curves(Encoding(8), (5, 6, 50), ax=sinpe.plot.similarity(Encoding(8), 20))
    with sinpe.integrations.standard_operators():
        sinpe.use_backend("auto")


if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    sinpe.tabel(4, 8)  # error: [attr-defined]
    sinpe.table("4", 8)  # error: [arg-type]
    sinpe.table(4, 8).tabel()  # error: [attr-defined]
    sinpe.add(torch.zeros(1, 2, 8), sacle=2.0)  # error: [call-arg]
    sinpe.positions.pakced(torch.arange(3))  # error: [attr-defined]
    SinusoidalPositionalEncoding("8")  # error: [arg-type]
    sinpe.convention("paper", "8")  # error: [call-overload]
    sinpe.convention(sinpe.__version__, 8).timescales()  # error: [union-attr]


if __name__ == "__main__":
    x = torch.rand(2, 6, 8)
    count = len(tables()) + len(sums(x, torch.Generator())) + len(counted(torch.tensor([[1, 2, 0]])))
    shape = Model(8)(torch.ones(2, 3, dtype=torch.long), torch.rand(2)).shape
    print(count, tuple(shape), *others(Model(8)))

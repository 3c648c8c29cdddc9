"""torch.onnx.export: a model of standard operations that onnxruntime runs with the same results, at any position."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from test_compile import SIZED
from test_compile import D as SIZED_D
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.encodings.plan import plan
from sinpe_ext.integrations import standard_operators
from sinpe_ext.reference import onnx as onnx_graph

onnx = pytest.importorskip("onnx", reason="ONNX export needs onnx")
pytest.importorskip("onnxscript", reason="ONNX export needs onnxscript")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs the model")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # warnings of the exporter itself
    pytest.mark.usefixtures("reset_dynamo"),
]

# The graph computes in float64 without exact ties: one entry in 2**24 may be rounded the other way.
FLOAT32_ULP = 1
# float64: angle, sine and amplitude are each rounded.
FLOAT64_RELATIVE = 2.0**-50
D = 16
FAR = [0, -1, 2**31, -(2**31) - 1, 2**40 + 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
ANY = torch.export.Dim.DYNAMIC
BOTH = {0: ANY, 1: ANY}


class Call(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def ids(*shape: int) -> Tensor:
    return torch.randint(20, shape, generator=torch.Generator().manual_seed(sum(shape)))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return make().eval()


LAYER = seeded(lambda: sinpe.SinusoidalPositionalEncoding(D, scale=3.0, alpha=0.7))
LIMITED = seeded(lambda: sinpe.SinusoidalPositionalEncoding(D, 0.1, 500, learned_alpha=True, batch_first=False))
EMBEDDING = seeded(lambda: sinpe.SinusoidalEmbedding(20, D, 0, scale=4.0, learned_alpha=True, encode_padding=False))
TIMESTEPS = seeded(lambda: sinpe.TimestepEncoding(D))
T2T = sinpe.convention("t2t", D, start=4)
FLOAT32 = sinpe.Encoding(D, angle="float32_exp")
START, STARTS = torch.tensor(3), torch.tensor([3, 9])
MASK = torch.tensor([[True, False, False], [False, True, True]])
HALVES = torch.tensor([0.5, -2.25, 998.3897, 2.0**31 + 256, -(2.0**75), 1e-20])
STRANGE = torch.tensor([float("nan"), float("inf"), -float("inf"), 2.0**77])

# Model, example arguments, dynamic sizes, other arguments.
CASES: dict[str, tuple[nn.Module, tuple[Any, ...], tuple[Any, ...], list[tuple[Any, ...]]]] = {
    "layer": (LAYER, (x(2, 3, D),), (BOTH,), [(x(3, 300, D),), (x(1, 1, D),)]),
    "layer, sequence first, max_len": (LIMITED, (x(3, 2, D),), (BOTH,), [(x(300, 3, D),)]),
    "embedding": (EMBEDDING, (ids(2, 3),), (BOTH,), [(ids(4, 90),)]),
    "timesteps": (TIMESTEPS, (torch.rand(3) * 1000,), ({0: ANY},), [(HALVES,), (torch.rand(1000) * 1e6,)]),
    "add, start int": (
        Call(lambda x, s: sinpe.add(x, T2T, start=s)), (x(2, 3, D), 3), (BOTH, ANY),
        [(x(3, 9, D), 2**40), (x(1, 2, D), -(2**63)), (x(1, 1, D), -7)],
    ),
    "add, start tensor": (
        Call(lambda x, s: sinpe.add(x, start=s)), (x(2, 3, D), START), (BOTH, None),
        [(x(3, 9, D), torch.tensor(s)) for s in FAR[:-2]],
    ),
    "add, start per sample": (
        Call(lambda x, s: sinpe.add(x, start=s)), (x(2, 3, D), STARTS), (BOTH, {0: ANY}),
        [(x(3, 9, D), torch.tensor([2**40, -5, 0]))],
    ),
    "add, positions, mask": (
        Call(lambda x, p, m: sinpe.add(x, positions=p, padding_mask=m)), (x(2, 3, D), ids(2, 3), MASK),
        (BOTH, BOTH, BOTH), [(x(1, 9, D), torch.tensor([FAR]), torch.tensor([[True, False, False] * 3]))],
    ),
    "add bfloat16 sum": (
        Call(lambda x: sinpe.add(x.bfloat16(), "t2t").float()), (x(2, 3, D),), (BOTH,), [(x(1, 9, D),)]
    ),
    "table": (Call(lambda x: sinpe.table(x.shape[1], T2T, start=2**31)), (x(2, 3, D),), (BOTH,), [(x(1, 9, D),)]),
    "encode float64": (
        Call(lambda p: sinpe.encode(p, T2T)), (x(2, 3).double(),), (BOTH,), [(x(2, 90).double() * 1e9,)]
    ),
    "encode, not finite": (Call(lambda p: sinpe.encode(p, T2T)), (STRANGE,), ({0: ANY},), [(STRANGE[:2],)]),
    "grid": (
        Call(lambda x: sinpe.add(x, "mae2d")), (x(2, 3, 4, D),), ({0: ANY, 1: ANY, 2: ANY},), [(x(1, 5, 2, D),)]
    ),
    "points": (
        Call(lambda p: sinpe.encode(p, sinpe.convention("nerf", 18))), (torch.rand(4, 3),), ({0: ANY},),
        [(torch.rand(90, 3) * 8 - 4,)],
    ),
}  # fmt: skip


def exported(name: str, export: Callable[..., Any], **options: Any) -> Any:
    model, arguments, sizes, _ = CASES[name]
    shapes = (sizes,) if isinstance(model, Call) else sizes
    return export(model, arguments, dynamic_shapes=shapes, **options)


def session(program: Any) -> Any:
    """An onnxruntime session of an exported model that contains standard operations only."""
    stored = io.BytesIO()
    program.save(stored)
    assert {node.domain for node in onnx.load_from_string(stored.getvalue()).graph.node} <= {""}
    return runtime.InferenceSession(stored.getvalue(), providers=["CPUExecutionProvider"])


def run(session: Any, arguments: tuple[Any, ...]) -> Tensor:
    given = {put.name: torch.as_tensor(a).numpy() for put, a in zip(session.get_inputs(), arguments, strict=True)}
    return torch.from_numpy(session.run(None, given)[0])


def ulps(got: Tensor, want: Tensor) -> int:
    """Largest distance in float32 ULP; NaN must be at the same places."""
    assert got.dtype == want.dtype == torch.float32 and got.shape == want.shape
    assert torch.equal(got.isnan(), want.isnan())

    def order(t: Tensor) -> Tensor:
        bits = t.contiguous().view(torch.int32).long()
        return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return int((order(got) - order(want)).abs().masked_fill(want.isnan(), 0).max())


@pytest.mark.sampled(7, "each export takes a second or more")
@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_equals_eager(name: str) -> None:
    model, arguments, _, others = CASES[name]
    with torch.no_grad():
        ready = session(exported(name, torch.onnx.export, dynamo=True, verbose=False))
        for given in (arguments, *others):
            want = model(*given)
            if name == "encode, not finite" and len(given[0]) == 4:
                want[3] = torch.nan  # beyond 2**76 the library still gives finite values
            assert ulps(run(ready, given), want) <= FLOAT32_ULP, given


def test_export_contains_standard_operators_only() -> None:
    """From torch.export, which would otherwise keep our operators."""
    name = "add, start tensor"
    model, arguments, _, others = CASES[name]
    assert "sinpe_ext" in str(exported(name, torch.export.export).graph)
    with standard_operators(float64=True):
        program = exported(name, torch.export.export)
    assert "sinpe_ext" not in str(program.graph)
    for given in (arguments, *others):
        assert ulps(program.module()(*given).detach(), model(*given).detach()) <= FLOAT32_ULP
    assert "sinpe_ext" in str(exported(name, torch.export.export).graph)


REFUSED = {"positions.packed, total": "searchsorted"} | {  # which torch's exporter does not know
    name: "dropout: expected none" for name in SIZED if "dropout" in name
}
ACCEPTED = [name for name in SIZED if name not in REFUSED]


@pytest.mark.parametrize("name", ["positions.packed, total", "add, dropout, start"])
def test_what_onnx_has_not_is_refused(name: str) -> None:
    sizes = (({1: torch.export.Dim("T", min=2, max=9999)},),)
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as refused:
        torch.onnx.export(Call(SIZED[name]), (x(1, 5, SIZED_D),), dynamo=True, dynamic_shapes=sizes, verbose=False)
    assert REFUSED[name] in f"{refused.value} {refused.value.__cause__}"


@pytest.mark.sampled(9, "an export of several calls takes some seconds")
@pytest.mark.parametrize("first", range(0, len(ACCEPTED), 4))
def test_sizes_stay_symbolic(first: int) -> None:
    names = ACCEPTED[first : first + 4]
    model = Call(lambda x: [x + 0, *(SIZED[name](x) for name in names)])
    sizes = (({1: torch.export.Dim("T", min=2, max=9999)},),)
    with torch.no_grad():
        ready = session(torch.onnx.export(model, (x(1, 5, SIZED_D),), dynamo=True, dynamic_shapes=sizes, verbose=False))
        for length in (5, 6, 11):
            given = x(1, length, SIZED_D)
            results = ready.run(None, {ready.get_inputs()[0].name: given.numpy()})[1:]
            for name, got in zip(names, results, strict=True):
                want = SIZED[name](given)
                assert got.shape == want.shape and torch.allclose(
                    torch.from_numpy(got).double(), want.double(), atol=1e-6
                )


def test_model_in_training_mode_is_rejected() -> None:
    for layer in (sinpe.SinusoidalPositionalEncoding(D), sinpe.SinusoidalEmbedding(20, D)):
        given = ids(2, 3) if isinstance(layer, nn.Embedding) else x(2, 3, D)
        with pytest.raises(Exception, match="dropout: expected none in a graph of standard operations") as caught:
            torch.onnx.export(layer.train(), (given,), dynamo=True, verbose=False)
        assert "model.eval()" in str(caught.value)


ENCODINGS = {
    "paper": sinpe.Encoding(128),
    "512": sinpe.Encoding(512),
    "unit": sinpe.convention("unit", 64),
    "odd": sinpe.Encoding(7),
    "t2t": sinpe.convention("t2t", 64),
    "ddpm": sinpe.convention("ddpm", 96),
    "fairseq": sinpe.convention("fairseq", 9),
    "negative": sinpe.Encoding(6, frequencies=(1.5, -0.3, 2.0**-90), amplitude=0.3),
    "none": sinpe.Encoding(2, layout="sin", frequencies=(0.0, 0.0), amplitude=2.0),
}
_generator = torch.Generator().manual_seed(1)
POSITIONS = {
    "int64": torch.randint(-(2**63), 2**63 - 1, (500,), generator=_generator),
    "extremes": torch.tensor(FAR),
    "largest float32": torch.rand(300, generator=_generator) * 2.0**75,
    "float64": torch.rand(500, generator=_generator, dtype=torch.float64) * 1e6,
}
NEAR = {  # which float32 arithmetic can process
    "near": torch.arange(-300, 5000, 7),
    "2**24": torch.randint(-(2**24), 2**24, (5000,), generator=_generator),
    "int32": torch.randint(-(2**24), 2**24, (5000,), generator=_generator, dtype=torch.int32),
    "2**32": torch.randint(-(2**32) + 1, 2**32, (5000,), generator=_generator),
    "near a zero": torch.tensor([7199, 81665, 408325, 3803902, 97253, 2**24 - 1, 2**24 + 1]),
    "float32": torch.rand(5000, generator=_generator) * 1000,
    "large float32": torch.randn(2000, generator=_generator) * 2.0**22,
    "small float32": torch.randn(2000, generator=_generator) * 1e-5,
    "halves": torch.arange(2000) / 2 - 300,
}


@pytest.mark.parametrize("positions", [*POSITIONS, *NEAR])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_exported_arithmetic(encoding: str, positions: str) -> None:
    """The operations that are exported, run by torch, with float64 and without."""
    chosen, at = ENCODINGS[encoding], {**POSITIONS, **NEAR}[positions]
    at = at[::10] if encoding == "512" else at
    got, want = onnx_graph.encode(plan(chosen), at, torch.float32), sinpe.encode(at, chosen)
    assert ulps(got, want) <= FLOAT32_ULP
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(onnx_graph.encode(plan(chosen), at, dtype), got.to(dtype))
    if positions in NEAR:
        assert ulps(onnx_graph.encode(plan(chosen), at, torch.float32, onnx_graph.SINGLE), want) <= FLOAT32_ULP
    if not at.is_floating_point():
        want = sinpe.encode(at, chosen, dtype=torch.float64)
        wide = onnx_graph.encode(plan(chosen), at, torch.float64)
        assert torch.allclose(wide, want, rtol=FLOAT64_RELATIVE, atol=0.0)


def test_exact_zeros_of_rational_frequencies() -> None:
    """1/24 turn is not a multiple of 2^-128; an exact zero is +0 in each quadrant."""
    encoding = sinpe.Encoding(2, unit="turn", position_scale=Fraction(1, 24))
    where = torch.tensor([0, 24, -24, 12, 36, 24 * (2**53 // 24), 24 * (2**62 // 24), 2**31 - 8])
    for dtype in (torch.float32, torch.float64):
        rows = onnx_graph.encode(plan(encoding), where, dtype)
        assert (rows[:, 0] == 0).all() and not rows[:, 0].signbit().any()
        rows = onnx_graph.encode(plan(encoding), where + 6, dtype)
        assert (rows[:, 1] == 0).all() and not rows[:, 1].signbit().any()
        assert (onnx_graph.encode(plan(encoding), where + 1, dtype)[:, 0] != 0).all()


def test_positions_beyond_float32_arithmetic() -> None:
    for at in (torch.tensor([2**33, -(2**40), 2**63 - 1, -(2**63)]), STRANGE):
        assert onnx_graph.encode(plan(sinpe.Encoding(64)), at, torch.float32, onnx_graph.SINGLE).isnan().all()


def test_what_float32_arithmetic_cannot_do_is_refused() -> None:
    fast = plan(sinpe.Encoding(2, frequencies=(1e7,)))
    with pytest.raises(ValueError, match=r"encoding: expected frequencies below 2\*\*9 turns .*float64=True"):
        onnx_graph.encode(fast, torch.rand(3), torch.float32, onnx_graph.SINGLE)
    whole = torch.arange(-50, 50)
    got = onnx_graph.encode(fast, whole, torch.float32, onnx_graph.SINGLE)
    assert ulps(got, sinpe.encode(whole, sinpe.Encoding(2, frequencies=(1e7,)))) <= FLOAT32_ULP
    with pytest.raises(ValueError, match=r"start: expected less than 2\*\*32 in size in a program without float64"):
        onnx_graph.table(plan(T2T), 3, 2**33, torch.float32, torch.device("cpu"), onnx_graph.SINGLE)


@pytest.mark.sampled(9, "each export takes a second or more")
@pytest.mark.parametrize("name", ["embedding", "layer", "timesteps", "add, start tensor", "grid", "table", "points"])
def test_export_without_float64(name: str) -> None:
    """Integers, bools and float32 only, in torch's program and in ONNX Runtime."""
    model, arguments, _, others = CASES[name]
    with standard_operators():
        program = exported(name, torch.export.export)
    assert "sinpe_ext" not in str(program.graph)
    held = {node.meta["val"].dtype for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor)}
    held |= {t.dtype for t in (*program.constants.values(), *program.state_dict.values()) if isinstance(t, Tensor)}
    assert held <= {torch.float32, torch.int64, torch.int32, torch.bool}, held
    ready = session(torch.onnx.export(program, dynamo=True, verbose=False))
    near = [given for given in others if all(float(t.abs().max()) < 2**24 for t in map(torch.as_tensor, given))]
    for given in (arguments, *near):
        want = model(*given).detach()
        for got in (program.module()(*given).detach(), run(ready, given)):
            # An ULP of the encoding is more than one of a sum that cancels.
            torch.testing.assert_close(got, want, rtol=2.0**-22, atol=2.0**-22)
            assert name not in ("timesteps", "table", "points") or ulps(got, want) <= FLOAT32_ULP

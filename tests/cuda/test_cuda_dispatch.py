"""The CUDA path without a GPU: devices of results, messages, graphs, and no reads of values.

Fake tensors have a device but no data. With `as_if`, functions treat them as CUDA tensors with kernels, so reading a
value (`item`, `nonzero`) fails and each copy between devices is detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from cuda_calls import CALLS, tensors
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import sinpe_ext as sinpe
from sinpe_ext import device_constants, torch_state
from sinpe_ext.backend import loader
from sinpe_ext.encodings.plan import plan
from sinpe_ext.operations import dropout, plans

B, S, D, V = 2, 3, 8, 9
ENCODING = sinpe.convention("fairseq", D)

# copy_ needs support for the device even if nothing is copied.
COPIES = {
    "add alpha out", "add_ alpha", "add out", "add_", "table out", "grid_", "grid out",
    "float32 angle", "grid positions alpha", "grid tokens", "grid encode",
}  # fmt: skip


@pytest.fixture
def mode() -> Iterator[FakeTensorMode]:
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        yield fake


def whole(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long, device="cuda")


def test_fake_kernels_keep_the_device(mode: FakeTensorMode) -> None:
    """Each operator with all tensors on CUDA, including the plan."""
    op = torch.ops.sinpe_ext
    words = torch.empty(36, dtype=torch.int64, device="cuda")
    x, ids, seed = torch.empty_strided((B, S, D), (S * D, 1, S), device="cuda"), whole(B, S), whole()
    weight, rows = torch.empty(V, D, device="cuda"), (0, False, 1.0)
    results = {
        "table": op.table(words, 0, S, D, torch.float16),
        "encode": op.encode(ids, words, D, torch.float64),
        "dropout": op.dropout(x, seed, 9, 1.0, []),
        "add": op.add(x, words, None, None, None, seed, None, *rows, 0, 9, []),
        "row_dots": op.row_dots(x, words, None, None, None, seed, 0, False, 9, []),
        "add_backward": op.add_backward(x, words, None, None, seed, *rows, 9, [])[0],
        "tree_sum": op.tree_sum(torch.empty(B, S, dtype=torch.float64, device="cuda")),
        "embed": op.embed(ids, weight, words, None, None, None, seed, *rows, -1, False, 9, []),
        "embed_backward": op.embed_backward(x, ids, seed, V, -1, 1.0, 9, []),
        "plan_partner": op.plan_partner(words),
        "plan_angular_frequencies": op.plan_angular_frequencies(words, D),
        "draw_seed": op.draw_seed(seed),
    }
    assert {name: made.device for name, made in results.items()} == dict.fromkeys(results, torch.device("cuda", 0))
    assert results["add"].stride() == x.stride()  # channels first, as x


class OperatorsAndDevices(TorchDispatchMode):
    """Records the operators that run, and the devices of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, set[str]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = [t for t in torch.utils._pytree.tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        devices = {t.device.type for t in tensors if t.dim() or t.device.type != "cpu"}  # ignores 0-d CPU tensors
        self.calls.append((str(function), devices))
        return result


@pytest.fixture
def as_if(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fake CUDA tensors are treated as real ones with kernels and constants; there is still no data."""
    constants: dict[Any, Tensor] = {}

    def on_device(key: Any, device: torch.device, make: Callable[[], Tensor], note: Any = None) -> Tensor:
        if key not in constants:
            constants[key] = torch.empty(make().shape, dtype=make().dtype, device=device)
        return constants[key]

    with FakeTensorMode(allow_non_fake_inputs=True):
        from sinpe_ext.operations import grid_rows
        from sinpe_ext.reference import float32_angle

        monkeypatch.setattr(plans, "on_device", on_device)
        monkeypatch.setattr(float32_angle, "on_device", on_device)
        monkeypatch.setattr(grid_rows, "on_device", on_device)
        monkeypatch.setattr(torch_state, "read", lambda: torch_state.TorchState(traced=True))
        monkeypatch.setattr(torch_state, "unreadable", lambda value: False)
        monkeypatch.setattr(dropout, "_can_draw_on_host", lambda device: False)
        monkeypatch.setattr(loader, "uses_kernels", loader.DeviceTypes(cuda=True, cpu=True))
        yield


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("add CPU seed", "packed positions")])
def test_no_value_is_read_or_copied(name: str, as_if: None) -> None:
    if name in COPIES and not torch.backends.cuda.is_built():
        pytest.skip("copy_ of CUDA tensors, including fake ones, needs a CUDA build of torch")
    t = {name: torch.zeros(t.shape, dtype=t.dtype, device="cuda") for name, t in tensors(torch.device("meta")).items()}
    with OperatorsAndDevices() as seen:
        result = CALLS[name](t, "cuda")
    assert result.device == t["x"].device
    names = [call for call, devices in seen.calls if "cuda" in devices]
    assert not [call for call in names if "_local_scalar_dense" in call or "nonzero" in call or "equal" in call]
    between = [call for call, devices in seen.calls if len(devices) > 1]
    assert not between, between
    assert any("sinpe_ext" in call for call in names) or name in ("float32 angle", "add nothing kept")


@pytest.mark.parametrize("seed", ["tensor", "generator"])
def test_cpu_seed_is_passed_as_a_number(seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy would wait for the device; the meta device is used instead."""
    monkeypatch.setattr(torch_state, "unreadable", lambda value: False)
    given = torch.tensor(5) if seed == "tensor" else torch.Generator().manual_seed(1)
    with OperatorsAndDevices() as seen:
        made = dropout.seed_tensor(given, torch.device("meta"))
    assert made.is_meta and made.shape == () and not [call for call, devices in seen.calls if len(devices) > 1]


class CudaGenerator:
    """The methods of a torch.Generator on CUDA, which needs a device, that a seed is drawn from."""

    device = torch.device("cuda", 0)

    def __init__(self, seed: int, offset: int = 0) -> None:
        self.offset = offset
        self.initial_seed, self.get_offset = lambda: seed, lambda: self.offset
        self.set_offset = lambda offset: setattr(self, "offset", offset)


def test_seeds_of_a_cuda_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """SplitMix64, of which the first numbers for the seed 1234567 are published; manual_seed repeats them."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    generator = CudaGenerator(1234567)
    monkeypatch.setattr(torch.cuda, "default_generators", (None, generator))
    assert [dropout.draw(None, torch.device("cuda", 1)) for _ in range(4)] == [n >> 1 for n in published]
    assert generator.offset == 16
    generator.offset = 4
    assert dropout.draw(None, torch.device("cuda", 1)) == published[1] >> 1
    seeds = {dropout._drawn(CudaGenerator(seed, 4 * n)) for seed in (0, 1, 2**64 - 1) for n in range(1000)}
    assert len(seeds) == 3000 and min(seeds) >= 0 and max(seeds) < 2**63


@pytest.mark.parametrize(
    "state, may_draw",
    [
        (torch_state.NOT_INTERCEPTED, True),
        (torch_state.TorchState(traced=True), True),  # a dispatch mode, such as torch's counter of operations
        (torch_state.TorchState(traced=True, fake=True), False),
        (torch_state.TorchState(traced=True, fx_tracing=True, must_decompose=True), False),
        (torch_state.TorchState(functorch=True, traced=True), False),
    ],
)
def test_where_a_seed_is_drawn(state: torch_state.TorchState, may_draw: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not depending on dispatch modes: a checkpoint repeats the forward pass without those that were active."""
    monkeypatch.setattr(torch_state, "read", lambda: state)
    for capturing in (False, True):
        monkeypatch.setattr(dropout, "is_capturing", lambda device, capturing=capturing: capturing)
        assert dropout._can_draw_on_host(torch.device("cuda", 0)) == (may_draw and not capturing)


def test_graph_has_no_cpu_tensor(as_if: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graph trees skip graphs with CPU operands."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.undo()  # the compiler checks devices only
    constant = torch.empty(len(plan(ENCODING).packed), dtype=torch.int64, device="cuda")
    monkeypatch.setattr(plans, "on_device", lambda *_: constant)
    torch._dynamo.reset()

    @torch.compile(backend=backend, fullgraph=True)
    def run(x: Tensor, ids: Tensor, weight: Tensor) -> Any:
        rows = sinpe.table(S, ENCODING, device=x.device)
        return (
            sinpe.add(x, ENCODING, dropout=0.1),
            sinpe.add(x, ENCODING, scale=2.0) + rows + sinpe.encode(ids, ENCODING),
            sinpe.embed(ids, weight, ENCODING, dropout=0.1, padding_idx=1),
        )

    with torch.no_grad():
        run(torch.empty(B, S, D, device="cuda"), whole(B, S), torch.empty(V, D, device="cuda"))
    (graph,) = graphs
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    tensors = [v for v in values if isinstance(v, Tensor)]
    assert len(tensors) > 8 and {t.device.type for t in tensors} == {"cuda"}
    copies = [node for node in graph.graph.nodes if node.op == "call_method" and node.target in ("to", "cuda")]
    assert not [node for node in copies if any(isinstance(a, torch.device) for a in node.args)]
    torch._dynamo.reset()


def test_graph_exported_without_cuda_copies_its_plan(mode: FakeTensorMode) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    layer = sinpe.SinusoidalPositionalEncoding(D, 0.1).eval()
    exported = torch.export.export(layer, (torch.empty(B, S, D, device="cuda"),))
    assert {t.device.type for t in exported.constants.values() if isinstance(t, Tensor)} == {"cpu"}
    assert "sinpe_ext.table" in exported.graph_module.code and "dtype_layout" in exported.graph_module.code


def test_constants_are_copied_once_and_not_during_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of constants, with the CPU as the device."""
    made: list[int] = []
    waits: list[torch.device] = []
    monkeypatch.setattr(device_constants, "_copies", {})
    monkeypatch.setattr(device_constants, "_captured", {})
    monkeypatch.setattr(device_constants, "MAX_COPIES", 8)
    monkeypatch.setattr(device_constants, "is_capturing", lambda device: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    place = torch.device("cpu", 0)

    def constant(key: int) -> Tensor:
        return device_constants.on_device(key, place, lambda: made.append(key) or torch.tensor(key))

    first = constant(0)
    assert constant(0) is first and made == [0]
    monkeypatch.setattr(device_constants, "is_capturing", lambda device: True)
    assert constant(0) is first and list(device_constants._captured.values()) == [first]
    with pytest.raises(RuntimeError, match="encoding: run one warm-up call on cpu:0 before CUDA graph capture"):
        constant(1)
    monkeypatch.setattr(device_constants, "is_capturing", lambda device: False)
    for key in range(1, 9):
        constant(key)
    assert waits == [place] and len(device_constants._copies) == 5  # the older half was removed
    assert list(device_constants._captured.values()) == [first]


def test_capture_is_checked_on_the_device_of_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture on the second device while the first is current, and vice versa."""
    current = [0]

    @contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        current.append(device.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: current[-1] == 1)
    assert [device_constants.is_capturing(torch.device("cuda", index)) for index in (0, 1)] == [False, True]
    assert current == [0]


def test_ids_on_a_device_are_checked_if_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, requested in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("SINPE_EXT_CHECK", setting)
        assert torch_state.device_checks_requested() is requested

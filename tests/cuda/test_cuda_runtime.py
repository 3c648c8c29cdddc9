"""The CUDA kernels with streams, graphs, several devices, limited memory, deterministic mode and compilers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_calls import EVERY, B, D, P, S, V, tensors
from cuda_support import assert_rows, assert_sums, randn
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.backend import loader


def prepared(name: str, place: torch.device) -> Callable[[], Any]:
    t = tensors(place)
    return lambda: EVERY[name](t, place)


def flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def equal(got: Any, want: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(flat(got), flat(want), strict=True))


@pytest.mark.parametrize("name", [*EVERY, "drawn seeds"])
def test_repeated_call_equals_the_checked_one(name: str, device: torch.device) -> None:
    """Twice each, so that both use cached constants; with the seeds that both draw."""
    x = tensors(device)["x"]
    drawn = lambda: (sinpe.add(x, dropout=P), sinpe.add(x, "t2t", dropout=P), torch.rand(3, device=device))  # noqa: E731
    run = drawn if name == "drawn seeds" else prepared(name, device)
    results = []
    for repeats in (True, False):
        with sinpe.use_backend("compiled"), pytest.MonkeyPatch.context() as patch:
            if not repeats:
                patch.setattr(loader, "repeat", loader._repeat_nothing)
            run()
            torch.manual_seed(3)
            results.append(run())
    assert equal(*results)


@pytest.mark.bad_input(23, "CUDA")
@pytest.mark.parametrize("name", EVERY)
def test_no_call_synchronizes_with_the_device(name: str, cuda: torch.device) -> None:
    run = prepared(name, cuda)
    want = run()  # the first call copies the constants of the encoding
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert equal(got, want)


@pytest.mark.bad_input(23, "CUDA")
@pytest.mark.parametrize("name", EVERY)
def test_calls_on_another_stream(name: str, cuda: torch.device) -> None:
    """The kernels run after earlier work of the stream."""
    run = prepared(name, cuda)
    want = run()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    t = tensors(cuda)
    size = 64 if loader.resolve("cuda").how == "emulated" else 4096  # tools/cuda_on_host: the host computes it
    big = torch.randn(size, size, device=cuda)
    with torch.cuda.stream(stream):
        for _ in range(20):  # some milliseconds
            big = big @ big * 1e-3
        late = t["x"] + 0 * big[0, 0].nan_to_num(0.0, 0.0, 0.0)
        got = run()
        behind = sinpe.add(late, scale=2.0)
    stream.synchronize()
    assert equal(got, want) and torch.equal(behind, sinpe.add(t["x"], scale=2.0))


@pytest.mark.bad_input(23, "CUDA")
@pytest.mark.parametrize("name", EVERY)
def test_captured_graph_replays(name: str, cuda: torch.device) -> None:
    run = prepared(name, cuda)
    want = run()
    with torch.cuda.stream(torch.cuda.Stream()):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    for _ in range(2):
        for t in flat(got):
            t.detach().fill_(0)
        graph.replay()
        assert equal(got, want)


@pytest.mark.bad_input(23, "CUDA")
def test_replay_reads_new_values_and_draws_a_new_mask(cuda: torch.device) -> None:
    x, alpha = torch.ones(B, S, D, device=cuda), torch.tensor([1.0], device=cuda)
    starts, seed = torch.zeros(B, dtype=torch.long, device=cuda), torch.tensor(1, device=cuda)

    def run() -> tuple[Tensor, ...]:
        return (
            sinpe.add(x, alpha=0.0, dropout=0.5),
            sinpe.add(x, alpha=0.0, dropout=0.5, seed=seed),
            sinpe.add(x, alpha=alpha, start=starts),
        )

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    graph.replay()
    first = [t.clone() for t in got]
    graph.replay()
    assert not torch.equal(got[0], first[0])
    assert torch.equal(got[1], first[1]) and torch.equal(got[2], first[2])
    seed.fill_(2), alpha.fill_(-0.5), starts.copy_(torch.arange(B) * 7)
    graph.replay()
    assert torch.equal(got[1], sinpe.add(x, alpha=0.0, dropout=0.5, seed=2))
    assert torch.equal(got[2], sinpe.add(x, alpha=-0.5, start=torch.arange(B, device=cuda) * 7))


@pytest.mark.bad_input(23, "CUDA")
def test_first_use_during_capture_raises_with_a_remedy(cuda: torch.device) -> None:
    x, encoding = torch.ones(2, 3, 8, device=cuda), sinpe.Encoding(8, base=31.25)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="encoding: run one warm-up call on cuda:0 before CUDA graph capture"):
        with torch.cuda.graph(graph):
            sinpe.add(x, encoding)
    del graph
    torch.cuda.synchronize()
    assert sinpe.add(x, encoding).isfinite().all()


def test_constants_of_a_captured_graph_are_kept(cuda: torch.device) -> None:
    x, encoding = torch.zeros(2, 3, 8, device=cuda), sinpe.Encoding(8, base=77.5)
    want = sinpe.add(x, encoding)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = sinpe.add(x, encoding)
    for base in range(2, 700):
        sinpe.add(x, sinpe.Encoding(8, base=base))
    gc.collect()
    graph.replay()
    assert torch.equal(got, want)


@pytest.mark.bad_input(15, "CUDA")
def test_second_device(cuda: torch.device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    other = torch.device("cuda", 1)
    for name in EVERY:
        want, got = prepared(name, cuda)(), prepared(name, other)()  # the current device remains the first
        assert all(t.device == other for t in flat(got))
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(flat(got), flat(want), strict=True)), name
    with pytest.raises(RuntimeError, match=r"positions: expected the device of x, cuda:0, got cuda:1; move it"):
        sinpe.add(torch.ones(2, 3, 8, device=cuda), positions=torch.arange(3, device=other))


def peak(run: Callable[[], Any]) -> tuple[int, int]:
    """Peak memory beyond the start while it runs, and memory of its results, in bytes."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, sum(t.numel() * t.element_size() for t in flat(result))


SMALL = 2**16  # a seed, an alpha, rounding of the allocator


def test_peak_memory_is_that_of_the_results(cuda: torch.device) -> None:
    x = torch.ones(8, 4096, 512, device=cuda)
    for run in (
        lambda: sinpe.table(32768, 512, device=cuda),
        lambda: sinpe.add(x),
        lambda: sinpe.add(x, dropout=P),
        lambda: sinpe.add(x, alpha=torch.ones(1, device=cuda), positions=torch.arange(4096, device=cuda)),
    ):
        run()
        used, made = peak(run)
        assert used <= made + SMALL
    used, _ = peak(lambda: sinpe.add_(x, dropout=P))
    assert used <= SMALL
    given, grad = x.requires_grad_(), torch.ones_like(x)
    used, made = peak(lambda: torch.autograd.grad(sinpe.add(given, dropout=P), given, grad))
    assert used <= 2 * made + SMALL  # the sum and the gradient; no mask, no rows


def test_backward_is_deterministic(cuda: torch.device) -> None:
    ids = torch.randint(0, 40, (16, 512), generator=torch.Generator().manual_seed(1)).to(cuda)
    weight, grad = torch.zeros(40, 96, device=cuda, requires_grad=True), randn(16, 512, 96).to(cuda)

    def run() -> Tensor:
        return torch.autograd.grad(sinpe.embed(ids, weight, dropout=P, seed=1), weight, grad)[0]

    want = run()
    assert all(torch.equal(run(), want) for _ in range(5))
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(run(), want)
        for name in ("gradients", "gradient of an embedding", "add"):
            case = prepared(name, cuda)
            assert equal(case(), case())
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_torch_compile(mode: str, cuda: torch.device) -> None:
    pytest.importorskip("triton")
    torch._dynamo.reset()
    layer = sinpe.SinusoidalPositionalEncoding(D, P).to(cuda)
    trained = sinpe.SinusoidalEmbedding(V, D, dropout=P, learned_alpha=True, device=cuda)
    encoding, t = sinpe.Encoding(D), tensors(cuda)
    x, ids, weight, seed = t["x"], t["ids"], t["weight"], t["seed"]

    @torch.compile(mode=mode, fullgraph=True)
    def run(x: Tensor, ids: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        added = sinpe.add(x, encoding, scale=2.0) * 2
        return added, sinpe.embed(ids, weight, encoding, dropout=P, seed=7), layer(x)

    def loss(ids: Tensor, seed: Tensor) -> Tensor:
        return trained(ids, seed=seed).square().sum()

    compiled = torch.compile(loss, mode=mode)
    want = torch.autograd.grad(loss(ids, seed), tuple(trained.parameters()))
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        added, embedded_rows, dropped = (t.clone() for t in run(x, ids, weight))
        # the compiler may contract scale * x + PE into one rounding
        torch.testing.assert_close(added, sinpe.add(x, encoding, scale=2.0) * 2, rtol=2e-7, atol=2e-6)
        assert torch.equal(embedded_rows, sinpe.embed(ids, weight, encoding, dropout=P, seed=7))
        assert abs(float((dropped == 0).float().mean()) - P) < 0.05
        torch.compiler.cudagraph_mark_step_begin()
        got = torch.autograd.grad(compiled(ids, seed), tuple(trained.parameters()))
        for mine, theirs in zip(got, want, strict=True):
            # the compiler sums the squares in another order
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_modules_on_the_device(cuda: torch.device) -> None:
    layer = sinpe.SinusoidalPositionalEncoding(D, 0.0, learned_alpha=True).to("cuda")
    x = randn(B, S, D)
    got = layer(x.to(cuda), start=4095)
    assert_sums(cuda, got.detach(), layer.cpu()(x, start=4095).detach(), 8.0)
    assert_rows(cuda, sinpe.table(5, D, device="cuda"), sinpe.table(5, D))
    with torch.device("cuda"):
        assert sinpe.table(5, D).is_cuda


def test_intercepted_calls_on_the_device(cuda: torch.device) -> None:
    """vmap, torch.func.grad, autocast, and eager PyTorch, the fallback if the kernels cannot be built."""
    x = randn(B, S, D)
    run = lambda x: sinpe.add(x, dropout=P, seed=3)  # noqa: E731
    assert_sums(cuda, torch.func.vmap(run)(x.to(cuda)), torch.func.vmap(run)(x), 8.0)
    grad = torch.func.grad(lambda x: run(x).sum())
    assert torch.equal(grad(x.to(cuda)).cpu(), grad(x))
    want = run(x.to(cuda))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(run(x.to(cuda)), want)
        assert sinpe.encode(torch.arange(S, device=cuda).double(), D).dtype == torch.float32
    with loader.use_backend("eager"):
        assert_sums(cuda, want, run(x.to(cuda)).cpu(), 8.0)

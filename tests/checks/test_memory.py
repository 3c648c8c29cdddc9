"""Tensors that are written to: what may share memory with them, and that a rejected write changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from interfaces import MESSAGE_FORM
from torch import Tensor

import sinpe_ext as sinpe

B, S, D = 2, 5, 8
STRIDES = ((4, 1), (8, 2), (5, 1), (1, 3), (9, 2), (13, 3))


def x(*shape: int) -> Tensor:
    return torch.randn(shape or (B, S, D), generator=torch.Generator().manual_seed(0))


def leaf() -> Tensor:
    return x().requires_grad_()


def inference() -> Tensor:
    with torch.inference_mode():
        return x()


def refused(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match=message) as caught:
        call()
    assert MESSAGE_FORM.match(str(caught.value)), str(caught.value)


def places(t: Tensor) -> set[int]:
    """The indices in memory of the elements."""
    sizes = [range(n) for n in t.shape]
    steps = t.stride()
    return {t.storage_offset() + sum(i * s for i, s in zip(at, steps, strict=True)) for at in itertools.product(*sizes)}


@pytest.mark.bad_input(12, "compiled", "eager")
def test_out_that_shares_elements_with_x(backend: str) -> None:
    """All pairs of views of (3, 4) elements with these strides and distances: refused if they share an element, unless
    they are the same; accepted if they share none and have equal strides."""
    buffer = torch.zeros(90)
    outcomes = {True: 0, False: 0}
    for (steps, others), shift in itertools.product(itertools.product(STRIDES, STRIDES), range(-22, 23)):
        given, out = buffer.as_strided((3, 4), steps, 30), buffer.as_strided((3, 4), others, 30 + shift)
        shares, is_same = not places(given).isdisjoint(places(out)), (steps, 30) == (others, 30 + shift)
        if steps != others and (not shares or shift % 3):
            continue  # apart: whether ranges overlap decides
        buffer.normal_()
        want, before = sinpe.add(given.clone()), buffer.clone()
        if shares and not is_same:
            refused("out: .* overlaps with that of x; clone", lambda given=given, out=out: sinpe.add(given, out=out))
            assert torch.equal(buffer, before)
        else:
            assert sinpe.add(given, out=out) is out and torch.equal(out, want)
        outcomes[shares] += 1
    assert min(outcomes.values()) > 50


# Arguments of the rows that share memory with the written tensor, float32 of shape (4, S, D).
ROW_ARGUMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "positions": lambda b: b.view(-1)[:S],
    "start": lambda b: b.view(-1).view(torch.int64)[:4],
    "padding_mask": lambda b: b.view(-1).view(torch.bool)[5 : 5 + S].expand(1, S),
    "alpha": lambda b: b.view(-1)[S * D],
    "seed": lambda b: b.view(-1).view(torch.int64)[-1:],
}


@pytest.mark.bad_input(12, "compiled", "eager", "grid")
@pytest.mark.parametrize("name", ROW_ARGUMENTS)
def test_row_arguments_that_share_memory_with_the_output(name: str, backend: str) -> None:
    """Otherwise a row would be computed from values that another row has overwritten."""
    buffer = torch.zeros(4, S, D)
    argument = ROW_ARGUMENTS[name](buffer)
    arguments: dict[str, Any] = {name: argument, "dropout": 0.5 if name == "seed" else 0.0}
    calls: list[Callable[[], Any]] = [
        lambda: sinpe.add_(buffer, **arguments),
        lambda: sinpe.add(torch.ones(4, S, D), out=buffer, **arguments),
    ]
    if name in ("padding_mask", "alpha", "seed"):
        calls.append(lambda: sinpe.add_(buffer.view(4, 1, S, D), "mae2d", **arguments))  # one grid row
    for call in calls:
        refused(f"^{name}: expected memory apart from .* clone", call)
        assert not buffer.any()
    arguments[name] = argument.clone()
    for call in calls:
        call()


@pytest.mark.bad_input(12, "compiled", "eager")
def test_row_arguments_next_to_the_output(backend: str) -> None:
    memory = torch.zeros(3 * S * D)
    out = memory[S * D : 2 * S * D].view(1, S, D)
    for first, is_refused in ((S * D - S, False), (S * D - S + 1, True), (2 * S * D - 1, True), (2 * S * D, False)):
        positions = memory[first : first + S]
        if is_refused:
            refused("^positions: expected memory apart", lambda p=positions: sinpe.add_(out, positions=p))
        else:
            sinpe.add_(out, positions=positions)


IN_PLACE: dict[str, tuple[Callable[[], Tensor], str]] = {
    "leaf": (leaf, "x: .* got a leaf Variable that requires grad, .*; call add, or detach"),
    "view of leaf": (lambda: leaf()[:1], "x: .* got a view of a leaf Variable that requires grad"),
    "expanded": (lambda: x(1, S, D).expand(B, S, D), "x: .* more than one element of the written-to"),
    "unfolded": (lambda: x(12).unfold(0, D, 1), "x: .* got strides .1, 1. for shape .5, 8."),
    "rows that meet": (lambda: x(99).as_strided((S, D), (D - 1, 1)), "x: .* got strides .7, 1."),
    "inference": (inference, "x: .* got an inference tensor outside of inference mode"),
    "zero": (lambda: torch._efficientzerotensor((S, D)), "(x|out): .* got an immutable zero|memory holds its elements"),
}


@pytest.mark.bad_input(12, "compiled", "eager")
@pytest.mark.parametrize("case", IN_PLACE.values(), ids=IN_PLACE)
def test_tensors_that_cannot_be_written(case: Any, backend: str) -> None:
    make, pattern = case
    target = make()
    before = target.detach().clone()
    refused(pattern, lambda: sinpe.add_(target))
    assert torch.equal(target, before) and (target.is_inference() or target._version == 0)
    if not target.requires_grad:
        refused(pattern.replace("x: ", "out: "), lambda: sinpe.add(before.clone(), out=target))
        assert target.dim() > 2 or sinpe.table(S, D).shape == target.shape
    if target.dim() == 2:
        refused(pattern.replace("x: ", "out: "), lambda: sinpe.table(S, D, out=target))


@pytest.mark.bad_input(12, "compiled", "eager", "meta")
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_strides_that_only_just_fit(device: str, backend: str) -> None:
    for strides in ((D, 1), (1, S)):
        target = torch.zeros(99, device=device).as_strided((S, D), strides)
        assert sinpe.add_(target) is target


@pytest.mark.bad_input(12, "compiled", "eager")
def test_writes_increment_the_version_counter(backend: str) -> None:
    """A backward pass that needs the overwritten value raises."""
    writes: list[Callable[[Tensor], Tensor]] = [
        lambda t: sinpe.add_(t),
        lambda t: sinpe.add_(t[:, ::2]),
        lambda t: sinpe.add_(t, start=torch.tensor([4, -9])),
        lambda t: sinpe.add(x(), out=t),
        lambda t: sinpe.add(x(), sinpe.Encoding(D, angle="float32_exp"), out=t),
        lambda t: sinpe.table(S, D, out=t[0]),
        lambda t: sinpe.table(S, D, out=t.transpose(1, 2)[0].t()),
    ]
    for write, _ in itertools.product(writes, range(2)):  # the second call is repeated
        weight, target = torch.ones(1, requires_grad=True), x()
        loss = (weight * target).sum()
        write(target)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.bad_input(17, "compiled", "eager")
def test_freed_arguments(backend: str) -> None:
    """They are refused, and no seed is drawn; other functions: tests/encodings/test_values.py."""
    given, freed, before = torch.zeros(2, 4, 8), torch.zeros(2, 4, 8), torch.get_rng_state()
    weight, positions, ids = given[1], freed[..., 0], torch.zeros(3, dtype=torch.int64)
    freed.untyped_storage().resize_(0)
    for arguments in ({"positions": positions}, {"out": freed}):
        refused("(positions|out): .*memory holds its elements", lambda a=arguments: sinpe.add(given, dropout=0.5, **a))
    given.untyped_storage().resize_(8)
    for call in (sinpe.add, sinpe.add_, lambda x, **named: sinpe.embed(ids, weight, **named)):
        message = "(x|weight): expected a tensor whose memory holds its elements"
        refused(message, lambda call=call: call(given, dropout=0.5))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.bad_input(12, "NumPy")
def test_numpy_out_of_any_layout_without_overlap() -> None:
    want, memory = sinpe.numpy.table(5, D), np.zeros((9, 3 * D), np.float32)
    for out in (memory[5:0:-1, ::2][:, :D], memory[::2, D : 2 * D], memory.T[:5, :D], memory[4:9, ::-1][:, :D]):
        assert np.array_equal(sinpe.numpy.table(5, D, out=out), want)


GRID = sinpe.convention("mae2d", 8)
PLACES = {"magic": 0, "count": 4, "values": 6, "length": 8, "axis": 10, "channel": 11, "offset": 14}


@pytest.mark.parametrize("words", [[1, 2, 3], *PLACES], ids=str)
def test_invalid_packed_grid_is_rejected(words: Any) -> None:
    """The operator checks what memory safety needs itself."""
    from sinpe_ext.operations import grid_rows

    if sinpe.backend_info().device("cpu").backend != "compiled" or torch.ops.sinpe_ext.cpu_isa() == "emulated":
        pytest.skip("checked by the CPU kernel only; CUDA gives NaN, see test_cuda_binding.py")
    good = grid_rows.pack_grid(GRID, (3, 4), False, torch.device("cpu"))
    flat, values = torch.zeros(2, 12, 8), torch.zeros(3 * 4 + 4 * 4)
    bad = torch.tensor(words) if isinstance(words, list) else good.clone()
    if isinstance(words, str):
        bad[PLACES[words]] = 2**40 if words != "axis" else 2
    # positions, padding_mask, alpha, seed; then start, positions_are_starts, scale, extra_tokens, drop_threshold, ...
    none, plain = (None,) * 4, (0, False, 1.0, 0, 0, [])
    op, out = torch.ops.sinpe_ext.add_out.default, torch.full_like(flat, 7.0)
    for given, packed, axis_rows in ((flat, bad, values), (flat, good, values.double()), (flat[:, :11], good, values)):
        with pytest.raises(RuntimeError):
            op(given, packed, *none, axis_rows, *plain, out[:, : given.shape[1]])
    assert torch.equal(out, torch.full_like(flat, 7.0))
    op(flat, good, *none, values, *plain, out)
    assert torch.equal(out, flat)

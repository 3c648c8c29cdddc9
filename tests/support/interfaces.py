"""The interfaces that the bad-input catalogue is tested on, and helpers to run a call on each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from sinpe_ext.backend import loader

# `argument: expected X, got Y; do Z`
MESSAGE_FORM = re.compile(r"^[a-z_]+(\[\d+\])?(, [a-z_]+)*: expected .+, got .+; .+", re.DOTALL)


class Interface(NamedTuple):
    """A backend and the device of its tensors."""

    name: str
    setting: str
    device: str

    @contextmanager
    def in_use(self) -> Iterator[str]:
        with loader.use_backend(self.setting):  # type: ignore[arg-type]
            yield self.device


def interfaces(*, with_data: bool = False) -> list[Interface]:
    """The available interfaces. with_data: without meta, for checks that need values."""
    available = [Interface("eager", "eager", "cpu")]
    if loader.setting() != "eager":  # else --require-backend=eager
        if loader.resolve("cpu").backend == "compiled":
            available.append(Interface("compiled", "compiled", "cpu"))
        if torch.cuda.is_available() and loader.resolve("cuda").backend == "compiled":
            available.append(Interface("cuda", "compiled", "cuda:0"))
    return available if with_data else [*available, Interface("meta", "auto", "meta")]


def check_error(
    error: type[Exception], pattern: str, *calls: Callable[[str], Any], with_data: bool = False, alike: bool = True
) -> str:
    """Checks that each interface rejects each call: the same exception, the usual form, and one message (`alike`)."""
    messages: dict[tuple[int, str], str] = {}
    for interface in interfaces(with_data=with_data):
        for number, call in enumerate(calls):
            with interface.in_use() as device:
                message = message_of(
                    error, lambda call=call, device=device: call(device), f"{interface.name}, call {number}"
                )
            assert re.search(pattern, message, re.DOTALL), (interface.name, number, message)
            messages[number, interface.name] = message.replace(device, "DEVICE").replace("torch.", "")
    for number in range(len(calls)):
        one = {text for (of, _), text in messages.items() if of == number}
        assert len(one) == 1, messages
    assert not alike or len(set(messages.values())) == 1, messages
    return next(iter(messages.values()))


def message_of(error: type[Exception], call: Callable[[], Any], where: str = "") -> str:
    """The message of a call that must raise, in the usual form."""
    try:
        call()
    except Exception as caught:
        assert type(caught) is error, (where, repr(caught))
        assert MESSAGE_FORM.match(str(caught)), (where, str(caught))
        return str(caught)
    raise AssertionError(f"{where}: expected {error.__name__}, and nothing was raised")


def same_bits(results: Iterable[tuple[str, torch.Tensor]]) -> torch.Tensor:
    """Checks that the results of several interfaces are bitwise equal, and returns one."""
    named = [(name, t.detach().cpu()) for name, t in results]
    first = named[0][1]
    for name, other in named[1:]:
        assert other.shape == first.shape and other.dtype == first.dtype, name
        if first.dtype == torch.float64:  # within 1 ULP
            assert torch.allclose(other, first, rtol=0, atol=3e-16, equal_nan=True), name
        else:
            words = {4: torch.int32, 2: torch.int16}[first.element_size()]
            same = other.view(words) == first.view(words)
            assert bool((same | (other.isnan() & first.isnan())).all()), name
    return first


def everywhere(call: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """Runs a call on each interface with data, which must give the same bits, and on meta, the same shape and dtype."""
    results: list[tuple[str, torch.Tensor]] = []
    for interface in interfaces(with_data=True):
        with interface.in_use() as device:
            results.append((interface.name, call(device)))
    got = same_bits(results)
    with loader.use_backend("auto"):
        shape = call("meta")
    assert shape.is_meta and shape.shape == got.shape and shape.dtype == got.dtype
    return got

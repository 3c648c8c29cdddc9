"""The ways in which a call is computed: checked in Python, repeated in C, or on the eager backend."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext import torch_state
from sinpe_ext.backend import loader
from sinpe_ext.operations import repetition, table
from sinpe_ext.operations.add import AddArguments, check_add
from sinpe_ext.operations.embed import EmbedArguments, check_embed

WAYS = ("checked", "repeated", "eager")


@contextmanager
def use(way: str) -> Iterator[None]:
    """With the compiled backend each call is checked in Python, or each that can be repeated is repeated in C."""
    with sinpe.use_backend("eager" if way == "eager" else "compiled"):
        if way == "checked":
            loader.repeat, loader.keep = loader._repeat_nothing, None
        elif way == "repeated":
            loader.repeat(repetition.TABLE, (0,))  # loads the module
            loader.repeat = _made_before(loader.repeat)
        yield


@contextmanager
def repetitions() -> Iterator[list[bool]]:
    """Whether each call was repeated. The kernels must have been loaded."""
    found: list[bool] = []
    repeat = loader.repeat

    def observed(function: int, arguments: tuple[Any, ...]) -> Any:
        result = repeat(function, arguments)
        found.append(result is not None)
        return result

    loader.repeat = observed
    try:
        yield found
    finally:
        loader.repeat = repeat


def _made_before(repeat: Callable[[int, tuple[Any, ...]], Any]) -> Callable[[int, tuple[Any, ...]], Any]:
    """`loader.repeat`, after the same call was made with copies of the tensors."""

    def repeated(function: int, arguments: tuple[Any, ...]) -> Any:
        result = repeat(function, arguments)
        if result is None and not torch_state.is_intercepted():
            with torch.random.fork_rng(devices=[]), suppress(Exception):  # an error is raised by the call itself
                _make(function, _copies(arguments))
            result = repeat(function, arguments)
        return result

    return repeated


def _make(function: int, arguments: tuple[Any, ...]) -> None:
    """A call, checked in Python."""
    if function == repetition.TABLE:
        table.table(table.TableArguments(*arguments))
    elif function == repetition.ENCODE:
        table.encode(table.EncodeArguments(*arguments))
    elif function == repetition.EMBED:
        check_embed(EmbedArguments(*arguments)).result()
    else:
        given = AddArguments(*arguments)
        call = check_add(given)
        if given.out is None:
            call.result()
        elif given.out is given.x:
            call.result_in_place()
        else:
            call.result_into(given.out)


def _copies(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """With copies of the tensors in memory of their own, of the same layout, and of generators."""
    made: dict[int, Any] = {id(a): a.clone_state() for a in arguments if isinstance(a, torch.Generator)}
    for t in arguments:
        if isinstance(t, Tensor):
            made[id(t)] = copy.deepcopy(t.detach()).requires_grad_(t.requires_grad)
    return tuple([made.get(id(a), a) for a in arguments])

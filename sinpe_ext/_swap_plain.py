"""Modules of no library: those that own a table which `identify` recognises, and what their forward does with it.

A formula cannot be read off code, so the forward is tried: on zeros it shows the rows and their order, on noise the
factor of x, with a dropout of 1 where the dropout stands. What is found is then measured like any other drop-in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ._identify import identify
from ._swap_dropin import tensor_of
from ._swap_families import REPLACED, SINUSOIDAL, Candidate, Left, owner, parameters
from ._swap_measure import Probe
from ._swap_plain_forms import form_of
from ._swap_transformers import EmbeddingRows
from .encoding import Encoding

POSITIONAL = re.compile(
    r"(^|_)(pe|pes|p_?enc|pos|posemb|posenc)(_|\d|$)|posi|pos_?e|sinus|sin_?cos|encoding|timing", re.I
)
META = "its table is on the meta device: load the weights first"
ROTARY = re.compile(r"rotary|rope|inv_freq", re.I)


def plain_of(module: nn.Module, name: str, above: Sequence[nn.Module]) -> list[Candidate] | Left | None:
    """Candidates for a module by the values of its table; None where it owns none that looks positional."""
    kind = type(module).__name__
    if ROTARY.search(kind):
        return None
    if owner(module) is nn.Embedding:
        return _embedding(module, name.rpartition(".")[2], above)
    by_class = bool(POSITIONAL.search(kind) or SINUSOIDAL.search(kind))
    left: Left | None = None
    for key, table in _tables(module):
        if not (by_class or POSITIONAL.search(key)):
            continue
        found = _of_table(module, key, table)
        if isinstance(found, list):
            return found
        left = left or found
    if left is None and SINUSOIDAL.search(kind) and not list(module.children()):
        return Left("it looks sinusoidal by its name; there is no drop-in for its class, and no table was recognised")
    return left


def _tables(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Its own tensors of rows, under the names they are found by."""
    named = {**module._parameters, **module._buffers, **vars(module)}
    return [
        (key, value)
        for key, value in named.items()
        if type(value) in (Tensor, nn.Parameter)
        and value.is_floating_point()
        and value.layout == torch.strided
        and 2 <= value.dim() <= 4
        and value.shape[-1] > 1
    ]


def _embedding(module: Any, last: str, above: Sequence[nn.Module]) -> list[Candidate] | Left | None:
    if not POSITIONAL.search(last):
        return None
    if type(module.weight) is not nn.Parameter or module.weight.is_meta:
        return None if module.weight.requires_grad else Left(META)
    matches = identify(module.weight)
    if not matches:
        return None  # a learned one
    match: Any = matches[0]
    rows = module.weight.shape[0]
    problem = _unserved(match)
    fixed = module.weight.requires_grad and _fixed(above)
    if module.weight.requires_grad and not fixed:
        problem = f"its weight has the rows of {match.code} but is trained (requires_grad=True): freeze it first"
    elif module.max_norm is not None:
        problem = "it has a max_norm"
    elif len(match.zero_rows) > 1 or (match.extra_tokens and match.zero_rows):
        problem = f"rows {match.zero_rows} of its table are zero"
    if problem:
        return Left(problem, match.encoding)
    encoding, zero = match.encoding, match.zero_rows[0] if match.zero_rows else None
    if match.extra_tokens == 1:  # row 0 is the padding's; the first position stands in row 1
        zero, encoding = 0, encoding.replace(start=encoding.start - 1)
    elif match.extra_tokens:
        return Left(f"the first {match.extra_tokens} rows of its table are no encoding", match.encoding)
    form = "rows of positions" + ("; weight frozen, as the model means it" if fixed else "")
    ids = torch.arange(min(rows, 4096), device=module.weight.device)
    probes = [
        Probe((ids,), {}, abs(encoding.start) + rows),
        Probe((ids[-6:].reshape(2, -1),), {}, abs(encoding.start) + rows),
    ]
    return [
        Candidate(EmbeddingRows, encoding, ("weight",), probes, {"_sinpe_zero_row": zero, "_sinpe_freeze": fixed}, form)
    ]


def _fixed(above: Sequence[nn.Module]) -> bool:
    """Whether a library freezes this embedding itself: from_pretrained of some releases forgets it."""
    configs = [getattr(module, "config", None) for module in above]
    flags = ("sinusoidal_pos_embds", "sinusoidal_embeddings")  # DistilBERT; XLM and FlauBERT
    by_config = any(getattr(config, flag, False) is True for config in configs for flag in flags)
    return by_config or any(type(module).__name__ == "WhisperEncoder" for module in above[-1:])


def _unserved(match: Any) -> str:
    """Why the table alone rules a drop-in out."""
    if not isinstance(match.encoding, Encoding):
        return f"its table is recognised ({match.code}), but a grid's rows in a plain module are not served"
    if match.zero_columns:
        return f"its table is recognised ({match.code}), but columns {match.zero_columns[:4]} of it are zero"
    return ""


def _of_table(module: nn.Module, key: str, table: Tensor) -> list[Candidate] | Left | None:
    if table.is_meta:
        return None if table.requires_grad else Left(META)
    matches = identify(table)
    if not matches:
        if (
            table.requires_grad
            or isinstance(table, nn.Parameter)
            or not SINUSOIDAL.search(f"{type(module).__name__} {key}")
        ):
            return None
        return Left(f"`{key}` is no convention that identify knows: {matches.reason}")
    match: Any = matches[0]
    recognised = f"its table `{key}` is recognised ({match.code})"
    if table.requires_grad:
        return Left(f"{recognised} but is trained (requires_grad=True): freeze it first", match.encoding)
    inner = [f"{type(child).__name__} {name}" for name, child in module.named_children() if not _passes(child)]
    if inner:
        return Left(f"{recognised}, but it has layers of its own ({', '.join(inner[:4])})", match.encoding)
    trained = [name for name, value in module._parameters.items() if value is not None and value is not table]
    if len(trained) > 1 or any(module._parameters[name].numel() > 1 for name in trained):  # type: ignore[union-attr]
        return Left(f"{recognised}, but it has parameters of its own ({', '.join(trained[:4])})", match.encoding)
    problem = _unserved(match)
    if not problem and (match.zero_rows or match.extra_tokens):
        problem = f"{recognised}, but rows of it are zero or learned"
    if not problem and len(parameters(module)) != 1:
        problem = (
            f"{recognised}, but its forward takes {', '.join(parameters(module)) or 'nothing'}, not one tensor alone"
        )
    if "forward" in vars(module):
        problem = REPLACED
    if problem:
        return Left(problem, match.encoding)
    assert tensor_of(module, key) is not None
    return form_of(module, key, table, match.encoding, trained[0] if trained else None, recognised)


def _passes(child: nn.Module) -> bool:
    """Whether a child does nothing to the values in evaluation mode."""
    return type(child) in (nn.Dropout, nn.Identity)

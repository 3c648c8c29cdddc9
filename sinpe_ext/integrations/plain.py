"""Modules that belong to no known library but own a table that `identify` recognizes.

Every tensor of rows in a module is examined, whatever its name: a test of a few rows rules out learned weights in a
fraction of a millisecond, and `identify` decides about the other tensors. What the forward does with the rows has to be
one of a few known forms (`plain_forms.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..encodings.encoding import Encoding
from ..identification import Match, Matches, identify
from .dropin import REPLACED, ROTARY, SINUSOIDAL, Candidate, Left, half_rotary, owner, parameters, tensor_of
from .measure import Probe
from .plain_forms import forms_of
from .transformers import EmbeddingRows

# A tensor with such a name is passed to `identify` without being sampled first, and is reported if its values cannot be
# read.
POSITIONAL = re.compile(
    r"(^|_)(pe|pes|p_?enc|pos|posemb|posenc)(_|\d|$)|posi|pos_?e|sinus|sin_?cos|encoding|timing", re.I
)
META = "its table is on the meta device: load the weights first"

SAMPLED, IN_A_ROW, COLUMNS = 8, 16, 32  # rows spread over a tensor, consecutive rows, and columns of the latter
FEWEST_CHANNELS, MOST_CHANNELS = 16, 2**14
FEWEST_IN_A_ROW = 6
# sin^2 + cos^2 = 1 in every pair, so all rows of a table have the same norm, except for 16-bit rounding. The norms of
# the rows of a learned weight vary by about d^-1/2. A channel without a partner (odd d) contributes at most 2/d of the
# squared norm; each of three axes may have one, and cosines with frequencies of their own have about the same effect.
EVEN, ODD = 0.004, 6.0
IRREGULAR = (
    0.05  # largest fraction of a column's energy not explained by x[t + 1] + x[t - 1] = c x[t] (as in `identify`)
)


def plain_of(module: nn.Module, name: str, above: Sequence[nn.Module]) -> list[Candidate] | Left | None:
    """Candidates for a module by the values of its tables; None if none of them is sinusoidal."""
    if owner(module) is nn.Embedding:
        return _embedding(module, name.rpartition(".")[2], above)
    kind = type(module).__name__
    rotary = bool(ROTARY.search(kind))
    by_class = not rotary and bool(POSITIONAL.search(kind) or SINUSOIDAL.search(kind))
    left: dict[str, Left] = {}
    for key, table in _tables(module):
        by_name = by_class or (not rotary and bool(POSITIONAL.search(key)))
        result = _of_table(module, key, table, by_name)
        if isinstance(result, list):
            return result
        if result is not None and not rotary:
            left[key] = result
    return _joined(left)


def _joined(left: dict[str, Left]) -> Left | None:
    """The report for a module: why its first recognized table is left alone, and which others were recognized."""
    ordered = sorted(left.items(), key=lambda item: item[1].encoding is None)
    if not ordered:
        return None
    (_, first), *others = ordered
    more = [f"`{key}`" for key, other in others if other.encoding is not None]
    if not more or first.encoding is None:
        return first
    return Left(
        f"{first.reason}; {', '.join(more[:4])} {'are' if len(more) > 1 else 'is'} recognized, too", first.encoding
    )


def _tables(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The module's own tensors that may hold rows, by name."""
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


def _identified(table: Tensor, by_name: bool) -> tuple[Matches, Tensor, bool] | None:
    """(result of `identify`, the rows, whether the tensor holds them as columns, (channels, positions)).

    None if samples of the tensor, in both directions, rule out that it is a table.
    """
    lengths = [length for length in table.shape if length != 1]
    flat = len(lengths) == 2 and lengths == list(table.shape[-2:])
    columns = table.detach().reshape(lengths).T if flat else table
    matches = None
    if by_name or may_be_table(table):
        matches = identify(table)
        if matches and matches[0].transposed and flat:
            return matches, columns, True
        if matches and not matches[0].transposed:
            return matches, table, False
    if flat and may_be_table(columns):
        turned = identify(columns)
        if turned and not turned[0].transposed:
            return turned, columns, True
    return None if matches is None else (matches, table, False)


@torch.no_grad()
def may_be_table(table: Tensor) -> bool:
    """Whether some rows of a tensor (..., channels) can be those of an encoding.

    Tests the common properties of encodings: rows of equal norm, or columns that satisfy the recurrence of a sinusoid.
    The answer False is certain, except for tables whose values are 0 and one other magnitude, and for grids with fewer
    than 16 channels some of which have no partner.
    """
    channels = table.shape[-1]
    number = table.numel() // max(channels, 1)
    kernel = table.dim() > 2 and table.requires_grad and 1 not in table.shape[:2]  # a convolution kernel
    if number < 2 or channels > MOST_CHANNELS or kernel or table.dtype.itemsize == 1:
        return False
    flat = table.detach()
    flat = flat.reshape(-1, channels) if flat.dim() > 2 else flat
    steps = min(SAMPLED, number)
    where = [((2 * k + 1) * number) // (2 * steps) for k in range(steps)]
    if _has_equal_norms(flat[torch.tensor(where, device=flat.device)].cpu()):
        return True
    line = table.shape[-2] if table.dim() > 2 and table.shape[-2] > 1 else number  # of a grid, its last axis
    first = (number - 1) // 2 // line * line if line < number else max(0, number // 2 - IN_A_ROW // 2)
    successive = flat[first : first + min(IN_A_ROW, line), :: max(1, channels // COLUMNS)]
    return _satisfies_recurrence(successive.cpu().double())


def _trivial(rows: Tensor) -> bool:
    """Whether all rows are equal, have the values of a mask, or are not finite."""
    size = rows.abs()
    largest = size.max()
    return not bool(torch.isfinite(largest)) or bool(((size == 0) | (size == largest)).all() | (rows == rows[0]).all())


def _has_equal_norms(rows: Tensor) -> bool:
    """Whether the nonzero rows have equal norms."""
    squares = rows.square().sum(1, dtype=torch.float32 if rows.dtype.itemsize <= 4 else torch.float64)
    squares = squares[squares > 0]
    if len(squares) < 2:
        return False
    channels = rows.shape[1]
    spread = float((squares.max() - squares.min()) / squares.mean())
    one = spread <= EVEN or (channels >= FEWEST_CHANNELS and spread <= EVEN + ODD / channels)
    return one and not _trivial(rows)


def _satisfies_recurrence(rows: Tensor) -> bool:
    """Whether most columns of consecutive rows satisfy x[t + 1] + x[t - 1] = c x[t]."""
    columns = rows[rows.any(1)]
    columns = columns[:, columns.any(0)]
    if len(columns) < FEWEST_IN_A_ROW or not columns.numel():
        return False
    middle, outer = columns[1:-1], columns[2:] + columns[:-2]
    energy = middle.square().sum(0).clamp_min(1e-300)
    factor = (middle * outer).sum(0) / energy
    rest = (outer - factor * middle).square().sum(0) / (4 * energy)
    return float(rest.median()) < IRREGULAR and not _trivial(columns)


def _embedding(module: Any, last: str, above: Sequence[nn.Module]) -> list[Candidate] | Left | None:
    """Candidates for an nn.Embedding; `last` is the last part of its name, `above` are the modules that contain it."""
    by_name = bool(POSITIONAL.search(last))
    if type(module.weight) is not nn.Parameter or module.weight.is_meta:
        return Left(META) if by_name and not module.weight.requires_grad else None
    if module.weight.layout != torch.strided or not (by_name or may_be_table(module.weight)):
        return None
    matches = identify(module.weight)
    if not matches or matches[0].transposed:
        return None  # learned, or not a table of rows
    match = matches[0]
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
    encoding: Any = match.encoding
    zero = match.zero_rows[0] if match.zero_rows else None
    if match.extra_tokens == 1:  # row 0 is the padding row; the first position is in row 1
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
    """Whether the library means this embedding to be frozen: from_pretrained of some releases does not restore that."""
    configs = [getattr(module, "config", None) for module in above]
    flags = ("sinusoidal_pos_embds", "sinusoidal_embeddings")  # DistilBERT; XLM and FlauBERT
    by_config = any(getattr(config, flag, False) is True for config in configs for flag in flags)
    return by_config or any(type(module).__name__ == "WhisperEncoder" for module in above[-1:])


def _unserved(match: Match) -> str:
    """Why a table cannot be replaced whatever the module does with it; "" if it can."""
    if not isinstance(match.encoding, Encoding):
        return f"its table is recognized ({match.code}), but grids in plain modules are not supported"
    if match.zero_columns:
        return f"its table is recognized ({match.code}), but columns {match.zero_columns[:4]} of it are zero"
    return ""


def _of_table(module: nn.Module, key: str, table: Tensor, by_name: bool) -> list[Candidate] | Left | None:
    """Candidates for a module with this table; by_name: whether its name is that of a table."""
    if table.is_meta:
        return Left(META) if by_name and not table.requires_grad else None
    read = _identified(table, by_name)
    if read is None:
        return None
    matches, rows, turned = read
    if not matches:
        return _not_known(module, key, table, matches)
    match = matches[0]
    result = _with_match(module, key, table, rows, turned, match)
    return None if isinstance(result, Left) and half_rotary(match) and not by_name else result


def _not_known(module: nn.Module, key: str, table: Tensor, matches: Matches) -> Left | None:
    """The report for a table that `identify` does not recognize, if its name suggests one."""
    named = SINUSOIDAL.search(f"{type(module).__name__} {key}")
    if table.requires_grad or isinstance(table, nn.Parameter) or not named:
        return None
    return Left(f"`{key}` is no convention that identify knows: {matches.reason}")


def _with_match(
    module: nn.Module, key: str, table: Tensor, rows: Tensor, turned: bool, match: Match
) -> list[Candidate] | Left:
    """Candidates for a module whose table is recognized, or why it is left alone."""
    encoding: Any = match.encoding
    recognized = f"its table `{key}` is recognized ({match.code})"
    if table.requires_grad:
        return Left(f"{recognized} but is trained (requires_grad=True): freeze it first", encoding)
    inner = [f"{type(child).__name__} {name}" for name, child in module.named_children() if not _passes(child)]
    if inner:
        return Left(f"{recognized}, but it has layers of its own ({', '.join(inner[:4])})", encoding)
    trained = [name for name, value in module._parameters.items() if value is not None and value is not table]
    if len(trained) > 1 or any(module._parameters[name].numel() > 1 for name in trained):  # type: ignore[union-attr]
        return Left(f"{recognized}, but it has parameters of its own ({', '.join(trained[:4])})", encoding)
    problem = _unserved(match)
    if not problem and (match.zero_rows or match.extra_tokens):
        problem = f"{recognized}, but rows of it are zero or learned"
    if not problem and len(parameters(module)) != 1:
        problem = (
            f"{recognized}, but its forward takes {', '.join(parameters(module)) or 'nothing'}, not one tensor alone"
        )
    if "forward" in vars(module):
        problem = REPLACED
    if problem:
        return Left(problem, encoding)
    assert tensor_of(module, key) is not None
    flat = rows.detach().reshape(-1, rows.shape[-1])
    return forms_of(module, key, flat, turned, encoding, trained[0] if trained else None, recognized)


def _passes(child: nn.Module) -> bool:
    """Whether a child is the identity in evaluation mode."""
    return type(child) in (nn.Dropout, nn.Identity)

"""The operators `torch.ops.sinpe_ext.*`: schemas, fake kernels, batching, and the eager twin for other devices.

Schemas stand here and nowhere else; the compiled libraries hold implementations only (a second definition would abort
the process). A device whose library is not loaded runs the eager twin (`reference/`) behind the same operator, so a
compiled graph never sees the difference. Their derivatives are in `autograd.py`; who calls what, `dispatch.py` decides.
None is on an autocast list: positions, frequencies and x keep their dtypes under autocast.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import reference
from ..checks import position_range
from ..reference import apply, grid_add
from ..runtime import registration
from . import seed_tensor
from .plan_words import decoded, derivative_constants, host_words, partner, plan_tensor, plan_words, slopes

__all__ = ["EAGER", "NAMESPACE", "decoded", "derivative_constants", "host_words", "partner", "plan_tensor"]
__all__ += ["plan_words", "slopes"]

NAMESPACE = "sinpe_ext"  # the only place where the operators' namespace is named

# Tensors are in canonical form: x and grad (batch, *middle, sequence, channels) or (sequence, channels), ids the same
# without channels, positions and padding_mask (batch or 1, sequence), start positions (batch or 1, 1). `drop` counts
# the 65536ths that dropout drops; `elements` (empty: row-major) are [first, *steps], the index in the whole tensor of
# the first element and what a step along each dimension adds to it, which decide the mask (`reference/philox.py`).
# `plan` is always the int64 words of `plan.Plan`, in CUDA memory for CUDA tensors, else on the CPU; `dim` repeats its
# width for the fake kernels, which see no data.
_SCHEMAS = (
    "table(Tensor plan, SymInt start, SymInt length, int dim, ScalarType dtype) -> Tensor",
    "table_out(Tensor plan, SymInt start, Tensor(a!) out) -> ()",
    "encode(Tensor positions, Tensor plan, int dim, ScalarType dtype) -> Tensor",
    "add(Tensor x, Tensor plan, SymInt start, float scale) -> Tensor",
    "add_out(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, SymInt start, bool positions_are_starts, "
    "float scale, float alpha, Tensor(a!) out) -> ()",
    "dropout(Tensor x, Tensor? seed, int drop, float scale, SymInt[] elements) -> Tensor",
    "add_dropout(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? alpha, Tensor? seed, "
    "SymInt start, bool positions_are_starts, float scale, int drop, SymInt[] elements) -> Tensor",
    "add_dropout_out(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? seed, SymInt start, "
    "bool positions_are_starts, float scale, float alpha, int drop, SymInt[] elements, Tensor(a!) out) -> ()",
    # `grid` are the int64 words of a grid and `values` the rows of its axes (`calls/grid_rows.py`), where x is.
    "add_grid_out(Tensor x, Tensor values, Tensor grid, Tensor? padding_mask, Tensor? seed, float scale, int drop, "
    "SymInt[] elements, Tensor(a!) out) -> ()",
    "row_dots(Tensor grad, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? slopes, Tensor? seed, "
    "SymInt start, bool positions_are_starts, int drop, SymInt[] elements) -> Tensor",
    "embed(Tensor ids, Tensor weight, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? alpha, "
    "Tensor? seed, SymInt start, bool positions_are_starts, float scale, int padding_idx, bool sparse, int drop, "
    "SymInt[] elements) -> Tensor",
    "embed_backward(Tensor grad, Tensor ids, Tensor? seed, SymInt num_embeddings, int padding_idx, float scale, "
    "int drop, SymInt[] elements) -> Tensor",
    "plan_partner(Tensor plan) -> Tensor",
    "plan_slopes(Tensor plan, int dim) -> Tensor",
)


def _first(plan, start, rows):
    """The first position; a graph calls with a start that no one has checked."""
    position_range(plan.start + start, rows)
    return plan.start + start


def _first_of(plan, start, rows, positions):
    return _first(plan, start, rows) if positions is None else 0


def _eager_table(words, start, length, dim, dtype):
    plan = decoded(words)
    return reference.table(plan, length, _first(plan, start, length), dtype)


def _eager_table_out(words, start, out):
    out.copy_(_eager_table(words, start, out.shape[0], out.shape[1], out.dtype))


def _eager_encode(positions, words, dim, dtype):
    return reference.encode(decoded(words), positions, dtype)


def _eager_add(x, words, start, scale):
    plan = decoded(words)
    return apply.add(plan, x, None, _first(plan, start, x.shape[-2]), scale, 1.0, None)


def _eager_add_out(x, words, positions, padding_mask, start, positions_are_starts, scale, alpha, out):
    plan = decoded(words)
    first = _first_of(plan, start, x.shape[-2], positions)
    apply.add(plan, x, positions, first, scale, alpha, padding_mask, out)


def _eager_dropout(x, seed, drop, scale, elements):
    return apply.dropout(x, seed, drop, scale, elements)


def _eager_add_dropout(
    x, words, positions, padding_mask, alpha, seed, start, positions_are_starts, scale, drop, elements
):
    plan = decoded(words)
    first, alpha = _first_of(plan, start, x.shape[-2], positions), 1.0 if alpha is None else alpha
    dropped = {"seed": seed, "drop": drop, "elements": elements}
    return apply.add(plan, x, positions, first, scale, alpha, padding_mask, **dropped)


def _eager_add_dropout_out(
    x, words, positions, padding_mask, seed, start, positions_are_starts, scale, alpha, drop, elements, out
):
    plan = decoded(words)
    first = _first_of(plan, start, x.shape[-2], positions)
    dropped = {"seed": seed, "drop": drop, "elements": elements}
    apply.add(plan, x, positions, first, scale, alpha, padding_mask, out, **dropped)


def _eager_add_grid_out(x, values, grid, padding_mask, seed, scale, drop, elements, out):
    dropped = {"seed": seed, "drop": drop, "elements": elements}
    grid_add.add(values, grid, x, scale, padding_mask, out, **dropped)


def _eager_row_dots(grad, words, positions, padding_mask, slopes, seed, start, positions_are_starts, drop, elements):
    plan = decoded(words)
    first = _first_of(plan, start, grad.shape[-2], positions)
    dropped = {"seed": seed, "drop": drop, "elements": elements}
    return apply.row_dots(plan, grad, positions, first, padding_mask, slopes, **dropped)


def _eager_embed(
    ids, weight, words, positions, padding_mask, alpha, seed, start, positions_are_starts, scale, padding_idx, sparse,
    drop, elements,
):  # fmt: skip
    plan = decoded(words)
    first, alpha = _first_of(plan, start, ids.shape[-1], positions), 1.0 if alpha is None else alpha
    dropped = {"seed": seed, "drop": drop, "elements": elements}
    return apply.embed(plan, ids, weight, positions, first, scale, alpha, padding_mask, **dropped)


def _eager_embed_backward(grad, ids, seed, num_embeddings, padding_idx, scale, drop, elements):
    dropped = {"seed": seed, "drop": drop, "elements": elements}
    return apply.embed_backward(grad, ids, num_embeddings, padding_idx, scale, **dropped)


# An operator's name -> what computes it where no kernel does.
EAGER: dict[str, Any] = {
    "table": _eager_table,
    "table_out": _eager_table_out,
    "encode": _eager_encode,
    "add": _eager_add,
    "add_out": _eager_add_out,
    "dropout": _eager_dropout,
    "add_dropout": _eager_add_dropout,
    "add_dropout_out": _eager_add_dropout_out,
    "add_grid_out": _eager_add_grid_out,
    "row_dots": _eager_row_dots,
    "embed": _eager_embed,
    "embed_backward": _eager_embed_backward,
    "plan_partner": partner,
    "plan_slopes": slopes,
    "draw_seed": lambda like: seed_tensor.draw(like.device),
}
_FAKES: dict[str, Any] = {
    "table": lambda plan, start, length, dim, dtype: plan.new_empty((length, dim), dtype=dtype),
    "table_out": lambda *_: None,
    "encode": lambda positions, plan, dim, dtype: positions.new_empty((*positions.shape, dim), dtype=dtype),
    "add": lambda x, *_: torch.empty_like(x),
    "add_out": lambda *_: None,
    "dropout": lambda x, *_: torch.empty_like(x),
    "add_dropout": lambda x, *_: torch.empty_like(x),
    "add_dropout_out": lambda *_: None,
    "add_grid_out": lambda *_: None,
    "row_dots": lambda grad, *_: grad.new_empty(grad.shape[:-1], dtype=torch.float64),
    "embed": lambda ids, weight, *_: weight.new_empty((*ids.shape, weight.shape[1])),
    "embed_backward": lambda grad, ids, seed, rows, *_: grad.new_empty((rows, grad.shape[-1])),
    "plan_partner": lambda plan: torch.empty_like(plan),
    "plan_slopes": lambda plan, dim: plan.new_empty((dim,), dtype=torch.float64),
    "draw_seed": lambda like: like.new_empty((), dtype=torch.int64),
}


def _encode_batched(info, in_dims, positions, plan, dim, dtype):
    return torch.ops.sinpe_ext.encode.default(positions.movedim(in_dims[0], 0).contiguous(), plan, dim, dtype), 0


def _add_batched(info, in_dims, x, plan, start, scale):
    return torch.ops.sinpe_ext.add.default(x.movedim(in_dims[0], 0), plan, start, scale), 0


def _one_by_one(name: str) -> Any:
    """One call for each sample: a mask counts the elements of a sample, as it does without vmap."""

    def rule(info: Any, in_dims: Any, *arguments: Any) -> Any:
        op = getattr(torch.ops.sinpe_ext, name).default
        results = [
            op(*(a if d is None else a.select(d, k) for a, d in zip(arguments, _flat(in_dims), strict=True)))
            for k in range(info.batch_size)
        ]
        return torch.stack(results), 0

    return rule


def _flat(in_dims: Any) -> list[int | None]:
    """One entry an argument: vmap gives a list argument a list of entries, all None here."""
    return [None if isinstance(d, (list, tuple)) else d for d in in_dims]


_BATCHED: dict[str, Any] = {
    "encode": _encode_batched,
    "add": _add_batched,
    **{name: _one_by_one(name) for name in ("dropout", "add_dropout", "row_dots", "embed", "embed_backward")},
}


def _register() -> torch.library.Library:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    tags = (torch.Tag.pt2_compliant_tag,)
    for schema in _SCHEMAS:
        library.define(schema, tags=tags)
    # `like` is a tensor of its own for each draw: two draws with equal arguments would be merged into one in a graph.
    library.define("draw_seed(Tensor like) -> Tensor", tags=(*tags, torch.Tag.nondeterministic_seeded))
    for name, function in EAGER.items():
        library.impl(name, function, "CompositeExplicitAutograd")
    for name, function in _FAKES.items():
        torch.library.register_fake(f"{NAMESPACE}::{name}", function, lib=library)
    for name, function in _BATCHED.items():
        torch.library.register_vmap(f"{NAMESPACE}::{name}", function, lib=library)
    return library


_library = registration.library(_register)

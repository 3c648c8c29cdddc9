"""transformers and fairseq: modules that look up the rows of tokens, grouped by how they compute positions.

The classes are copied from model to model under new names, so a family is recognized by its signature and attributes;
each replacement is then compared with the module's own output. Source: transformers 5.23 and 5.24 (which renames
past_key_values_length to cache_length), the modeling files of the models named below; fairseq 0.12 and its main branch,
modules/sinusoidal_positional_embedding.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import positions as _positions
from .. import torch_state
from ..encodings.catalogue import convention
from ..functional import encode, table
from .dropin import Candidate, DropIn, Left, has, number, parameters, tensor_of
from .measure import Probe

LONGEST = 2**22  # entries of a probe's output
SYNONYMS = {"cache_length": "past_key_values_length"}


class Rows(DropIn):
    """A table of rows 0, 1, 2, ..., in which the padding row may be zero."""

    _sinpe_zero_row: int | None = None
    _sinpe_synonyms = SYNONYMS

    def _sinpe_rows(self, name: str, like: Tensor) -> Tensor:
        rows = table(like.shape[0], self._sinpe_encoding, dtype=like.dtype, device=like.device)
        if self._sinpe_zero_row is not None and self._sinpe_zero_row < len(rows):
            rows[self._sinpe_zero_row] = 0
        return rows

    def _sinpe_at(self, positions: Tensor, beyond: Any = None) -> Tensor:
        """The rows at positions, read from the table if the bound `beyond` is known and within it; the values are the
        same as computed ones."""
        held = getattr(self, self._sinpe_tables[0]).detach()
        if isinstance(beyond, (int, torch.SymInt)) and beyond <= held.shape[0]:
            return held.index_select(0, positions.reshape(-1)).view(*positions.shape, held.shape[1])
        rows = encode(positions, self._sinpe_encoding, dtype=held.dtype)
        if self._sinpe_zero_row is None:
            return rows
        return rows.masked_fill((positions == self._sinpe_zero_row).unsqueeze(-1), 0.0)


class EmbeddingRows(Rows):
    """nn.Embedding with a frozen sinusoidal weight: Whisper's encoder, DistilBERT, XLM, FlauBERT."""

    weight: Tensor

    def forward(self, input: Tensor) -> Tensor:
        if (
            torch_state.should_check_values(input) and input.numel() and int(input.min()) < 0
        ):  # ids after the end of the table are supported, negative ones are not
            raise IndexError(f"input: expected ids of 0 or more, got {int(input.min())}; mask what is no token")
        first = self._sinpe_encoding.start
        rows = encode(input + first if first else input, self._sinpe_encoding, dtype=self.weight.dtype)
        if self._sinpe_zero_row is None:
            return rows
        return rows.masked_fill((input == self._sinpe_zero_row).unsqueeze(-1), 0.0)


class MarianRows(Rows):
    """Positions past, past + 1, ... for a given shape: Marian, Pegasus, Autoformer, Informer, time series, RoFormer."""

    weight: Tensor

    def create_weight(self) -> Tensor:
        return self._sinpe_rows("weight", self.weight)

    def forward(
        self,
        input_ids_shape: torch.Size,
        past_key_values_length: int | Tensor = 0,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        if position_ids is not None:
            return self._sinpe_at(position_ids)
        length = input_ids_shape[1]
        positions = torch.arange(length, device=self.weight.device) + past_key_values_length
        return self._sinpe_at(positions, length + past_key_values_length)


class PaddedRows(Rows):
    """fairseq's positions in an nn.Embedding; past_key_values_length is added to padding positions, too: FSMT."""

    weight: Tensor
    padding_idx: int

    def forward(self, input: Tensor, *, past_key_values_length: int | Tensor = 0) -> Tensor:
        positions, _ = _positions.from_padding_idx(input, self.padding_idx)
        beyond = self.padding_idx + 1 + input.shape[-1] + past_key_values_length
        return self._sinpe_at(positions + past_key_values_length, beyond)


class BufferRows(Rows):
    """Base of modules with a buffer `weights`."""

    weights: Tensor

    def get_embedding(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> Tensor:
        """The values with which `_init_weights` and `make_weights` fill the buffer."""
        return self._sinpe_rows("weights", torch.empty(num_embeddings, embedding_dim))

    def _sinpe_count(self, length: int, first: int | Tensor, like: Tensor) -> Tensor:
        """`length` rows at consecutive positions from `first`."""
        return self._sinpe_at(torch.arange(length, device=like.device) + first, length + first)


class TokenRows(BufferRows):
    """fairseq's positions, which count non-padding tokens from padding_idx + 1: Speech2Text, SpeechT5, TrOCR."""

    padding_idx: int

    def forward(self, input_ids: Tensor, past_key_values_length: int | Tensor = 0) -> Tensor:
        positions, _ = _positions.from_padding_idx(input_ids, self.padding_idx, past=past_key_values_length)
        return self._sinpe_at(positions, self.padding_idx + 1 + input_ids.shape[-1] + past_key_values_length)


class TokenOrEmbeddingRows(TokenRows):
    """The same for ids, and consecutive positions for inputs_embeds: M2M100, NLLB-MoE, SeamlessM4T."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values_length: int | Tensor = 0,
    ) -> Tensor:
        if input_ids is not None:
            return super().forward(input_ids, past_key_values_length)
        assert inputs_embeds is not None
        batch, length = inputs_embeds.shape[:-1]
        rows = self._sinpe_count(length, past_key_values_length + self.padding_idx + 1, inputs_embeds)
        return rows.expand(batch, length, -1).contiguous()


class GivenOrTokenRows(TokenOrEmbeddingRows):
    """The same, and explicit position_ids: KOSMOS-2."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values_length: int | Tensor = 0,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        if position_ids is None:
            return super().forward(input_ids, inputs_embeds, past_key_values_length)
        rows = self._sinpe_at(position_ids)
        inputs = input_ids if input_ids is not None else inputs_embeds
        assert inputs is not None
        batch, length = inputs.shape[:2]
        return rows.view(batch, length, -1)


class GivenRows(BufferRows):
    """Explicit position_ids plus an offset: XGLM."""

    offset: int

    def forward(self, position_ids: Tensor | None = None, past_key_values_length: int | Tensor = 0) -> Tensor:
        assert position_ids is not None
        return self._sinpe_at(position_ids + self.offset)


class FairseqRows(BufferRows):
    """fairseq's own class and copies of it: non-padding tokens counted from padding_idx + 1, or the row of one decoding
    step.

    Arguments that only some copies support (positions, an ONNX trace, inputs that are not ids) are passed to the
    module's own forward.
    """

    padding_idx: int
    onnx_trace: bool
    _sinpe_any_signature = True

    def forward(
        self,
        input: Tensor,
        incremental_state: Any = None,
        timestep: Tensor | None = None,
        positions: Any = None,
        **others: Any,
    ) -> Tensor:
        ids = not (input.is_floating_point() or input.is_complex() or input.dtype == torch.bool)
        if positions is not None or others or not ids or input.dim() != 2 or getattr(self, "onnx_trace", False):
            options = others if positions is None else {"positions": positions, **others}
            original: Any = super(DropIn, self)
            rows: Tensor = original.forward(input, incremental_state, timestep, **options)
            return rows
        batch, length = input.shape
        if incremental_state is None:
            absolute, _ = _positions.from_padding_idx(input, self.padding_idx)
            return self._sinpe_rows_at(absolute, self.padding_idx + 1 + length)
        if timestep is None:
            step = torch.full((1, 1), self.padding_idx + length, device=input.device)
            return self._sinpe_rows_at(step, self.padding_idx + length + 1).expand(batch, 1, -1)
        step = (timestep.reshape(-1)[:1] + 1 + self.padding_idx).long().reshape(1, 1).to(input.device)
        return self._sinpe_rows_at(step).expand(batch, 1, -1)

    def _sinpe_rows_at(self, positions: Tensor, beyond: Any = None) -> Tensor:
        """The rows at positions. In older releases the table is not a buffer, and each call converts it to the dtype of
        `_float_tensor`."""
        like = getattr(self, "_float_tensor", self.weights)
        held = self.weights
        if like.dtype == held.dtype and positions.device == held.device:
            return self._sinpe_at(positions, beyond)
        rows = encode(positions, self._sinpe_encoding, dtype=like.dtype)
        if self._sinpe_zero_row is None:
            return rows
        return rows.masked_fill((positions == self._sinpe_zero_row).unsqueeze(-1), 0.0)


class CodebookRows(BufferRows):
    """Positions past, past + 1, ... for ids (batch, codebooks, sequence), one row per step: MusicGen."""

    def forward(self, input_ids: Tensor, past_key_values_length: int | Tensor = 0) -> Tensor:
        return self._sinpe_count(input_ids.shape[-1], past_key_values_length, input_ids)


class StepRows(BufferRows):
    """The same for embeddings (batch, sequence, channels): MusicGen Melody."""

    def forward(self, inputs_embeds: Tensor, past_key_values_length: int | Tensor = 0) -> Tensor:
        return self._sinpe_count(inputs_embeds.shape[1], past_key_values_length, inputs_embeds)


BUFFERED: dict[tuple[str, ...], type[BufferRows]] = {
    ("input_ids", "inputs_embeds", "past_key_values_length"): TokenOrEmbeddingRows,
    ("input_ids", "inputs_embeds", "past_key_values_length", "position_ids"): GivenOrTokenRows,
    ("position_ids", "past_key_values_length"): GivenRows,
    ("inputs_embeds", "past_key_values_length"): StepRows,
}


def rows_of(module: nn.Module) -> list[Candidate] | Left | None:
    """Candidates for a module that looks up rows; None for any other."""
    names = tuple(SYNONYMS.get(name, name) for name in parameters(module))
    if isinstance(module, nn.Embedding):
        if names[:2] == ("input_ids_shape", "past_key_values_length") and names[2:] in ((), ("position_ids",)):
            return _marian(module)
        if names == ("input", "past_key_values_length") and module.padding_idx is not None:
            return _fsmt(module)
        return None
    weights = tensor_of(module, "weights")
    if weights is not None and names[:3] == ("input", "incremental_state", "timestep"):
        return _fairseq(module, weights)
    if weights is None or weights.dim() != 2 or not weights.is_floating_point():
        return None
    mixin = BUFFERED.get(names)
    if names == ("input_ids", "past_key_values_length"):
        mixin = TokenRows if has(module, "padding_idx") else CodebookRows
    if mixin is None:
        return None
    padding = getattr(module, "padding_idx", None)
    if issubclass(mixin, TokenRows) and not number(padding):
        return Left("it counts tokens that are no padding, but its padding_idx is None")
    options = {"_sinpe_zero_row": padding} if padding is not None else {}
    rows, dim = weights.shape
    probes = _probes(mixin, module, rows, dim, weights)
    form = "rows of tokens" if issubclass(mixin, TokenRows) else "rows of positions"
    return [
        Candidate(mixin, convention(name, dim), ("weights",), probes, options, form) for name in ("t2t", "musicgen")
    ]


def _marian(module: nn.Embedding) -> list[Candidate]:
    """Candidates for Marian's class and its copies."""
    # from_pretrained may set requires_grad=True, but the forward runs without gradients anyway.
    rows, dim = module.weight.shape
    length = max(1, min(rows - 1, LONGEST // dim))
    probes = [
        Probe((torch.Size((2, 1)), rows - 1), position=rows),
        Probe((torch.Size((2, length)),), position=length),
    ]
    if "position_ids" in parameters(module):
        ids = torch.arange(0, length, device=module.weight.device).flip(0)
        probes.append(Probe((torch.Size((2, length)),), {"position_ids": ids}, length))
    return [Candidate(MarianRows, convention("paper_concat", dim), ("weight",), probes, {}, "rows of positions")]


def _fsmt(module: Any) -> list[Candidate]:
    """Candidates for FSMT's class. The swap freezes the weight: the forward would pass gradients on, although the
    documentation says that the weight is not trained."""
    rows, dim = module.weight.shape
    probes = _probes(TokenRows, module, rows, dim, module.weight)
    options = {"_sinpe_zero_row": module.padding_idx, "_sinpe_freeze": module.weight.requires_grad}
    return [Candidate(PaddedRows, convention("t2t", dim), ("weight",), probes, options, "rows of tokens")]


def _fairseq(module: Any, weights: Tensor) -> list[Candidate] | Left | None:
    """Candidates for fairseq's own class and its copies."""
    padding: Any = getattr(module, "padding_idx", None)
    if weights.dim() != 2 or not weights.is_floating_point() or not number(padding):
        return None
    if weights.is_meta or weights.requires_grad:
        return Left("its weights are on the meta device, or trained: load them first, and freeze them")
    rows, dim = weights.shape
    zero = padding if padding < rows and not bool(weights[padding].any()) else None
    like = getattr(module, "_float_tensor", weights)  # older releases return rows with its device and dtype
    probes = _probes(TokenRows, module, rows, dim, like)[::2]  # without past_key_values_length
    ids = torch.arange(padding + 1, padding + 13, device=like.device).reshape(2, 6)
    probes += [Probe((ids[:, :length], {}), {}, padding + length) for length in (1, 6)]
    probes += [
        Probe((ids[:, :2], {}), {"timestep": torch.tensor([step], device=like.device)}, padding + 1 + step)
        for step in (0, 3, max(0, min(rows, 999) - padding - 2))
    ]
    longer = torch.arange(padding + 1, padding + 4 + rows, device=like.device)[None]
    if rows * dim <= LONGEST:
        probes.append(Probe((longer,), {}, padding + 4 + rows))  # longer than the table, which it then extends
    options = {"_sinpe_zero_row": zero}
    return [Candidate(FairseqRows, convention("t2t", dim), ("weights",), probes, options, "rows of tokens")]


def _probes(mixin: type[BufferRows], module: nn.Module, rows: int, dim: int, weights: Tensor) -> list[Probe]:
    """Short calls with padding, past and embeddings, and one as long as the table."""
    device, first = weights.device, 1
    generator = torch.Generator().manual_seed(0)
    if issubclass(mixin, TokenRows):
        padding: Any = module.padding_idx
        first = padding + 1
        ids = torch.randint(first, first + 7, (3, 9), generator=generator)
        ids[0, 6:], ids[1, :4], ids[2, 4] = padding, padding, padding
    else:
        ids = torch.arange(27).reshape(3, 9)
    ids = ids.to(device)
    past = {name: 5 for name in parameters(module) if SYNONYMS.get(name, name) == "past_key_values_length"}
    length = max(1, min(rows - first - 1, LONGEST // dim))
    if mixin is CodebookRows:
        longest = torch.zeros(1, 2, length, dtype=torch.long, device=device)
        return [Probe((longest,), {}, length), Probe((ids.reshape(1, 3, 9),), past, 14)]
    if mixin is StepRows:
        longest = torch.zeros(1, 1, 1, device=device).expand(1, length, dim)
        return [Probe((longest,), {}, length), Probe((longest[:, :3],), past, 8)]
    longest = torch.arange(first, first + length, device=device)[None]
    if mixin is GivenRows:
        longest = longest.clamp_max(max(rows - 1 - int(getattr(module, "offset", 0)), 0))
        return [Probe((ids.clamp_max(int(longest.max())),), {}, 32), Probe((longest,), {}, rows)]
    probes = [Probe((ids,), {}, first + 9), Probe((ids,), past, first + 14), Probe((longest,), {}, first + length)]
    if issubclass(mixin, TokenOrEmbeddingRows):
        embeds = torch.zeros(1, 1, 1, device=device).expand(2, 7, dim)
        probes += [Probe((), {"inputs_embeds": embeds, **extra}, first + 12) for extra in ({}, past)]
    if mixin is GivenOrTokenRows:
        position_ids = torch.randint(0, min(rows, 12), (3, 9), generator=generator).to(device)
        probes.append(Probe((ids,), {"position_ids": position_ids}, 12))
    return probes

"""Modules that hold no table and compute their rows in every call, of known classes: timesteps, x-transformers,
positional-encodings.

A class is known by the names of its attributes and arguments; its encoding follows from these and from the frequencies
that it holds. Sources, 2026: DiT, models.py; denoising-diffusion-pytorch, denoising_diffusion_pytorch.py;
x-transformers 2.31, x_transformers.py; positional-encodings 6.0, torch_encodings.py; torch_geometric 2.8, encoding.py.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..encodings.catalogue import convention
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..functional import encode, table
from .dropin import (
    SINUSOIDAL,
    VIEWS,
    Candidate,
    DropIn,
    Left,
    depends_on_more,
    has,
    has_changed,
    isolated_copy,
    number,
    parameters,
    settings,
)
from .measure import Probe, operators_of

HELD = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
POSITIONS = (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.float16)
# The operators that rows of positions consist of. Others, such as a clamp, would have an effect for some positions.
OPERATORS = VIEWS | {"sin", "cos", "mul", "div", "cat", "stack", "exp", "log", "pow", "neg", "arange", "reciprocal"}
CLOSE = 2.0**-20  # relative error of float32 frequencies
DIGITS = 6  # significant digits of a base that is computed from a float32 frequency
CONVENTIONS = ("t2t", "ddpm", "adm", "paper_concat")  # of timesteps, in the order in which they are tried


class ComputedRows(DropIn):
    """Base of the drop-ins for modules without a table.

    Attributes:
        _sinpe_tables: names of the tensors that hold frequencies; not read, but maintained for checkpoints and other
            code.
        _sinpe_settings: the module's simple attributes when it was verified. If one has changed since, or a call is of
            another kind than those that were verified, the module's own code is called.
        _sinpe_dtypes: dtypes of positions, each with that of the rows.
    """

    _sinpe_any_signature = True
    _sinpe_settings: tuple[tuple[str, Any], ...] = ()
    _sinpe_dtypes: Mapping[torch.dtype, torch.dtype] = MappingProxyType({})

    def _sinpe_rows(self, name: str, like: Tensor) -> Tensor:
        return frequencies(self._sinpe_encoding, like)

    def _sinpe_changed(self) -> bool:
        return has_changed(self, self._sinpe_settings)

    def _sinpe_at(self, positions: Any) -> Tensor | None:
        """The rows at positions (n,); None for another kind of positions."""
        dtype = self._sinpe_dtypes.get(positions.dtype) if type(positions) is Tensor and positions.dim() == 1 else None
        is_rounded = any(getattr(self, name).dtype != torch.float32 for name in self._sinpe_tables)  # by .half()
        if dtype is None or is_rounded or self._sinpe_changed():
            return None
        # 16 bits at their stored value; float64 is rounded where the module's own rows are float32.
        is_wide = positions.dtype.itemsize == 2 or (positions.dtype == torch.float64 and dtype == torch.float32)
        return encode(positions.float() if is_wide else positions, self._sinpe_encoding, dtype=dtype)


class PositionRows(ComputedRows):
    """The forward itself returns the rows: lucidrains' SinusoidalPosEmb and its copies."""

    _sinpe_argument: str = "x"

    def forward(self, *args: Any, **named: Any) -> Any:
        inputs = args if not named else (*args, *(named[key] for key in named if key == self._sinpe_argument))
        rows = self._sinpe_at(inputs[0]) if len(inputs) == 1 == len(args) + len(named) else None
        return super(DropIn, self).forward(*args, **named) if rows is None else rows  # type: ignore[misc]


class MethodRows(ComputedRows):
    """The static method `timestep_embedding` of DiT's TimestepEmbedder and its copies returns the rows, in float32."""

    def _sinpe_method(self, t: Any, dim: Any, max_period: Any = 10000) -> Any:
        encoding, rows = self._sinpe_encoding, None
        if dim == encoding.dim and max_period == encoding.base:
            rows = self._sinpe_at(t)
        return super(DropIn, self).timestep_embedding(t, dim, max_period) if rows is None else rows  # type: ignore[misc]


class ScaledRows(ComputedRows):
    """scale * rows for the length of x or at given positions: x-transformers' ScaledSinusoidalEmbedding."""

    _sinpe_scale: str = "scale"

    def forward(
        self, x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: Any = 0
    ) -> Tensor:
        options = {} if type(offset) is int and offset == 0 else {"offset": offset}
        original: Any = super(DropIn, self)
        held = getattr(self, self._sinpe_tables[0]).dtype
        plain = pos is None or (pos.dim() == 1 and pos.dtype in (torch.int64, torch.int32, torch.float32))
        if seq_start_pos is not None or type(offset) is not int or not plain or self._sinpe_changed():
            rows: Tensor = original.forward(x, pos, seq_start_pos, **options)
            return rows
        if pos is None:
            rows = table(x.shape[1], self._sinpe_encoding, start=offset, dtype=held, device=x.device)
        else:
            wide = held if not pos.is_floating_point() else torch.promote_types(held, pos.dtype)
            rows = encode(pos, self._sinpe_encoding, dtype=wide)
        scaled: Tensor = rows * getattr(self, self._sinpe_scale)
        return scaled


class ShapedRows(ComputedRows):
    """Rows in the shape of x, (batch, ..., channels), with one to three axes: positional-encodings."""

    def forward(self, *args: Any, **named: Any) -> Any:
        x = args[0] if len(args) == 1 and not named else next(iter(named.values())) if len(named) == 1 else None
        encoding = self._sinpe_encoding
        axes = encoding.ndim if isinstance(encoding, GridEncoding) else 1
        if (
            not isinstance(x, Tensor)
            or x.dim() != axes + 2
            or x.shape[-1] != encoding.dim
            or x.dtype not in HELD
            or self._sinpe_changed()
        ):
            return super(DropIn, self).forward(*args, **named)  # type: ignore[misc]
        lengths: Any = tuple(x.shape[1:-1])
        rows = table(lengths if axes > 1 else lengths[0], encoding, dtype=x.dtype, device=x.device)
        return rows.unsqueeze(0).repeat(x.shape[0], *([1] * (axes + 1)))


def frequencies(encoding: Encoding | GridEncoding, like: Tensor) -> Tensor:
    """The angular frequencies of an encoding, or of a grid's first axis, with the shape, dtype and device of `like`."""
    axis = encoding.axes[0] if isinstance(encoding, GridEncoding) else encoding
    values = torch.tensor(axis.frequencies_radians(), dtype=torch.float64)
    return values.to(device=like.device, dtype=like.dtype).reshape(like.shape)


def computed_of(module: Any) -> list[Candidate] | Left | None:
    """Candidates for a module of one of the known classes; None for any other."""
    names, kind = parameters(module), type(module)
    if isinstance(inspect.getattr_static(kind, "timestep_embedding", None), staticmethod):
        return _method(module)
    if list(module.children()) or not names:
        return None
    held = [key for key, value in module._buffers.items() if value is not None and value.dim() == 1]
    learned = [key for key, value in module._parameters.items() if value is not None]
    if not held and not learned:
        is_named = any(SINUSOIDAL.search(made.__name__) for made in kind.__mro__)
        is_known = is_named and len(names) == 1 and number(getattr(module, "dim", None))
        return _at_positions(module, module.dim, getattr(module, "theta", 10000), ()) if is_known else None
    if len(held) != 1 or module._buffers[held[0]].is_meta:  # type: ignore[union-attr]
        return None
    if names[:2] == ("x", "pos") and set(names[2:]) <= {"seq_start_pos", "offset"}:
        is_scale = len(learned) == 1 and module._parameters[learned[0]].numel() == 1  # type: ignore[union-attr]
        return _scaled(module, held[0], learned[0]) if is_scale else None
    if len(names) != 1 or learned:
        return None
    if has(module, "out_channels", "base_freq", "granularity") and module.granularity == 1:  # torch_geometric
        return _at_positions(module, module.out_channels, 1 / module.base_freq, (held[0],))
    return _shaped(module, held[0]) if number(getattr(module, "channels", None)) else None


def _at_positions(module: Any, dim: Any, base: Any, tables: tuple[str, ...]) -> list[Candidate] | Left:
    """Candidates for a module whose forward returns rows at positions: lucidrains' SinusoidalPosEmb."""
    more = depends_on_more(module, tables)
    if more:
        return Left(more)
    device = next((held.device for held in module.buffers()), torch.device("cpu"))
    others = set(operators_of(isolated_copy(module), Probe((torch.arange(3.0, device=device),)))) - OPERATORS
    if others:
        return Left(f"its forward calls {', '.join(sorted(others))}, which is more than sines and cosines")
    dtypes = _dtypes(lambda t: isolated_copy(module).forward(t.to(device)))
    options = {
        "_sinpe_argument": parameters(module)[0],
        "_sinpe_settings": settings(module),
        "_sinpe_dtypes": dtypes,
    }
    candidates = []
    for encoding in _of_timesteps(dim, base):
        probes = [Probe((t.to(device),), {}, far, 1.0, t.dtype == torch.float32) for t, far in _steps(*dtypes)]
        probes += [Probe((probes[0].args[0].clone().requires_grad_(),), {}, 1000.0, 1000.0, dropout=0.0)]
        candidates.append(Candidate(PositionRows, encoding, tables, probes, options, "rows of timesteps", True))
    return candidates


def _method(module: Any) -> list[Candidate] | Left | None:
    """Candidates for DiT's TimestepEmbedder: timestep_embedding(t, dim, max_period=10000)."""
    signature = inspect.signature(type(module).timestep_embedding)
    dim: Any = getattr(module, "frequency_embedding_size", None)
    if tuple(signature.parameters) != ("t", "dim", "max_period") or not number(dim):
        return None
    base = signature.parameters["max_period"].default
    dtypes, candidates = _dtypes(lambda t: module.timestep_embedding(t, dim)), []
    options = {"_sinpe_replaces": "timestep_embedding", "_sinpe_dtypes": dtypes}
    for encoding in _of_timesteps(dim, 10000 if base is inspect.Parameter.empty else base):
        probes = [
            Probe((t, dim), {}, far, 1.0, t.dtype == torch.float32, method="timestep_embedding")
            for t, far in _steps(*dtypes)
        ]
        form = "rows of timesteps in `timestep_embedding`"
        candidates.append(Candidate(MethodRows, encoding, (), probes, options, form))
    return candidates


def _dtypes(rows_of: Callable[[Tensor], Tensor]) -> dict[torch.dtype, torch.dtype]:
    """The dtypes of positions whose rows are float32 or wider, each with that of the rows; rows of 16 bits remain the
    module's own."""
    dtypes = {}
    for dtype in POSITIONS:
        with contextlib.suppress(Exception):  # a dtype that the module or the device lacks
            rows = rows_of(torch.tensor([0, 1, 2]).to(dtype))
            if rows.dtype in (torch.float32, torch.float64):
                dtypes[dtype] = rows.dtype
    return dtypes


def _of_timesteps(dim: int, base: Any) -> Iterator[Encoding]:
    """The encodings that a module for timesteps may compute."""
    for name in CONVENTIONS:
        try:
            encoding: Any = convention(name, dim, base=base)
        except (TypeError, ValueError):  # a dim that the convention does not support
            continue
        yield encoding


def _steps(*dtypes: torch.dtype) -> Iterator[tuple[Tensor, float]]:
    """Timesteps and the largest of them: the usual range, then fractions, in some dtypes."""
    fractions = torch.tensor([0.0, 0.5, 1.0, 1.75, 3.0])
    yield torch.arange(1001.0), 1000.0
    for dtype in dtypes:
        yield fractions.to(dtype), 3.0
    yield fractions[:1], 1.0


def _scaled(module: Any, key: str, scale: str) -> list[Candidate] | Left:
    """Candidates for x-transformers' module; `key` and `scale` are its buffer and its parameter."""
    held = module._buffers[key]
    dim, device = 2 * held.numel(), held.device
    more = depends_on_more(module, (key, scale))
    if more:
        return Left(more)
    encoding: Any = convention("paper_concat", dim, base=_base_of(held))
    if not _holds(encoding, held):
        return Left(f"its buffer `{key}` holds no frequencies of a convention that swap knows")
    slack = max(1.0, abs(float(module._parameters[scale].detach())))
    lengths = (1, 7, 2048)
    probes = [Probe((torch.zeros(2, n, dim, device=device),), {}, float(n), slack) for n in lengths]
    positions = torch.tensor([5, 0, 999, 31], device=device)
    probes += [Probe((probes[0].args[0],), {"pos": pos}, 1000.0, slack) for pos in (positions, positions + 0.25)]
    if "offset" in parameters(module):
        probes += [Probe((probes[1].args[0],), {"offset": 9}, 16.0, slack)]
    probes += [Probe(probes[1].args, {}, 7.0, slack, dropout=0.0)]
    options = {"_sinpe_scale": scale, "_sinpe_settings": settings(module)}
    return [Candidate(ScaledRows, encoding, (key,), probes, options, f"{scale} * rows for the length of x")]


def _shaped(module: Any, key: str) -> list[Candidate] | Left:
    """Candidates for the modules of positional-encodings; `key` is the buffer of frequencies."""
    held = module._buffers[key]
    dim = int(getattr(module, "org_channels", module.channels))
    generator, candidates = torch.Generator().manual_seed(0), []
    for axes, lengths in ((1, (7,)), (2, (9, 14)), (3, (7, 8, 9))):
        encoding: Any = convention(f"multidim{axes}d", dim, base=_base_of(held))
        if not _holds(encoding, held):
            continue
        shapes = [(3, *lengths, dim), (1, *([1] * axes), dim), (2, *(n + 5 for n in lengths), dim)]
        probes = [
            Probe((torch.randn(shape, generator=generator).to(held.device, dtype),), {}, float(max(shape)), 1.0,
                  dtype == held.dtype)
            for dtype in HELD
            for shape in shapes
        ]  # fmt: skip
        options = {"_sinpe_settings": tuple((name, value) for name, value in settings(module) if number(value))}
        form = "rows for the length of x" if axes == 1 else f"rows for the {axes} axes of x"
        candidates.append(Candidate(ShapedRows, encoding, (key,), probes, options, form))
    return candidates or Left(f"its buffer `{key}` holds no frequencies of a convention that swap knows")


def _base_of(held: Tensor) -> float:
    """The base of frequencies base^(-i / n), i = 0 to n - 1, rounded to the digits that float32 gives."""
    values = held.detach().double()
    if len(values) < 2 or not 0 < float(values[1]) < 1:
        return 10000.0
    return float(f"{float(values[1]) ** -len(values):.{DIGITS}g}")


def _holds(encoding: Any, held: Tensor) -> bool:
    """Whether a tensor holds the angular frequencies of an encoding."""
    axis = encoding.axes[0] if isinstance(encoding, GridEncoding) else encoding
    values = axis.frequencies_radians()
    if len(values) != held.numel() or not held.is_floating_point() or held.dtype.itemsize < 4:
        return False
    expected = torch.tensor(values, dtype=torch.float64)
    return bool(((held.detach().cpu().double().reshape(-1) - expected).abs() <= CLOSE * expected.abs()).all())

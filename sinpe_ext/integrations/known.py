"""Modules of known libraries that hold no table and compute their rows in every call.

A module is known by its attributes, tensors and arguments, so copies under other names count, too. Its outputs show
which of a few encodings it computes.

Sources, 2026: diffusers 0.42, models/embeddings.py; denoising-diffusion-pytorch 2.2, denoising_diffusion_pytorch.py;
torch_geometric 2.8, nn/encoding.py; x-transformers 2.31, x_transformers.py; positional-encodings 6.0,
torch_encodings.py.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..encodings.catalogue import convention
from ..encodings.grid import GridEncoding
from ..functional import encode, table
from .replace import Call, Replacement, depends_on_more, isolated_copy, only_argument
from .tables import SINUSOIDAL, name_of

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
Encodings = Iterator[tuple[str, Any, dict[str, Any]]]


@dataclass(frozen=True)
class Known:
    """A class of modules whose rows this library computes.

    Attributes:
        name: its name, and its library.
        needs: its attributes, all of its tensors among them; those of one dimension hold frequencies.
        encoding: module -> (convention, dim, fields) of what it may compute.
        forward: (module, *args, **kwargs) -> output, or None if the module's own forward has to handle the call.
        calls: (module, encoding) -> calls that verify it.
        form: what it returns, as a short text.
        arguments: of its forward; the first two are needed. (): one argument of any name.
        caches: names of tensors that its calls set.
    """

    name: str
    needs: tuple[str, ...]
    encoding: Callable[[Any], Encodings]
    forward: Callable[..., Tensor | None]
    calls: Callable[[Any, Any], list[Call]]
    form: str
    arguments: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()


# --------------------------------------------------------------------------------------------------- rows of timesteps


def rows_of_timesteps(module: Any, *args: Any, **kwargs: Any) -> Tensor | None:
    """The rows at positions (n,)."""
    positions = only_argument(module, args, kwargs)
    dtype = module._sinpe_dtypes.get(positions.dtype) if positions is not None and positions.dim() == 1 else None
    if dtype is None or any(getattr(module, name).dtype != torch.float32 for name in module._sinpe_tables):
        return None
    assert positions is not None
    # 16 bits at their stored value; float64 is rounded where the module's own rows are float32.
    is_rounded = positions.dtype.itemsize == 2 or (positions.dtype == torch.float64 and dtype == torch.float32)
    return encode(positions.float() if is_rounded else positions, module._sinpe_encoding, dtype=dtype)


def _dtypes(module: Any) -> dict[torch.dtype, torch.dtype]:
    """The dtypes of positions whose rows are float32 or wider, each with that of the rows; rows of 16 bits remain the
    module's own."""
    dtypes = {}
    for dtype in (*DTYPES, torch.int64):
        with contextlib.suppress(Exception):  # a dtype that the module lacks
            rows = isolated_copy(module).forward(torch.zeros(3, dtype=dtype, device=_device(module)))
            if rows.dtype in (torch.float32, torch.float64):
                dtypes[dtype] = rows.dtype
    return dtypes


def _calls_with_timesteps(module: Any, encoding: Any) -> list[Call]:
    """The usual range and far beyond it, and fractions in every dtype."""
    most = max(1.0, abs(float(encoding.position_scale)))  # models with a scale have timesteps from 0 to 1
    steps = torch.arange(1001.0, device=_device(module)) / most
    fractions = torch.tensor([0.0, 0.5, 1.0, 1.75, 3.0], device=_device(module)) / most
    calls = [Call((steps - first / most,), position=first / most) for first in (0.0, 6000.0, -9000.0)]
    calls[0] = Call((steps,), position=1000 / most)
    # 16 bits round them up, too.
    calls += [Call((fractions.to(t),), position=4 / most, reported=t == torch.float32) for t in _dtypes(module)]
    return [*calls, Call((fractions[:1],)), Call((fractions,), position=4 / most, training=True)]


def _timesteps(module: Any) -> Encodings:
    fields = {"shift": module.downscale_freq_shift, "position_scale": getattr(module, "scale", 1)}
    yield "adm" if module.flip_sin_to_cos else "ddpm", module.num_channels, fields


def _sinusoidal_pos_emb(module: Any) -> Encodings:
    for name in ("t2t", "adm", "paper_concat"):
        yield name, module.dim, {"base": getattr(module, "theta", 10000)}


def _torch_geometric(module: Any) -> Encodings:
    for name in ("t2t", "paper_concat"):
        yield name, module.out_channels, {"base": 1 / module.base_freq, "position_scale": 1 / module.granularity}


# ------------------------------------------------------------------------------------- rows for the length or shape of x


def scaled_rows(
    module: Any, x: Tensor, pos: Tensor | None = None, seq_start_pos: Any = None, offset: Any = 0
) -> Tensor | None:
    """scale * rows for the length of x, or at positions (n,)."""
    encoding, dtype = module._sinpe_encoding, module.inv_freq.dtype
    if seq_start_pos is not None or type(offset) is not int:
        return None
    if pos is None:
        return table(x.shape[1], encoding, start=offset, dtype=dtype, device=x.device) * module.scale
    if pos.dim() != 1 or pos.dtype not in (torch.int64, torch.int32, torch.float32):
        return None
    return encode(pos, encoding, dtype=torch.promote_types(dtype, pos.dtype)) * module.scale


def _calls_with_lengths(module: Any, encoding: Any) -> list[Call]:
    x = torch.zeros(2, 2048, encoding.dim, device=_device(module))
    pos = torch.tensor([5, 0, 999, 31], device=x.device)
    calls = [Call((x[:, :length],), position=length) for length in (1, 7, 2048)]
    calls += [Call((x[:, :1],), {"pos": each}, position=1000) for each in (pos, pos + 0.25)]
    calls += [Call((x[:, :7],), {"offset": 9}, position=16)] if "offset" in arguments_of(module) else []
    return [*calls, Call((x[:, :7],), position=7, training=True)]


def _scaled_sinusoidal_embedding(module: Any) -> Encodings:
    yield "paper_concat", 2 * module.inv_freq.numel(), {"base": _base_of(module.inv_freq)}


def shaped_rows(module: Any, *args: Any, **kwargs: Any) -> Tensor | None:
    """Rows in the shape of x, (batch, ..., channels), with one to three axes."""
    x, encoding = only_argument(module, args, kwargs), module._sinpe_encoding
    axes = encoding.ndim if isinstance(encoding, GridEncoding) else 1
    if x is None or x.dim() != axes + 2 or x.shape[-1] != encoding.dim or x.dtype not in DTYPES:
        return None
    shape: Any = tuple(x.shape[1:-1]) if axes > 1 else x.shape[1]
    rows = table(shape, encoding, dtype=x.dtype, device=x.device)
    return rows.unsqueeze(0).repeat(x.shape[0], *([1] * (axes + 1)))


def _calls_with_shapes(module: Any, encoding: Any) -> list[Call]:
    axes = encoding.ndim if isinstance(encoding, GridEncoding) else 1
    lengths = (9, 14, 8)[:axes]
    x = torch.ones(3, *lengths, encoding.dim, device=_device(module))
    calls = [Call((x.to(dtype),), position=14, reported=dtype == module.inv_freq.dtype) for dtype in DTYPES]
    one = x[(slice(2), *[slice(1)] * axes)]
    return [*calls, Call((one,), position=1), Call((x,), position=14, training=True)]


def _positional_encodings(module: Any) -> Encodings:
    for axes in (1, 2, 3):
        dim = getattr(module, "org_channels", module.channels)
        yield f"multidim{axes}d", dim, {"base": _base_of(module.inv_freq)}


def _base_of(frequencies: Tensor) -> float:
    """The base of frequencies base^(-i / n), i = 0 to n - 1, to the six digits that float32 gives."""
    values = frequencies.detach().double()
    is_base = len(values) > 1 and 0 < float(values[1]) < 1
    return float(f"{float(values[1]) ** -len(values):.6g}") if is_base else 10000.0


# --------------------------------------------------------------------------------------------------- the known classes

KNOWN = (
    Known(
        "Timesteps (diffusers)",
        needs=("num_channels", "flip_sin_to_cos", "downscale_freq_shift"),
        encoding=_timesteps,
        forward=rows_of_timesteps,
        calls=_calls_with_timesteps,
        form="rows of timesteps",
    ),
    Known(
        "PositionalEncoding (torch_geometric)",
        needs=("out_channels", "base_freq", "granularity", "frequency"),
        encoding=_torch_geometric,
        forward=rows_of_timesteps,
        calls=_calls_with_timesteps,
        form="rows of timesteps",
    ),
    Known(
        "SinusoidalPosEmb (denoising-diffusion-pytorch) and its copies",
        needs=("dim",),
        encoding=_sinusoidal_pos_emb,
        forward=rows_of_timesteps,
        calls=_calls_with_timesteps,
        form="rows of timesteps",
    ),
    Known(
        "ScaledSinusoidalEmbedding (x-transformers)",
        needs=("inv_freq", "scale"),
        arguments=("x", "pos", "seq_start_pos", "offset"),
        encoding=_scaled_sinusoidal_embedding,
        forward=scaled_rows,
        calls=_calls_with_lengths,
        form="scale * rows for the length of x",
    ),
    Known(
        "PositionalEncoding1D, 2D and 3D (positional-encodings)",
        needs=("channels", "inv_freq"),
        encoding=_positional_encodings,
        forward=shaped_rows,
        calls=_calls_with_shapes,
        form="rows for the shape of x",
        caches=("cached_penc",),
    ),
)


def known_of(module: nn.Module) -> list[Replacement] | str | None:
    """The replacements of a module of a known class, or why it has none; None for any other module."""
    arguments = arguments_of(module)
    known = next((known for known in KNOWN if _is(module, arguments, known)), None)
    if known is None:
        return None
    learned, tables = list(module.parameters()), tuple(name for name in known.needs if name in module._buffers)
    if any(tensor.is_meta for tensor in (*learned, *module.buffers())):
        return "its tensors are on the meta device: load the weights first"
    reason = depends_on_more(module, (*known.needs, *known.caches))
    if reason:
        return reason
    options = {"_sinpe_argument": arguments[0]}
    options |= {"_sinpe_dtypes": _dtypes(module)} if known.forward is rows_of_timesteps else {}
    replacements = []
    for name, dim, fields in known.encoding(module):
        try:
            encoding: Any = convention(name, dim, **fields)
        except (TypeError, ValueError) as problem:  # a dim that the convention, and its library, do not support
            reason = str(problem)
            continue
        replacements.append(
            Replacement(
                form=known.form,
                encoding=encoding,
                convention=name_of(encoding, name),
                compute=known.forward,
                calls=known.calls(module, encoding),
                tables=tables,
                options=options,
                error=max([1.0, *(float(factor.abs()) for factor in learned)]),
                caches=known.caches,
            )
        )
    return replacements or reason


def _is(module: nn.Module, arguments: tuple[str, ...], known: Known) -> bool:
    """Whether a module has the attributes, tensors and arguments of a known class."""
    held = {**module._parameters, **module._buffers}
    tensors = {name for name, tensor in held.items() if tensor is not None}
    # `dim` alone is too common.
    is_named = len(known.needs) > 1 or any(SINUSOIDAL.search(made.__name__) for made in type(module).__mro__)
    return (
        is_named
        and all(hasattr(module, name) for name in known.needs)
        and tensors.issubset({*known.needs, *known.caches})
        and not list(module.children())
        and (arguments[:2] == known.arguments[:2] if known.arguments else len(arguments) == 1)
        and set(arguments).issubset(known.arguments or arguments)
    )


def arguments_of(module: nn.Module) -> tuple[str, ...]:
    """The names of the arguments of a module's forward."""
    try:
        return tuple(inspect.signature(type(module).forward).parameters)[1:]
    except (TypeError, ValueError):
        return ()


def _device(module: nn.Module) -> torch.device:
    """The device of a module's tensors; the CPU if it has none."""
    return next((held.device for held in module.buffers()), torch.device("cpu"))

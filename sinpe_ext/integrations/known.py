"""Modules of known libraries that hold no table and compute their rows in every call.

A module is known by its attributes, tensors and arguments, so copies under other names count, too. Which of a few
encodings it computes, its outputs show.

Sources, 2026: diffusers 0.42, models/embeddings.py; denoising-diffusion-pytorch 2.2, denoising_diffusion_pytorch.py;
torch_geometric 2.8, nn/encoding.py; x-transformers 2.31, x_transformers.py.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..encodings.catalogue import convention
from ..functional import encode, table
from .replace import Call, LeftAlone, Replacement, check_members, isolated_copy, only_argument
from .tables import SINUSOIDAL, name_of

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Known(NamedTuple):
    """A class of modules whose rows this library computes."""

    name: str  # and its library
    needs: tuple[str, ...]  # its attributes, all of its tensors among them; those of one dimension hold frequencies
    encodings: Callable[[Any], list[tuple[str, Any, dict[str, Any]]]]  # module -> [(convention, dim, fields)]
    forward: Callable[..., Tensor | None]  # as `compute` of `Replacement`
    arguments: tuple[str, ...] = ()  # of its forward, of which the first two are needed; (): one of any name


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


def _base_of(frequencies: Tensor) -> float:
    """The base of frequencies base^(-i / n), i = 0 to n - 1, to the six digits that float32 gives."""
    values = frequencies.detach().double()
    is_base = len(values) > 1 and 0 < float(values[1]) < 1
    return float(f"{float(values[1]) ** -len(values):.6g}") if is_base else 10000.0


def _of_timesteps(module: Any) -> list[tuple[str, Any, dict[str, Any]]]:
    fields = {"shift": module.downscale_freq_shift, "position_scale": getattr(module, "scale", 1)}
    return [("adm" if module.flip_sin_to_cos else "ddpm", module.num_channels, fields)]


KNOWN = (
    Known(
        "Timesteps (diffusers)",
        needs=("num_channels", "flip_sin_to_cos", "downscale_freq_shift"),
        encodings=_of_timesteps,
        forward=rows_of_timesteps,
    ),
    Known(
        "SinusoidalPosEmb (denoising-diffusion-pytorch) and its copies",
        needs=("dim",),
        encodings=lambda m: [(n, m.dim, {"base": getattr(m, "theta", 10000)}) for n in ("t2t", "adm", "paper_concat")],
        forward=rows_of_timesteps,
    ),
    Known(
        "PositionalEncoding (torch_geometric)",
        needs=("out_channels", "base_freq", "granularity", "frequency"),
        encodings=lambda m: [("t2t", m.out_channels, {"base": 1 / m.base_freq, "position_scale": 1 / m.granularity})],
        forward=rows_of_timesteps,
    ),
    Known(
        "ScaledSinusoidalEmbedding (x-transformers)",
        needs=("inv_freq", "scale"),
        encodings=lambda m: [("paper_concat", 2 * m.inv_freq.numel(), {"base": _base_of(m.inv_freq)})],
        forward=scaled_rows,
        arguments=("x", "pos", "seq_start_pos", "offset"),
    ),
)


def known_of(module: nn.Module) -> list[Replacement] | None:
    """The replacements of a module of a known class, of which its outputs show the right one; None for any other
    module. Raises LeftAlone, or ValueError for a width that the convention does not support."""
    arguments = tuple(inspect.signature(type(module).forward).parameters)[1:]
    known = next((known for known in KNOWN if _is(module, arguments, known)), None)
    if known is None:
        return None
    tensors = {**module._parameters, **module._buffers}
    if any(tensor is not None and tensor.is_meta for tensor in tensors.values()):
        raise LeftAlone("its tensors are on the meta device: load the weights first")
    check_members(module, known.needs)
    replacements = []
    for name, dim, fields in known.encodings(module):
        encoding = convention(name, dim, **fields)
        form, calls, options = _verification(module, known, encoding)
        replacements.append(
            Replacement(
                form,
                encoding,
                name_of(encoding, name),
                known.forward,
                {"_sinpe_argument": arguments[0], **options},
                calls,
                tables=tuple(name for name in known.needs if name in module._buffers),
                error=max([1.0, *(float(factor.abs()) for factor in module.parameters())]),
            )
        )
    return replacements


def _is(module: nn.Module, arguments: tuple[str, ...], known: Known) -> bool:
    """Whether a module has the attributes, tensors and arguments of a known class."""
    held = {name for name, tensor in (*module._parameters.items(), *module._buffers.items()) if tensor is not None}
    is_named = any(SINUSOIDAL.search(made.__name__) for made in type(module).__mro__)
    return (
        not module._modules
        and arguments[:2] == (known.arguments[:2] or arguments[:1])
        and set(arguments).issubset(known.arguments or arguments)
        and held.issubset(known.needs)
        and all(hasattr(module, name) for name in known.needs)
        and (is_named or len(known.needs) > 1)  # `dim` alone is too common
    )


def _verification(module: Any, known: Known, encoding: Any) -> tuple[str, list[Call], dict[str, Any]]:
    """(what the module returns, calls that verify it, attributes of `forward`)."""
    device = next((held.device for held in module.buffers()), torch.device("cpu"))
    if known.forward is scaled_rows:
        x, pos = torch.zeros(2, 2048, encoding.dim, device=device), torch.tensor([5, 0, 999, 31], device=device)
        calls = [Call((x[:, :length],), length, reported=True) for length in (1, 7, 2048)]
        calls += [Call((x, pos), 1000), Call((x, pos + 0.25), 1000), Call((x[:, :7],), 7, training=True)]
        return "scale * rows for the length of x", calls, {}
    most = max(1.0, abs(float(encoding.position_scale)))  # models with a scale have timesteps from 0 to 1
    steps = torch.arange(1001.0, device=device) / most
    fractions = torch.tensor([0.0, 0.5, 1.0, 1.75, 3.0], device=device) / most
    calls = [Call((steps,), 1000 / most, reported=True), Call((fractions[:1],), 0)]
    calls += [Call((steps * factor,), 9000 / most) for factor in (9, -6)]  # far from the usual range
    dtypes = _dtypes(module, device)
    # 16 bits round fractions up, too.
    calls += [Call((fractions.to(dtype),), 4 / most, reported=dtype == torch.float32) for dtype in dtypes]
    return "rows of timesteps", [*calls, Call((fractions,), 4 / most, training=True)], {"_sinpe_dtypes": dtypes}


def _dtypes(module: Any, device: torch.device) -> dict[torch.dtype, torch.dtype]:
    """The dtypes of positions whose rows are float32 or wider, each with that of the rows; rows of 16 bits remain the
    module's own."""
    dtypes = {}
    for dtype in (*DTYPES, torch.int64):
        with contextlib.suppress(Exception):  # a dtype that the module lacks
            rows = isolated_copy(module).forward(torch.zeros(3, dtype=dtype, device=device))
            if rows.dtype in (torch.float32, torch.float64):
                dtypes[dtype] = rows.dtype
    return dtypes

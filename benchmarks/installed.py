"""Rows against installed libraries: their own functions (`peers.py` has transcribed formulas).

A library's result and ours are each compared with our float64 result under the library's convention before timing.
The rows of a missing library are skipped with that reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.encodings.encoding import Encoding
from sinpe_ext.encodings.grid import GridEncoding
from sinpe_ext.integrations.replace import allowed

from . import peers as peer
from .cases import FULL, ROUNDING, WIDE, Row, Subjects, tolerance
from .process import Skipped

LIBRARIES = ("diffusers", "positional-encodings", "timm", "transformers", "x-transformers")
PADDING = 1  # fairseq's and M2M100's padding_idx
LARGEST = 8.0  # of x + PE, x normally distributed


def versions() -> dict[str, str]:
    """Versions of the installed libraries."""
    by_library = {}
    for library in LIBRARIES:
        try:
            by_library[library] = version(library)
        except PackageNotFoundError:
            continue
    return by_library


def load(library: str, name: str) -> Any:
    """Import a library's module; raises Skipped if that fails."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise Skipped(f"{library} is not installed: pip install {library}")
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # a version that does not suit this torch or Python
        raise Skipped(f"{library} cannot be imported: {str(error).splitlines()[0]}") from error


def timm_sincos2d() -> Callable[..., Tensor]:
    """timm's build_sincos2d_pos_embed, loaded from its file, because `import timm` needs torchvision."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        raise Skipped("timm is not installed: pip install timm")
    with _empty_packages(Path(spec.origin).parent):
        function: Callable[..., Tensor] = load("timm", "timm.layers.pos_embed_sincos").build_sincos2d_pos_embed
    return function


@contextmanager
def _empty_packages(folder: Path) -> Iterator[None]:
    """Context manager: timm and timm.layers as packages whose __init__ has not run; restores the imported modules."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "timm"}
    try:
        for name, place in (("timm", folder), ("timm.layers", folder / "layers")):
            spec = importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=[str(place)]
            )
            assert spec is not None
            sys.modules[name] = importlib.util.module_from_spec(spec)
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
            del sys.modules[name]
        sys.modules.update(before)


def compared(
    library: str,
    encoding: Encoding | GridEncoding,
    exact: Callable[[], Tensor],
    ours: Callable[[], Tensor],
    theirs: Callable[[], Tensor],
    floor: Callable[[], object],
    *,
    position: float,
    size: float = 0.0,
) -> Subjects:
    """The calls of a row. Both results are compared with `exact`, theirs with the tolerance that float32 angles need.

    position: the largest one; size: of the largest sum with x, which is rounded once more, 0 without x.
    """

    def check() -> None:
        want = exact()
        rounding = ROUNDING[torch.float32] * size
        peer.agree("sinpe_ext", ours(), want, tolerance(torch.float32, position) + rounding)
        peer.agree(library, theirs(), want, allowed(encoding, position, torch.float32) + rounding)

    return Subjects(ours, floor, {library: theirs}, check)


def table(
    library: str, build: Callable[[], Callable[[], Tensor]], name: str, where: int | tuple[int, int], dim: int
) -> Subjects:
    """Our table against a library's builder, both into new memory."""
    theirs = build()
    encoding: Any = sinpe.convention(name, dim)
    flat = not isinstance(where, int)
    rows = where if isinstance(where, int) else where[0] * where[1]

    def ours(dtype: torch.dtype = torch.float32) -> Tensor:
        if flat:
            return sinpe.table(where, encoding, flatten=True, dtype=dtype)
        return sinpe.table(where, encoding, dtype=dtype)

    return compared(
        library,
        encoding,
        lambda: ours(torch.float64),
        ours,
        theirs,
        lambda: torch.full((rows, dim), 1.0),
        position=float(where if isinstance(where, int) else max(where)),
    )


def added(
    library: str,
    build: Callable[[tuple[int, int, int]], Callable[[Tensor], Tensor]],
    encoding: Encoding,
    ours: Callable[[Tensor], Tensor],
) -> Subjects:
    """x + PE as in a model that uses the library's module, into new memory."""
    theirs, x = build(WIDE), torch.randn(WIDE)
    return compared(
        library,
        encoding,
        lambda: ours(x.double()),
        lambda: ours(x),
        lambda: theirs(x),
        lambda: x.clone(),
        position=float(WIDE[1] + encoding.start),
        size=LARGEST,
    )


def multidim1d(length: int, dim: int) -> Callable[[], Tensor]:
    layer = load("positional-encodings", "positional_encodings.torch_encodings").PositionalEncoding1D(dim)
    x = torch.empty(1, length, dim)

    def build() -> Tensor:
        layer.cached_penc = None
        return layer(x)[0]

    return build


def multidim2d(height: int, width: int, dim: int) -> Callable[[], Tensor]:
    layer = load("positional-encodings", "positional_encodings.torch_encodings").PositionalEncoding2D(dim)
    x = torch.empty(1, height, width, dim)

    def build() -> Tensor:
        layer.cached_penc = None
        return layer(x)[0].flatten(0, 1)

    return build


def summer(shape: tuple[int, int, int]) -> Callable[[Tensor], Tensor]:
    """From the second call on, its cache holds the encoding of the whole batch."""
    module = load("positional-encodings", "positional_encodings.torch_encodings")
    layer: Callable[[Tensor], Tensor] = module.Summer(module.PositionalEncoding1D(shape[-1]))
    return layer


def marian(length: int, dim: int) -> Any:
    module = load("transformers", "transformers.models.marian.modeling_marian")
    return module.MarianSinusoidalPositionalEmbedding(length, dim)


def marian_added(shape: tuple[int, int, int]) -> Callable[[Tensor], Tensor]:
    layer = marian(*shape[1:])
    layer.weight.data.copy_(layer.create_weight())
    return lambda x: x + layer(x.shape)


def m2m100() -> Any:
    module = load("transformers", "transformers.models.m2m_100.modeling_m2m_100")
    return module.M2M100SinusoidalPositionalEmbedding


def m2m100_table(length: int, dim: int) -> Callable[[], Tensor]:
    build = m2m100().get_embedding
    return lambda: build(length, dim)


def m2m100_added() -> Subjects:
    """Positions from token ids, starting at padding_idx + 1; rows of zeros for padding."""
    batch, length, dim = WIDE
    layer = m2m100()(length, dim, PADDING)
    ids = torch.randint(4, 1000, (batch, length), generator=torch.Generator().manual_seed(0))
    ids[::2, length - length // 8 :] = PADDING
    t2t = sinpe.convention("t2t", dim)

    def ours(x: Tensor) -> Tensor:
        positions, mask = sinpe.positions.from_padding_idx(ids, PADDING)
        return sinpe.add(x, t2t, positions=positions, padding_mask=mask)

    return added("transformers", lambda shape: lambda x: x + layer(ids), t2t.replace(start=PADDING + 1), ours)


def x_transformers_added() -> Subjects:
    """Its module builds the table at each call, and multiplies it by a learned factor, initially 1 / sqrt(dim)."""
    encoding = sinpe.convention("paper_concat", WIDE[-1])
    layer = load("x-transformers", "x_transformers.x_transformers").ScaledSinusoidalEmbedding(WIDE[-1])
    scale = layer.scale.detach()
    return added(
        "x-transformers",
        lambda shape: lambda x: x + layer(x),
        encoding,
        lambda x: sinpe.add(x, encoding, alpha=scale.to(x.dtype)),
    )


def timesteps(count: int, dim: int, *, layer: bool) -> Subjects:
    """diffusers' function with its defaults (DDPM's), or the layer of its UNets (ADM's)."""
    module = load("diffusers", "diffusers.models.embeddings")
    encoding = sinpe.convention("adm" if layer else "ddpm", dim)
    t = torch.linspace(0.5, 999.5, count)
    ours: Callable[[Tensor], Tensor]
    theirs: Callable[[Tensor], Tensor]
    if layer:
        ours, theirs = sinpe.TimestepEncoding(dim, encoding=encoding), module.Timesteps(dim, True, 0)
    else:
        ours, theirs = lambda t: sinpe.encode(t, encoding), lambda t: module.get_timestep_embedding(t, dim)
    return compared(
        "diffusers",
        encoding,
        lambda: sinpe.encode(t, encoding, dtype=torch.float64),
        lambda: ours(t),
        lambda: theirs(t),
        lambda: torch.empty(count, dim).fill_(1.0),
        position=1000.0,
    )


def diffusers_picture(height: int, width: int, dim: int) -> Callable[[], Tensor]:
    """Square images only: for others the library scales one axis to `base_size`."""
    build = load("diffusers", "diffusers.models.embeddings").get_2d_sincos_pos_embed
    return lambda: build(dim, (height, width), base_size=height).float()


def timm_picture(height: int, width: int, dim: int) -> Callable[[], Tensor]:
    build = timm_sincos2d()
    return lambda: build([height, width], dim)


LONG, PICTURE = (4096, 1024), (64, 64, 1024)
PE, HF, DIFFUSERS, X, TIMM = "positional-encodings", "transformers", "diffusers", "x-transformers", "timm"

# fmt: off
INSTALLED_ROWS: tuple[Row, ...] = (
    Row("installed_marian", "MarianSinusoidalPositionalEmbedding, table 4096x1024",
        lambda: table(HF, lambda: marian(*LONG).create_weight, "paper_concat", *LONG), FULL, None, {HF: 10.0},
        slow=True),
    Row("installed_m2m100", "M2M100's get_embedding, table 4096x1024",
        lambda: table(HF, lambda: m2m100_table(*LONG), "t2t", *LONG), FULL, None, {HF: 10.0}),
    Row("installed_multidim1d", "PositionalEncoding1D, table 4096x1024",
        lambda: table(PE, lambda: multidim1d(*LONG), "multidim1d", *LONG), FULL, None, {PE: None}),
    Row("installed_multidim2d", "PositionalEncoding2D, table (64,64) x 1024",
        lambda: table(PE, lambda: multidim2d(*PICTURE), "multidim2d", PICTURE[:2], PICTURE[2]), FULL, None, {PE: None}),
    Row("installed_diffusers2d", "get_2d_sincos_pos_embed (64,64) x 1024",
        lambda: table(DIFFUSERS, lambda: diffusers_picture(*PICTURE), "mae2d", PICTURE[:2], PICTURE[2]), FULL, None,
        {DIFFUSERS: None}),
    Row("installed_timm2d", "build_sincos2d_pos_embed (64,64) x 1024",
        lambda: table(TIMM, lambda: timm_picture(*PICTURE), "timm2d", PICTURE[:2], PICTURE[2]), FULL, None,
        {TIMM: None}),
    Row("installed_timesteps", "get_timestep_embedding, 8 x 320", lambda: timesteps(8, 320, layer=False),
        "empty, fill_", 3.0, {DIFFUSERS: 4.0}),
    Row("installed_timestep_layer", "Timesteps, 8 x 320", lambda: timesteps(8, 320, layer=True),
        "empty, fill_", 3.0, {DIFFUSERS: 4.0}),
    Row("installed_summer", "Summer(PositionalEncoding1D) (32,512,1024)",
        lambda: added(PE, summer, sinpe.Encoding(WIDE[2]), lambda x: sinpe.add(x, "multidim1d")), "x.clone()", None,
        {PE: None}),
    Row("installed_marian_add", "x + Marian's module (32,512,1024)",
        lambda: added(HF, marian_added, sinpe.convention("paper_concat", WIDE[2]),
                      lambda x: sinpe.add(x, "paper_concat")), "x.clone()", None, {HF: None}),
    Row("installed_m2m100_add", "x + M2M100's module, from ids (32,512,1024)", m2m100_added, "x.clone()", None,
        {HF: None}),
    Row("installed_x_transformers", "x + ScaledSinusoidalEmbedding (32,512,1024)", x_transformers_added, "x.clone()",
        None, {X: None}),
)
# fmt: on

"""timm's build_sincos2d_pos_embed, loaded from its file, because `import timm` needs torchvision."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor


def timm_sincos2d() -> Callable[..., Tensor]:
    spec = importlib.util.find_spec("timm")
    assert spec is not None and spec.origin is not None
    with _empty_packages(Path(spec.origin).parent):
        return importlib.import_module("timm.layers.pos_embed_sincos").build_sincos2d_pos_embed


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

"""Sinusoidal positional encodings for PyTorch: every convention by name, correctly rounded, without a stored table.

    import sinpe_ext as sinpe

    pe = sinpe.table(4096, 512)                                  # (4096, 512) float32, correctly rounded
    y = sinpe.add(x)                                             # x + PE; does not store a table
    layer = sinpe.SinusoidalPositionalEncoding(512, dropout=0.1)

Importing the package imports neither torch nor NumPy; each public name is imported when it is first used.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import distributed as distributed
    from . import functional as functional
    from . import integrations as integrations
    from . import modules as modules
    from . import numpy as numpy
    from . import plot as plot
    from . import positions as positions
    from . import reference as reference
    from .backend.info import BackendInfo, backend_info
    from .backend.loader import BackendUnavailableError, use_backend
    from .encodings.catalogue import convention, conventions
    from .encodings.encoding import Encoding
    from .encodings.grid import GridEncoding
    from .functional import add, add_, embed, encode, table
    from .identification import Match, Matches, identify
    from .modules import SinusoidalEmbedding, SinusoidalPositionalEncoding, TimestepEncoding

# Public name -> the module that defines it, relative to this package.
_DEFINED_IN = {
    "Encoding": "encodings.encoding",
    "GridEncoding": "encodings.grid",
    "convention": "encodings.catalogue",
    "conventions": "encodings.catalogue",
    "identify": "identification",
    "Match": "identification",
    "Matches": "identification",
    "table": "functional",
    "encode": "functional",
    "add": "functional",
    "add_": "functional",
    "embed": "functional",
    "SinusoidalPositionalEncoding": "modules",
    "SinusoidalEmbedding": "modules",
    "TimestepEncoding": "modules",
    "backend_info": "backend.info",
    "BackendInfo": "backend.info",
    "use_backend": "backend.loader",
    "BackendUnavailableError": "backend.loader",
}

__all__ = [
    "BackendInfo",
    "BackendUnavailableError",
    "Encoding",
    "GridEncoding",
    "Match",
    "Matches",
    "SinusoidalEmbedding",
    "SinusoidalPositionalEncoding",
    "TimestepEncoding",
    "__version__",
    "add",
    "add_",
    "backend_info",
    "convention",
    "conventions",
    "embed",
    "encode",
    "identify",
    "table",
    "use_backend",
]

_importing = threading.RLock()
_SUBMODULES = ("distributed", "functional", "integrations", "modules", "numpy", "plot", "positions", "reference")


if not TYPE_CHECKING:  # type checkers use the imports above; a module __getattr__ would hide misspelled names from them

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name not in _DEFINED_IN and name not in _SUBMODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # In a function that torch.compile gave up, it would compile the code that an import runs.
        frames = getattr(sys.modules.get("torch._C._dynamo"), "eval_frame", None)
        callback = None if frames is None else frames.set_eval_frame(None)
        # One thread at a time: where one thread imports a package and another a module of it, Python fails or gives
        # incomplete modules. With a limit, because a thread in an import statement may wait here while the other one
        # waits for it.
        is_alone = _importing.acquire(timeout=5)
        try:
            module = import_module(f".{_DEFINED_IN.get(name, name)}", __name__)
        finally:
            if is_alone:
                _importing.release()
            if frames is not None:
                frames.set_eval_frame(callback)
        if name not in _DEFINED_IN:
            return module
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES])

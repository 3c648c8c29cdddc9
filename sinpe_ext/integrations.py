"""Ways from and to other programs."""

from __future__ import annotations

from ._onnx import standard_operators as standard_operators

__all__ = ["standard_operators"]

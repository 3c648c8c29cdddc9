"""Whether a value is a DTensor and whether context parallelism is active, without importing torch.distributed."""

from __future__ import annotations

import sys
from typing import Any


def is_dtensor(value: Any) -> bool:
    """Whether a value is a DTensor; does not import torch.distributed."""
    # While another thread imports the module, it exists without DTensor; no DTensor can exist then either.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(value, kind)


def in_context_parallel() -> bool:
    """Whether torch.distributed.tensor.experimental.context_parallel is active: it reorders the sequence of ordinary
    tensors, and replaces scaled_dot_product_attention by its own function."""
    torch = sys.modules["torch"]
    attention = torch.nn.functional.scaled_dot_product_attention
    if attention is torch._C._nn.scaled_dot_product_attention:  # the usual answer, in a tenth of a microsecond
        return False
    return (getattr(attention, "__module__", None) or "").startswith("torch.distributed.tensor.experimental")

"""Whether torch.distributed has a part in this: DTensors, context parallelism. Imports nothing of it by itself."""

from __future__ import annotations

import sys
from typing import Any


def is_dtensor(value: Any) -> bool:
    """Whether a value is a DTensor, without the import of torch.distributed where nobody else did."""
    # While another thread imports the module, it is there and has no DTensor yet; nor has anyone made one.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(value, kind)


def in_context_parallel() -> bool:
    """Whether torch.distributed.tensor.experimental.context_parallel is at work: it reorders the sequence of ordinary
    tensors, and has put its own function in the place of scaled_dot_product_attention."""
    torch = sys.modules["torch"]
    attention = torch.nn.functional.scaled_dot_product_attention
    if attention is torch._C._nn.scaled_dot_product_attention:  # the usual answer, in a tenth of a microsecond
        return False
    return (getattr(attention, "__module__", None) or "").startswith("torch.distributed.tensor.experimental")

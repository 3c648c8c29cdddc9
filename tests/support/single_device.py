"""A device without float64, as Apple's MPS: torch's device type for other backends, called "single". Its tensors have
their elements in CPU memory, operators run on the CPU, and an operator that would make a float64 tensor raises.

Importing it changes the process; run it in one of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree, backend_registration

NAME = "single"


class SingleTensor(torch.Tensor):
    """A tensor of the device; `host` has its elements."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> SingleTensor:
        if host.dtype == torch.float64:
            raise TypeError("the device has no float64")
        layout = host.shape, host.stride(), host.storage_offset()
        made = torch.Tensor._make_wrapper_subclass(cls, *layout, dtype=host.dtype, device=NAME + ":0")
        made.host = host
        return made

    def __init__(self, host: torch.Tensor) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return _run(op, *arguments, **(keywords or {}))


def _run(op: Any, *arguments: Any, **keywords: Any) -> Any:
    """Runs an operator on the CPU. A result that is one of its arguments is returned as that argument."""
    given = [t for t in _pytree.tree_leaves((arguments, keywords)) if isinstance(t, SingleTensor)]
    on_device = bool(given)
    if "device" in keywords and keywords["device"] is not None:
        on_device = keywords["device"].type == NAME
        keywords["device"] = torch.device("cpu")
    hosts = _pytree.tree_map(lambda t: t.host if isinstance(t, SingleTensor) else t, (arguments, keywords))

    def wrapped(t: Any) -> Any:
        same = [of for of in given if of.host is t]
        if same or not isinstance(t, torch.Tensor) or not on_device:
            return same[0] if same else t
        return SingleTensor(t)

    return _pytree.tree_map(wrapped, op(*hosts[0], **hosts[1]))


backend_registration._setup_privateuseone_for_python_backend(NAME)
FALLBACK = torch.library.Library("_", "IMPL")
FALLBACK.fallback(_run, "PrivateUse1")  # of functions that make a tensor, such as torch.empty

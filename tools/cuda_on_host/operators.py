"""PyTorch's operators for the device of runtime.c: their CPU kernels, applied to its memory; and our CUDA kernels.

A pytest plugin: `-p operators`, with CUDA_ON_HOST_LIBRARY, the library of our kernels.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from sinpe_ext.backend import loader

# Operators that make tensors or views: torch's own work.
KEPT = """as_strided as_strided_ empty empty_strided is_pinned is_set_to record_stream resize_ set_ unfold view
view_as_complex view_as_real _efficientzerotensor _pin_memory _reshape_alias""".split()

_library = torch.library.Library("aten", "IMPL")


def on_cpu(t: Tensor) -> Tensor:
    """A CPU tensor with the memory of a CUDA tensor."""
    if t.layout is torch.sparse_coo:
        indices, values = on_cpu(t._indices()), on_cpu(t._values())
        return torch.sparse_coo_tensor(indices, values, t.shape, is_coalesced=t.is_coalesced())
    storage, size = t.untyped_storage(), t.untyped_storage().nbytes()
    if size == 0:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    memory = torch.frombuffer((ctypes.c_uint8 * size).from_address(storage.data_ptr()), dtype=torch.uint8)
    same = torch.empty(0, dtype=t.dtype).set_(memory.untyped_storage(), t.storage_offset(), t.shape, t.stride())
    same = torch._neg_view(same) if t.is_neg() else same
    return torch.conj(same) if t.is_conj() else same


def to_cuda(t: Tensor, device: Any) -> Tensor:
    """A copy of a CPU tensor in new memory of the device."""
    if t.layout is torch.sparse_coo:
        indices, values = to_cuda(t._indices(), device), to_cuda(t._values(), device)
        return torch.sparse_coo_tensor(indices, values, t.shape, is_coalesced=t.is_coalesced())
    copy = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
    if t.numel():
        on_cpu(copy).copy_(t)
    return copy


def calls_cpu_kernel(operator: Any) -> Callable[..., Any]:
    """The operator on CUDA tensors."""
    arguments = operator._schema.arguments
    outputs = [a.name for a in arguments if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write]
    tensors_at = [k for k, a in enumerate(arguments) if str(a.type) == "Tensor"]

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            pairs: list[tuple[Tensor, Tensor]] = []
            devices: list[Any] = []

            def down(value: Any) -> Any:
                if isinstance(value, torch.Generator):
                    return None
                if isinstance(value, torch.device) and value.type == "cuda":
                    devices.append(value)
                    return torch.device("cpu")
                if isinstance(value, Tensor) and value.is_cuda:
                    devices.append(value.device)
                    pairs.append((on_cpu(value), value))
                    return pairs[-1][0]
                return value

            written = [kwargs[name] for name in outputs]
            given, named = tree_map(down, (list(args), {k: v for k, v in kwargs.items() if k not in outputs}))
            for k in tensors_at:  # a number in place of a tensor
                if k < len(given) and isinstance(given[k], (bool, int, float)):
                    given[k] = torch.tensor(given[k], dtype=torch.float64 if isinstance(given[k], float) else None)
            if outputs:
                made = [on_cpu(t) if t.numel() else torch.empty(0, dtype=t.dtype) for t in written]
                operator(*given, **named, **dict(zip(outputs, made, strict=True)))
                for to, new in zip(written, made, strict=True):
                    if not to.numel() and new.numel():
                        on_cpu(to.resize_(new.shape)).copy_(new)
                return written[0] if len(written) == 1 else tuple(written)
            result = operator(*given, **named)

            def up(value: Any) -> Any:
                if not isinstance(value, Tensor):
                    return value
                for cpu, cuda in pairs:  # one of the arguments, which the operator has written to
                    if value is cpu:
                        return cuda
                return to_cuda(value, devices[0] if devices else "cuda")

            return tree_map(up, result)

    return call


def copy_(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        (on_cpu(to) if to.is_cuda else to).copy_(on_cpu(source) if source.is_cuda else source)
    return to


def register() -> None:
    """Registers the operators."""
    _library.impl("copy_", copy_, "CUDA", allow_override=True)
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
        if not name.startswith("aten::") or base in KEPT or base == "copy_" or not has_kernel:
            continue
        operator = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if operator is None or any(r.alias_info and not r.alias_info.is_write for r in operator._schema.returns):
            continue
        kernel = (lambda t: on_cpu(t).item()) if base == "_local_scalar_dense" else calls_cpu_kernel(operator)
        _library.impl(name, kernel, "CUDA", allow_override=True)


def load(path: Path) -> None:
    """Loads our kernels, as those for CUDA."""
    loader._load_library(path, "cuda")
    reason = "the CUDA kernels, compiled as C++"
    loader._backends["cuda"] = loader.DeviceBackend("cuda", "compiled", reason, "emulated", str(path))


load(Path(os.environ["CUDA_ON_HOST_LIBRARY"]))
if not os.environ.get("CUDA_ON_HOST_SKIPS_LAUNCHES"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that a kernel is replaced
        register()

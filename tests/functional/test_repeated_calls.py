"""A call does the same whether it is checked in Python, as the first of its kind, or repeated in C, as later ones.

What repeats a call must notice everything in which two calls can differ, and keeps none of their tensors alive. CALLS
has ordinary calls, VALUES and TENSORS the values to change their arguments to, AROUND what is done around a call.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import inspect
import random
import re
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy  # noqa: F401  for expressions
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from ways import repetitions, use

import sinpe_ext as sinpe
from sinpe_ext.backend import loader

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("need_repetition")]

Arguments = dict[str, Any]
PE, EQUAL, GRID = sinpe.Encoding(8), sinpe.Encoding(8), sinpe.convention("mae2d", 16)


@pytest.fixture(scope="module", autouse=True)
def need_repetition(need_kernels: None) -> None:
    if loader.core_module()[0] is None:
        pytest.skip("calls are repeated by the module _core")


@pytest.fixture
def need_cpu_kernels() -> None:
    """The binding of a device does not read values, reads its arguments in another order, and keeps Python's lock."""
    if torch.ops.sinpe_ext.cpu_isa() == "emulated":
        pytest.skip("not so for kernels of a device")


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu").to(dtype)


def whole(*shape: int, below: int = 6) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(1), device="cpu")


# --------------------------------------------------------------------------------------------------- ordinary calls


class Sizes(NamedTuple):
    batch: int = 2
    rows: int = 3
    channels: int = 8
    dtype: torch.dtype = torch.float32


OTHER_SIZES = {
    "batch 1": Sizes(batch=1),
    "batch 5": Sizes(batch=5),
    "no batch": Sizes(batch=0),
    "1 row": Sizes(rows=1),
    "4 rows": Sizes(rows=4),
    "no rows": Sizes(rows=0),
    "1 element": Sizes(1, 1, 1),
    "batch 3, 2 rows": Sizes(3, 2),
    "6 channels": Sizes(channels=6),
    "16 channels": Sizes(channels=16),
    "large": Sizes(2, 1100, 64),
    "float64": Sizes(dtype=torch.float64),
    "bfloat16": Sizes(dtype=torch.bfloat16),
    "large float16": Sizes(2, 1100, 64, torch.float16),
}


class Subclass(torch.Tensor):
    pass


def _data(s: Sizes, *shape: int) -> Tensor:
    return normal(*shape, dtype=s.dtype)


AFTER_TOKENS: Arguments = {"encoding": GRID, "extra_tokens": 2, "seq_dim": 0, "dropout": 0.5}


def _x(s: Sizes, *shape: int, **arguments: Any) -> Arguments:
    return {"x": _data(s, *(shape or (s.batch, s.rows, s.channels))), **arguments}


def _learned_x(s: Sizes, **arguments: Any) -> Arguments:
    return {**arguments, "x": _data(s, s.batch, s.rows, s.channels).requires_grad_()}


def _embed(s: Sizes, weight: Callable[[Tensor], Tensor] = lambda t: t, **arguments: Any) -> Arguments:
    return {"ids": whole(s.batch, s.rows), "weight": weight(_data(s, 6, s.channels)), **arguments}


def _mask(*shape: int) -> Tensor:
    return whole(*shape, below=2).bool()


def _learned(t: Tensor) -> Tensor:
    return t.requires_grad_()


def _acc(s: Sizes) -> torch.dtype:
    return torch.float64 if s.dtype == torch.float64 else torch.float32


CALLS: dict[str, tuple[Callable[..., Tensor], Callable[[Sizes], Arguments]]] = {
    "add": (sinpe.add, lambda s: _x(s)),
    "add, positions": (sinpe.add, lambda s: _x(s, positions=whole(s.batch, s.rows), scale=0.5)),
    "add, starts": (sinpe.add, lambda s: _x(s, start=torch.arange(s.batch) * 7, padding_mask=_mask(s.rows))),
    "add, alpha": (
        sinpe.add,
        lambda s: _x(
            s, alpha=normal(1), start=5, encoding=sinpe.Encoding(s.channels), padding_mask=_mask(s.batch, s.rows)
        ),
    ),
    "add, dropout": (sinpe.add, lambda s: _x(s, dropout=0.5, encoding="t2t")),
    "add, seed": (sinpe.add, lambda s: _x(s, dropout=0.5, seed=5, positions=normal(s.rows), alpha=2.0)),
    "add, extra tokens": (sinpe.add, lambda s: _x(s, extra_tokens=1, scale=2.0)),
    "add, extra tokens of samples": (
        sinpe.add,
        lambda s: _x(s, s.batch, 3, s.rows, s.channels, extra_tokens=1, dropout=0.5, alpha=0.5, start=7),
    ),
    "add, sequence first": (
        sinpe.add,
        lambda s: _x(s, s.rows, s.batch, s.channels, seq_dim=0, padding_mask=_mask(s.batch, s.rows)),
    ),
    "add, grid": (sinpe.add, lambda s: _x(s, s.batch, s.rows, 4, 2 * s.channels, encoding="mae2d", start=(1, 2))),
    "add, grid of rows apart": (
        sinpe.add,
        lambda s: {
            "x": _data(s, s.batch, s.rows, 8, 16)[..., ::2, :],
            "encoding": GRID,
            "padding_mask": _mask(s.rows, 4),
        },
    ),
    "add, flat grid": (sinpe.add, lambda s: _x(s, s.batch, s.rows * 4, 16, encoding=GRID, grid_shape=[s.rows, 4])),
    "add, channels first": (
        sinpe.add,
        lambda s: _x(s, s.batch, 2 * s.channels, s.rows, 4, encoding="mae2d", channel_dim=1, dropout=0.5),
    ),
    "add, grid after tokens": (
        sinpe.add,
        lambda s: _x(s, 4 * s.rows + 2, s.batch, 16, grid_shape=(s.rows, 4), **AFTER_TOKENS),
    ),
    "add, grid of volumes": (
        sinpe.add,
        lambda s: _x(
            s, s.batch, s.rows, 2, 3, 24, encoding="monai3d", alpha=normal(1), padding_mask=_mask(s.rows, 2, 3)
        ),
    ),
    "add, learned x": (sinpe.add, lambda s: _learned_x(s, scale=3.0)),
    "add, learned": (
        sinpe.add,
        lambda s: _learned_x(
            s, alpha=_learned(normal(1, dtype=_acc(s))), positions=_learned(normal(s.batch, s.rows)), dropout=0.25
        ),
    ),
    "add, learned, sequence first": (
        sinpe.add,
        lambda s: {
            "x": _learned(_data(s, s.rows, s.batch, s.channels)),
            "seq_dim": 0,
            "alpha": _learned(normal(1, dtype=_acc(s))),
            "positions": _learned(normal(s.batch, s.rows)),
            "padding_mask": _mask(s.batch, s.rows),
            "dropout": 0.25,
        },
    ),
    "add, learned alpha, channels first": (
        sinpe.add,
        lambda s: _x(s, s.batch, s.channels, s.rows, seq_dim=2, channel_dim=1, alpha=_learned(normal(1)), start=4),
    ),
    "add, learned alpha, extra tokens": (
        sinpe.add,
        lambda s: _x(s, 3, s.rows, s.channels, alpha=_learned(normal(1)), extra_tokens=1, dropout=0.5, seq_dim=0),
    ),
    "add_": (sinpe.add_, lambda s: _x(s, encoding=sinpe.Encoding(s.channels))),
    "add_, mask": (sinpe.add_, lambda s: _x(s, padding_mask=_mask(s.rows), start=3, dropout=0.5)),
    "add_, extra tokens": (sinpe.add_, lambda s: _x(s, extra_tokens=1, dropout=0.5)),
    "add, out": (sinpe.add, lambda s: _x(s, out=torch.zeros(s.batch, s.rows, s.channels, dtype=s.dtype))),
    "embed": (sinpe.embed, lambda s: _embed(s, padding_idx=1)),
    "embed, rows": (
        sinpe.embed,
        lambda s: _embed(s, start=torch.arange(s.batch), padding_mask=_mask(s.batch, s.rows), alpha=0.5),
    ),
    "embed, learned": (sinpe.embed, lambda s: _embed(s, _learned, scale=8.0, padding_idx=-2)),
    "embed, learned, sequence first": (
        sinpe.embed,
        lambda s: _embed(s, _learned, seq_dim=0, dropout=0.5, alpha=_learned(normal(1))),
    ),
    "embed, dropout": (
        sinpe.embed,
        lambda s: _embed(s, torch.nn.Parameter, dropout=0.5, positions=whole(s.rows), alpha=normal(1)),
    ),
    "embed, sequence first": (
        sinpe.embed,
        lambda s: _embed(s, lambda t: t.repeat(1, 2)[:, : s.channels], seq_dim=0, start=torch.tensor(5), dropout=0.5),
    ),
    "encode": (
        sinpe.encode,
        lambda s: {"positions": whole(s.batch, s.rows), "encoding": sinpe.Encoding(s.channels), "dtype": s.dtype},
    ),
    "encode, transposed": (sinpe.encode, lambda s: {"positions": whole(s.rows, s.batch).t(), "encoding": PE}),
    "embed, transposed": (sinpe.embed, lambda s: _embed(s) | {"ids": whole(s.rows, s.batch).t()}),
    "encode, name": (sinpe.encode, lambda s: {"positions": normal(s.rows), "encoding": "ddpm", "dim": s.channels}),
    "encode, learned": (sinpe.encode, lambda s: {"positions": _learned(normal(s.rows)), "dim": s.channels}),
    "encode, grid": (sinpe.encode, lambda s: {"positions": normal(s.batch, s.rows, 2), "encoding": GRID}),
    "table": (sinpe.table, lambda s: {"length": s.rows, "encoding": sinpe.Encoding(s.channels), "dtype": s.dtype}),
    "table, name": (sinpe.table, lambda s: {"length": s.rows, "encoding": "t2t", "dim": s.channels, "start": 3}),
    "table, out": (
        sinpe.table,
        lambda s: {"length": s.rows, "encoding": s.channels, "out": torch.zeros(s.rows, s.channels, dtype=s.dtype)},
    ),
    "table, grid": (sinpe.table, lambda s: {"length": [s.rows, 4], "encoding": GRID, "dtype": s.dtype}),
}

# ----------------------------------------------------------------------------------------------------------- changes

# Of any tensor argument; those marked with a * are for floating-point ones.
TENSORS = """
t.double()  t.float()  t.half()  t.bfloat16()  t.long()  t.int()  t.to(torch.uint8)  t.to(torch.uint64)  t.bool()
t.to(torch.complex64)  -t*  t*0*  t/0*  torch.full_like(t,-0.0)*  t.requires_grad_()*  t.requires_grad_()*1*
torch.nn.Parameter(t,requires_grad=False)  torch.nn.Parameter(t)*  t.as_subclass(Subclass)  t.clone()
torch._neg_view(t)*  torch.complex(t,t).conj().imag*  torch._efficientzerotensor(t.shape,dtype=t.dtype)
torch._lazy_clone(t)  inference(t)  t.to("meta")  t.to_sparse()  torch.nested.as_nested_tensor(t)*
(t.untyped_storage().resize_(0),t)[1]  (t.untyped_storage().resize_(t.untyped_storage().nbytes()-1),t)[1]
t.mT.contiguous().mT  t.transpose(0,-1)  t.transpose(0,1)  t.flip(0)  t.repeat_interleave(2,-1)[...,::2]
torch.cat([t,t],-1)[...,:t.shape[-1]]  t[:1].expand(t.shape)  t[...,:1].expand(t.shape)
torch.cat([t.flatten()[:1],t.flatten()])[1:].view(t.shape)  t.as_strided(t.shape,t.stride())  torch.cat([t,t])  t[:1]
t[:,:1]  t[...,:1]  t[:0]  t[0]  t[None]  t[...,None]  t.flatten()  t.unsqueeze(-1).expand(*t.shape,2)  t[(None,)*14]
t.data.neg_()*  t.data.add_(t)  t.data.logical_not_()  t.data.fill_(float("nan"))*  t.data.fill_(0)
t.transpose_(0,-1)  t.squeeze_()  t.unsqueeze_(0)  t.resize_(1)  t.set_(t.clone())  t.set_(t[:1].clone())
(setattr(t,"data",t.double()),t)[1]*  (setattr(t,"data",t[...,:1].clone()),t)[1]  t.tolist()  t.detach().numpy()  None
3  object  t.to(torch.uint64)+2**63
"""
NUMBER = "0  1  -1  2.5  -2  0.0  -0.0  1e-30  1e300  float('inf')  float('nan')  10**400  True  '1'  None  1j"
VALUES = {  # of other arguments, or in place of a tensor
    "encoding": """None  8  16  0  -8  2**70  True  8.0  "t2t"  "paper"  "nonsense"  "mae2d"  "detr2d"  PE  EQUAL
        sinpe.Encoding(8,start=3)  sinpe.Encoding(8,start=2**62)  sinpe.Encoding(8,base=100)
        sinpe.Encoding(8,layout="sin_cos")  sinpe.Encoding(8,angle="float32_exp")  sinpe.Encoding(16)  GRID
        sinpe.convention("detr2d",16)  sinpe.GridEncoding((PE,EQUAL))
        sinpe.GridEncoding((PE,sinpe.Encoding(8,start=1)))  [8]  type("Int",(int,),{})(8)
        type("Str",(str,),{})("t2t")  numpy.int64(8)  torch.tensor(8)""",
    "positions": """None  torch.arange(3)  torch.arange(6).view(2,3)  torch.arange(3)[None]  torch.arange(4)
        torch.arange(1)  torch.tensor([[1],[2]])  torch.tensor([0.5,float("nan"),-1e30])
        torch.arange(3,dtype=torch.int32)  torch.arange(3.0).half()  torch.tensor(4).expand(2,3)
        torch.tensor([0.5,1,2],requires_grad=True)
        torch.zeros(3,3).long()  torch.zeros(2,3,2)  torch.zeros(3,4,2)  [0,1,2]  numpy.arange(3)  0""",
    "start": """0  5  -(2**61)  2**62  2**63-2  2**63-1  2**63  -(2**63)  2**70  True  2.0  None  numpy.int64(5)  (1,2)
        (2,1)  (0,2**40)  (1,)  torch.tensor(5)  torch.tensor([5])  torch.tensor([5,1])  torch.tensor([[5,1]])
        torch.tensor([[5,1],[1,2]])  torch.tensor(5.0)  torch.tensor(5,dtype=torch.int32)  torch.tensor([2**63-1,0])
        torch.tensor([2**62,-(2**62)])  torch.arange(4)[::2]  torch.tensor(5,device="meta")
        type("Int",(int,),{})(7)""",
    "scale": NUMBER + "  numpy.float32(2)  torch.tensor(2.0)  type('Float',(float,),{})(2)",
    "alpha": NUMBER + """  numpy.float32(2)  torch.tensor(0.5)  torch.tensor([0.5])  torch.tensor([[0.5]])
        torch.tensor([0.5,1])  torch.tensor([])  torch.tensor(2)  torch.tensor(0.5,dtype=torch.float64)
        torch.tensor(0.5,dtype=torch.float16)  torch.tensor(float("nan"))  torch.tensor(-0.0)
        torch.tensor(0.5,requires_grad=True)  torch.nn.Parameter(torch.ones(1))  torch.arange(5.0)[3:4]""",
    "dropout": """0  0.0  -0.0  1  1.0  0.5  0.25  1e-9  1-1e-9  1.5  -0.1  float('nan')  True  False  '0.5'  None
        torch.tensor(0.5)""",
    "seed": """None  0  1  5  -1  2**63-1  2**63  -(2**63)  True  1.0  "1"  torch.tensor(5)  torch.tensor([5])
        torch.tensor([5,6])  torch.tensor(5.0)  torch.tensor(5,dtype=torch.int32)  torch.Generator().manual_seed(3)
        numpy.int64(5)  numpy.array(5)  numpy.uint64(5)""",
    "padding_mask": """None  torch.tensor([True,False,True])  torch.tensor([[True,False,True]])
        torch.tensor([[True,False,True],[False]*3])  torch.zeros(3).bool()  torch.ones(3).bool()  torch.zeros(3)
        torch.zeros(2).bool()  torch.ones(2,1).bool()  torch.ones(3,3).bool()  torch.ones(2,3,4).bool()
        torch.tensor([[True],[False]]).expand(2,3)  [True,False,True]  True""",
    "seq_dim": "-2  -1  0  1  2  3  -3  -4  2**70  True  False  0.0  None  numpy.int64(0)  type('Int',(int,),{})(0)",
    "channel_dim": "-1  -2  0  1  2  3  -3  2**70  True  2.0  None  numpy.int64(1)",
    "grid_shape": """None  (3,4)  [3,4]  (4,3)  [4,3]  (2,6)  (3,)  3  (3.0,4)  (True,3)  (0,3)  (-1,3)  (2**70,1)
        torch.Size((3,4))  numpy.array([3,4])""",
    "extra_tokens": "0  1  2  3  4  -1  2**70  True  False  1.0  None  numpy.int64(1)",
    "out": """None  torch.zeros(2,3,8)  torch.zeros(2,8,3).mT  torch.zeros(2,3,9)[...,:8]
        torch.zeros(1,3,8).expand(2,3,8)  torch.zeros(2,3,8,dtype=torch.float64)  torch.zeros(3,8,dtype=torch.float16)
        torch.zeros(2,3,8,requires_grad=True)  x  x.view(2,3,8)  x.mT.contiguous().mT  torch.cat([x,x])[1:3]
        x.flip(0)  torch.zeros(3,16)[:,::2]""",
    "length": """0  1  3  4  5  -1  True  3.0  2**40  2**70  None  (3,)  [3]  (3,4)  [4,3]  (3,0)  numpy.int64(3)
        torch.tensor(3)""",
    "dim": "None  8  16  7  0  -1  2**70  True  8.0  '8'  numpy.int64(8)",
    "dtype": """None  torch.float32  torch.float64  torch.float16  torch.bfloat16  torch.int64  torch.complex64
        'float32'  float  6  7""",
    "device": "None  'cpu'  torch.device('cpu')  'meta'  'cuda:99'  'nonsense'  0  1.0",
    "flatten": "True  False  0  1  None",
    "allow_16bit": "True  False  1  None",
    "padding_idx": "None  0  1  -1  5  -6  6  -7  2**70  True  1.0  numpy.int64(1)",
    "sparse": "True  False  0  1  None",
    "encode_padding": "True  False  0  None",
    "unknown": "1",
}  # fmt: skip
LISTS = "t.append(1)  t.reverse()  t.__setitem__(0,1)  t.clear()  t.__setitem__(0,True)"  # changed in place


def inference(t: Tensor) -> Tensor:
    with torch.inference_mode():
        return t.clone()


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append(str(function))
        return function(*args, **(kwargs or {}))


class FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


SEEN: list[str] = []  # the operators that a mode has seen


def _within(manager: Callable[[], Any]) -> Callable[..., Any]:
    def run(function: Callable[..., Any], arguments: Arguments) -> Any:
        with manager():
            return function(**arguments)

    return run


@contextlib.contextmanager
def _set(get: Callable[[], Any], change: Callable[[Any], object], value: Any) -> Iterator[None]:
    before = get()
    change(value)
    try:
        yield
    finally:
        change(before)


def _of_first(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Around a call as a function of its first tensor, or of a tensor that it does not use."""

    def run(function: Callable[..., Any], arguments: Arguments) -> Any:
        name = next((name for name, t in arguments.items() if isinstance(t, Tensor)), None)
        if name is None:
            return transform(lambda _: function(**arguments), torch.ones(2, 3))
        return transform(lambda t: function(**{**arguments, name: t}), arguments[name])

    return run


def _forward_mode(f: Callable[[Tensor], Tensor], t: Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(t, torch.ones_like(t)) if t.is_floating_point() else t
        return tuple(torch.autograd.forward_ad.unpack_dual(f(dual)))


def _fake(f: Callable[[Tensor], Tensor], t: Tensor) -> Any:
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return f(mode.from_tensor(t))


def _compiled(f: Callable[[Tensor], Tensor], t: Tensor) -> Any:
    torch._dynamo.reset()
    return torch.compile(f, backend="eager")(t)


AROUND: dict[str, Callable[[Callable[..., Any], Arguments], Any]] = {
    "nothing": lambda function, arguments: function(**arguments),
    "no_grad": _within(torch.no_grad),
    "inference_mode": _within(torch.inference_mode),
    "grad in no_grad": lambda function, arguments: torch.no_grad()(_within(torch.enable_grad))(function, arguments),
    "autocast": _within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "default dtype": _within(lambda: _set(torch.get_default_dtype, torch.set_default_dtype, torch.float64)),
    "default device": _within(lambda: _set(lambda: None, torch.set_default_device, "meta")),
    "device meta": _within(lambda: torch.device("meta")),
    "deterministic": _within(
        lambda: _set(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)
    ),
    "anomaly mode": _within(torch.autograd.detect_anomaly),
    "saved tensors": _within(lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 2)),
    "profiler": _within(lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])),
    "eager backend": _within(lambda: sinpe.use_backend("eager")),
    "dispatch mode": _within(DispatchMode),
    "function mode": _within(FunctionMode),
    "dual level": _within(torch.autograd.forward_ad.dual_level),
    "vmap": _of_first(lambda f, t: torch.func.vmap(f)(t)),
    "vmap outside": lambda function, arguments: torch.func.vmap(lambda t: function(**arguments) * t)(torch.ones(2)),
    "grad": _of_first(lambda f, t: torch.func.grad(lambda t: f(t).sum())(t)),
    "grad outside": lambda function, arguments: torch.func.grad(lambda t: (function(**arguments) * t).sum())(
        torch.ones(())
    ),
    "forward mode": _of_first(_forward_mode),
    "functionalize": _of_first(lambda f, t: torch.func.functionalize(f)(t)),
    "make_fx": _of_first(lambda f, t: make_fx(f)(t).code),
    "make_fx, pre_dispatch": _of_first(lambda f, t: make_fx(f, pre_dispatch=True)(t).code),
    "fake tensors": _of_first(_fake),
    "jit.trace": _of_first(lambda f, t: torch.jit.trace(f, t, check_trace=False)(t)),
    "compile": _of_first(_compiled),
}

# Modes that take long, only around these calls.
SLOW = "compile", "make_fx", "make_fx, pre_dispatch", "forward mode", "fake tensors", "jit.trace", "profiler"
WITH_SLOW = "add", "add_", "add, learned", "embed", "encode", "table"
Change = tuple[str, str]  # the argument that differs, "sizes" or "around"; how


def _split(text: str) -> list[str]:
    return re.split(r"\s{2,}", text.strip().replace("\n", "  "))


def changes_of(call: str) -> list[Change]:
    function, make = CALLS[call]
    names = [*inspect.signature(function).parameters, "unknown"]
    changes = [(name, change) for name, texts in VALUES.items() if name in names for change in _split(texts)]
    for name, value in make(Sizes()).items():
        if isinstance(value, Tensor):
            floats = value.is_floating_point()
            changes += [(name, text.rstrip("*")) for text in _split(TENSORS) if floats or text[-1] != "*"]
        if isinstance(value, list):
            changes += [(name, text) for text in _split(LISTS)]
    changes += [("sizes", name) for name in OTHER_SIZES]
    changes += [("around", name) for name in AROUND if name not in SLOW or call in WITH_SLOW]
    return [*dict.fromkeys(changes)]


def described(value: Any) -> Any:
    """All that can be observed of a value, as text."""
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    if not isinstance(value, Tensor):
        return str(value)
    t = value
    about = [type(t).__name__, t.dtype, t.device, t.requires_grad, t.is_leaf, t.grad_fn is not None, t.is_inference()]
    if t.layout == torch.strided and not t.is_nested:
        strides = [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size != 1]
        about += [tuple(t.shape), strides, t.storage_offset(), t.is_neg(), t.is_conj()]
    return " ".join(map(str, about)) + " " + bits(t)


def bits(t: Tensor) -> str:
    """A digest of the values of a tensor, "none" if it has none that can be read; all NaN are equal."""
    try:
        if t.is_sparse:
            return bits(t._indices()) + bits(t._values())
        if t.layout == torch.strided and not t.is_nested and t.device.type == "cpu":
            last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
            if t.numel() and (t.storage_offset() + last + 1) * t.itemsize > t.untyped_storage().nbytes():
                return "none"
        t = t.detach().resolve_neg().resolve_conj().contiguous().clone()
        if t.is_floating_point():
            t[t.isnan()] = torch.nan
        return hashlib.sha256(t.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:12]
    except (RuntimeError, TypeError, NotImplementedError, AttributeError):
        return "none"


def _error(error: Exception) -> str:
    """Its type and message, without addresses."""
    return f"{type(error).__name__}: " + re.sub("0x[0-9a-f]+|; fully_shard casts.*", "", str(error))


def ordinary(call: str) -> Arguments:
    return CALLS[call][1](Sizes())


def warm_up(call: str, arguments: Arguments) -> None:
    """Makes the ordinary call three times, at last with these arguments, whose values it leaves as they are."""
    function, make = CALLS[call]
    for given in (make(Sizes()), make(Sizes()), arguments):
        function(**given)
    for name, value in make(Sizes()).items():
        if isinstance(value, Tensor):
            arguments[name].data.copy_(value)


def changed(arguments: Arguments, name: str, text: str) -> Any:
    """The new value of an argument, made of the old ones."""
    return eval(text, globals(), {"x": arguments.get("x"), "t": arguments.get(name)})


def outcome(call: str, change: Change, is_warm: bool = False) -> Any:
    """What a call does, after the ordinary one or not."""
    name, how = change
    function, make = CALLS[call]
    try:
        arguments = make(OTHER_SIZES[how] if name == "sizes" else Sizes())
        if is_warm:
            warm_up(call, ordinary(call) if name == "sizes" else arguments)
        if name not in ("sizes", "around"):
            arguments[name] = changed(arguments, name, how)
    except Exception as error:
        return "no such call: " + _error(error)
    return outcome_of(function, arguments, AROUND[how if name == "around" else "nothing"])


def outcome_of(
    function: Callable[..., Any], arguments: Arguments, around: Callable[..., Any] = AROUND["nothing"]
) -> Any:
    """The result or the error, the arguments after the call, derivatives to the second order, the number of
    tensors saved for them (activation checkpointing may repeat a call in the other way), and the state of torch's
    generator."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    versions = {name: t._version for name, t in tensors.items() if not t.is_inference()}
    torch.manual_seed(11)
    SEEN.clear()
    found: dict[str, Any] = {}
    saved: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    result: Any = None
    try:
        with warnings.catch_warnings(), hooks:
            warnings.simplefilter("ignore")
            result = around(function, arguments)
        found["saved"] = len(saved)
        found["result"] = described(result)
        found["is"] = [name for name, t in tensors.items() if t is result]
    except Exception as error:
        found["error"] = _error(error)
    found["next"] = torch.rand((), device="cpu").item()
    found["operators"] = sorted(set(SEEN))
    found["arguments"] = {name: described(t) for name, t in tensors.items()}
    found["written"] = {name: tensors[name]._version - before for name, before in versions.items()}
    seed = arguments.get("seed")
    if isinstance(seed, torch.Generator):
        found["generator"] = bits(seed.get_state())
    if isinstance(result, Tensor) and result.requires_grad:
        try:
            leaves = {name: t for name, t in tensors.items() if t.is_leaf and t.requires_grad}
            grad = normal(*result.shape, seed=2).to(result.dtype)
            first = torch.autograd.grad(result * grad, leaves.values(), result, create_graph=True, allow_unused=True)
            found["gradients"] = dict(zip(leaves, map(described, first), strict=True))
            total = sum((t.double() ** 2).sum() for t in first if t is not None and t.requires_grad)
            second = torch.autograd.grad(total, leaves.values(), allow_unused=True) if first else ()
            found["second"] = [described(t) for t in second]
        except Exception as error:
            found["gradients"] = _error(error)
    return found


NOTHING: Change = "around", "nothing"
THOROUGH = pytest.mark.thorough("a part of the changes")
BEYOND_INT64 = "torch.tensor([2**63-1,0])"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [0, *(pytest.param(k, marks=THOROUGH) for k in range(1, 4))])
@pytest.mark.parametrize("call", CALLS)
def test_changed_call(call: str, part: int) -> None:
    """After the ordinary call, a second time, and the ordinary call after it: each does what it does if Python checks
    it."""
    wrong = []
    with use("checked"):
        unchanged = outcome(call, NOTHING)
    is_device = torch.ops.sinpe_ext.cpu_isa() == "emulated"
    for change in changes_of(call)[part::4]:
        if is_device and change == ("start", BEYOND_INT64):  # a value that the kernels of a device do not read
            continue
        with use("checked"):
            want = outcome(call, change)
        with sinpe.use_backend("compiled"):
            found = outcome(call, change, is_warm=True), outcome(call, change), outcome(call, NOTHING)
        if found != (want, want, unchanged):
            wrong.append((change, found, want, unchanged))
    assert wrong == []


# --------------------------------------------------------------------------------------- many kinds of calls in turn

EAGER_BITS = torch.float32, torch.bfloat16, torch.float16  # of which both backends have the same bits on the CPU
sizes = st.builds(Sizes, *(st.sampled_from(given) for given in ((1, 2, 3), (1, 2, 3, 5), (8, 16), EAGER_BITS)))


@st.composite
def changed_arguments(draw: st.DrawFn) -> tuple[str, Sizes, list[Change]]:
    """An ordinary call of any size, and up to two arguments with other values."""
    call = draw(st.sampled_from(sorted(CALLS)))
    changes = [change for change in changes_of(call) if change[0] in VALUES]
    return call, draw(sizes), draw(st.lists(st.sampled_from(changes), max_size=2))


def run(call: str, of: Sizes, changes: list[Change]) -> Any:
    """What both backends have in common."""
    function, make = CALLS[call]
    arguments = make(of)
    for name, text in changes:
        with contextlib.suppress(Exception):  # there is no such value
            arguments[name] = changed(arguments, name, text)
    found = outcome_of(function, arguments)
    found["written"] = {name for name, versions in found["written"].items() if versions}
    return found


@settings(max_examples=15)
@drawn(st.lists(changed_arguments(), min_size=1, max_size=40), st.integers(1, 3))
def test_calls_of_many_kinds(kinds: list[tuple[str, Sizes, list[Change]]], times: int) -> None:
    """Equal to those of the eager backend, which repeats nothing."""
    found = [run(*kind) for kind in kinds * times]
    with sinpe.use_backend("eager"):
        want = [run(*kind) for kind in kinds]
    for kind, one, other in zip(kinds * times, found, want * times, strict=True):
        assert one == other, kind


def test_more_kinds_than_are_kept() -> None:
    """In rotation, and in random order."""
    several = Sizes(), Sizes(batch=1), Sizes(3, 2), Sizes(dtype=torch.float16)
    kinds = [(call, of) for of in several for call in CALLS] + [("table", Sizes(channels=n)) for n in range(1, 140)]
    order = [*range(len(kinds))] * 2
    order += random.Random(0).choices(range(len(kinds)), k=len(kinds))
    found = [(at, run(*kinds[at], [])) for at in order]
    with sinpe.use_backend("eager"):
        want = [run(*kind, []) for kind in kinds]
    for at, one in found:
        assert one == want[at], kinds[at]


def with_seed(call: str) -> Arguments:
    """The arguments of an ordinary call, which draws no seed from torch's generator."""
    arguments = ordinary(call)
    return {**arguments, "seed": 3} if arguments.get("dropout") else arguments


def test_threads() -> None:
    """Each makes all calls, in an order of its own."""
    names, wrong = sorted(CALLS), []
    want = {name: bits(CALLS[name][0](**with_seed(name))) for name in names}

    def work(seed: int) -> None:
        order = random.Random(seed)
        for _ in range(10):
            for name in order.sample(names, len(names)):
                if bits(CALLS[name][0](**with_seed(name))) != want[name]:
                    wrong.append(name)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ------------------------------------------------------------------------------------------------ lifetime of tensors


@pytest.mark.parametrize("call", CALLS)
def test_no_tensor_is_kept(call: str) -> None:
    """Nor the result, also of a call that is differentiated."""
    function, make = CALLS[call]
    for differentiates in (False, True):
        gone = []
        for _ in range(4):
            arguments = make(Sizes())
            result = function(**arguments)
            if differentiates and result.requires_grad:
                result.sum().backward()
            tensors = [result, *(t for t in arguments.values() if isinstance(t, Tensor))]
            gone += [weakref.ref(t) for t in tensors]
            del arguments, result, tensors
        assert [alive for alive in (ref() for ref in gone) if alive is not None] == []


class Finalized:
    """A cycle of references, whose finalizer any garbage collection may run."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.run, self.cycle = run, self

    def __del__(self) -> None:
        self.run()


@contextlib.contextmanager
def collecting(allocations: int, finalizer: Callable[[], object]) -> Iterator[None]:
    """The finalizer is run after this number of allocations."""
    thresholds = gc.get_threshold()
    gc.disable()
    gc.collect()
    try:
        Finalized(finalizer)
        gc.set_threshold(allocations)
        gc.enable()
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
        gc.collect()  # not in a later test


@pytest.fixture(scope="module")
def few_objects() -> Iterator[None]:
    """Collections look only at the objects that these tests make, so that they are fast."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("call", CALLS)
def test_calls_during_a_call(call: str) -> None:
    """A finalizer that makes the same call and others."""
    function, make = CALLS[call]
    want, ran = outcome_of(function, make(Sizes())), 0

    def make_calls() -> None:
        nonlocal ran
        ran += during
        state = torch.get_rng_state()
        for other in (call, "add", "add, grid", "add, starts", "embed", "encode", "table"):
            warm_up(other, ordinary(other))
        torch.set_rng_state(state)

    for allocations in range(1, 30, 2):
        arguments, during = make(Sizes()), False
        torch.manual_seed(11)
        with collecting(allocations, make_calls):
            during = True
            result = function(**arguments)
            during = False
        assert described(result) == want["result"]
    assert ran


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "smaller": lambda t: t.data.resize_(1),
    "other memory": lambda t: t.set_(torch.zeros(2, 2, dtype=t.dtype)),
    "transposed": lambda t: t.transpose_(0, -1),
}


@pytest.mark.usefixtures("few_objects", "need_cpu_kernels")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("call", CALLS)
def test_tensor_that_changes_during_a_call(call: str, change: str) -> None:
    """The result is that of the tensor before or after, or there is an error."""
    function, errors = CALLS[call][0], (ValueError, RuntimeError, IndexError, TypeError)
    # Not `embed` with seq_dim: the order of its dropout mask is determined before ids change.
    is_checked = change == "other memory" and not ("embed" in call and "sequence first" in call)
    ways = {"repeated": range(1, 30, 4)} | ({"checked": range(1, 90, 4)} if is_checked else {})

    def attempt(name: str, allocations: int = 0, is_changed: bool = False) -> Any:
        arguments = with_seed(call)
        tensor, change_now = arguments[name], torch.no_grad()(CHANGES[change])
        try:
            if is_changed:
                change_now(tensor)
            with collecting(allocations, lambda: change_now(tensor)) if allocations else nullcontext():
                return bits(function(**arguments))
        except errors as error:
            return type(error).__name__

    for name in (name for name, value in ordinary(call).items() if isinstance(value, Tensor)):
        allowed = {attempt(name), attempt(name, is_changed=True), *(error.__name__ for error in errors)}
        is_written = name == "out" or call.startswith("add_")
        for way, places in ways.items():
            for allocations in places:
                with nullcontext() if way == "repeated" else use("checked"):
                    got = attempt(name, allocations)
                assert is_written or got in allowed, (name, way, allocations)


def test_tensor_that_another_thread_changes() -> None:
    """A repeated call reads it once. By `data`, which is set under the interpreter's lock: `set_` changes memory and
    sizes one by one without it. Between the steps of a call that is checked in Python, x may change, as in torch's.
    """
    small, large, x, stops = torch.zeros(1, 2, 8), torch.zeros(8, 200, 8), torch.zeros(1, 2, 8), threading.Event()

    def flip() -> None:
        while not stops.is_set():
            x.data = large
            x.data = small

    wants = [sinpe.add(t, PE) for t in (small, large)]
    thread = threading.Thread(target=flip)
    thread.start()
    try:
        with repetitions() as repeated:
            for _ in range(1000):
                with contextlib.suppress(ValueError, RuntimeError):
                    got = sinpe.add(x, PE)
                    assert not repeated[-1] or any(torch.equal(got, want) for want in wants)
        assert any(repeated)
    finally:
        stops.set()
        thread.join()


def test_change_between_forward_and_backward() -> None:
    """Is refused only where the value is needed: that of alpha for the gradient of positions."""
    for times in range(3):
        x, alpha = normal(2, 3, 8).requires_grad_() * 1, torch.tensor(0.5, requires_grad=True)
        positions = torch.arange(3.0, requires_grad=True)
        with repetitions() if times else nullcontext([True]) as repeated:
            both, every = sinpe.add(x, alpha=alpha), sinpe.add(x, alpha=alpha, positions=positions)
        assert all(repeated)
        with torch.no_grad():
            x.zero_(), alpha.zero_()
        want = sinpe.table(3, 8).expand(2, 3, 8).sum()
        torch.testing.assert_close(torch.autograd.grad(both.sum(), alpha)[0], want)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            every.sum().backward()


# ------------------------------------------------------------------------------------------------- refusals, launches


def warm(call: Callable[[], Any]) -> None:
    """Makes a call until it is repeated."""
    call()
    with repetitions() as repeated:
        call()
    assert repeated == [True]


def test_calls_that_are_never_repeated_replace_no_others() -> None:
    """Large calls under a profiler, which sees their operators, so that each is checked in Python."""
    warm(lambda: sinpe.add(normal(2, 3, 8), "t2t"))
    x = torch.ones(1, 9000, 8)
    with torch.profiler.profile() as profiler, repetitions() as repeated:
        for _ in range(200):
            sinpe.add(x, PE)
    assert not any(repeated) and any("sinpe_ext::add" in event.key for event in profiler.key_averages())
    with repetitions() as repeated:
        sinpe.add(normal(2, 3, 8), "t2t")
    assert repeated == [True]


@pytest.mark.usefixtures("need_cpu_kernels")
@pytest.mark.parametrize("learns", [False, True])
def test_refused_calls_draw_no_seed(learns: bool) -> None:
    weight, shifted = normal(9, 8).requires_grad_(learns), sinpe.Encoding(8, start=3)
    warm(lambda: sinpe.embed(torch.tensor([8, 0]), weight, dropout=0.5))
    more: Arguments = {"encoding": shifted, "dropout": 0.5, "extra_tokens": 1, "scale": 2.0}
    warm(lambda: sinpe.add_(normal(2, 3, 8), start=torch.tensor([0, 1]), **more))
    x, before = normal(2, 3, 8), torch.get_rng_state()
    for ids in (torch.tensor([9, 0]), torch.tensor([0, -1])):
        with pytest.raises(IndexError, match="ids"):
            sinpe.embed(ids, weight, dropout=0.5)
    for last in (2**63 - 1, 2**63 - 4):
        with pytest.raises(ValueError, match="start"):
            sinpe.add_(x, start=torch.tensor([0, last]), **more)
    assert torch.equal(x, normal(2, 3, 8)) and torch.equal(torch.get_rng_state(), before)


SHIFTED, SEQUENCE = sinpe.Encoding(8, start=-3), normal(2, 3, 8)
# A call that is repeated, and one with the same types of arguments that differs in what its guards compare.
GUARDED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "last start": (lambda: sinpe.add(SEQUENCE, PE, start=2), lambda: sinpe.add(SEQUENCE, PE, start=2**63 - 2)),
    "largest start": (lambda: sinpe.add(SEQUENCE, PE, start=2), lambda: sinpe.add(SEQUENCE, PE, start=2**63 - 1)),
    "least start": (
        lambda: sinpe.add(SEQUENCE, SHIFTED, start=2),
        lambda: sinpe.add(SEQUENCE, SHIFTED, start=-(2**63)),
    ),
    "more positions": (
        lambda: sinpe.add(SEQUENCE, PE, positions=torch.arange(3)),
        lambda: sinpe.add(SEQUENCE, PE, positions=torch.arange(4)),
    ),
    "more samples": (
        lambda: sinpe.add(SEQUENCE, PE, positions=whole(2, 3)),
        lambda: sinpe.add(SEQUENCE, PE, positions=whole(4, 3)),
    ),
    "order in memory": (lambda: sinpe.add(SEQUENCE), lambda: sinpe.add(normal(2, 8, 3).mT)),
    "rows that are no dimension": (
        lambda: sinpe.add(normal(2, 3, 8, 16)[..., ::2, :], GRID),
        lambda: sinpe.add(normal(2, 3, 9, 16)[..., :4, :], GRID),
    ),
}


@pytest.mark.parametrize("name", GUARDED)
def test_guards(name: str) -> None:
    ordinary, other = GUARDED[name]
    with use("checked"):
        want = outcome_of(other, {})
    warm(ordinary)
    assert outcome_of(other, {}) == want


def test_differentiable_result_has_no_gaps() -> None:
    """As `torch.empty_like(x)`, checked or repeated."""
    for x in (normal(2, 3, 16)[..., :8], normal(2, 6, 8)[:, ::2], normal(3, 2, 16).transpose(0, 1)[..., ::2]):
        for _ in range(2):
            got = sinpe.add(x.detach().requires_grad_(), PE, scale=3.0)
            assert got.stride() == torch.empty_like(x).stride()


def test_list_that_was_changed_in_place() -> None:
    x, lengths = normal(2, 12, 16), [3, 4]
    warm(lambda: sinpe.add(x, GRID, grid_shape=lengths))
    lengths.reverse()
    with use("checked"):
        want = sinpe.add(x, GRID, grid_shape=(4, 3))
    assert torch.equal(sinpe.add(x, GRID, grid_shape=lengths), want)


def test_memory_in_common_with_the_result() -> None:
    """Also only with the extra tokens."""
    made: dict[str, Callable[[Tensor], Tensor]] = {
        "positions": lambda row: row[:4],
        "padding_mask": lambda row: row.view(torch.uint8)[:4].view(torch.bool),
        "start": lambda row: row.view(torch.int64)[0],
        "alpha": lambda row: row[0],
    }
    for name, argument in made.items():
        x, apart = torch.zeros(6, 8), argument(torch.zeros(8))
        warm(lambda name=name, apart=apart: sinpe.add_(torch.zeros(6, 8), PE, extra_tokens=2, **{name: apart}))
        with pytest.raises(RuntimeError, match=f"{name}: expected memory apart"):
            sinpe.add_(x, PE, extra_tokens=2, **{name: argument(x[0])})
        assert not x.any()
    both = torch.zeros(96)
    warm(lambda: sinpe.add(normal(2, 3, 8), PE, out=torch.empty(2, 3, 8)))
    for first in (1, 8, 47):  # up to one element
        with pytest.raises(RuntimeError, match="out: expected"):
            sinpe.add(both[:48].view(2, 3, 8), PE, out=both[first : first + 48].view(2, 3, 8))


def test_context_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recognized by torch's attention, which it replaces; other replacements do not matter."""
    warm(lambda: sinpe.add(normal(2, 3, 8), PE))

    def attention() -> None: ...

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    for module, is_repeated in (("elsewhere", True), ("torch.distributed.tensor.experimental._attention", False)):
        attention.__module__ = module
        with repetitions() as repeated, contextlib.suppress(ValueError):  # which positions a rank has is not known
            sinpe.add(normal(2, 3, 8), PE)
        assert repeated == [is_repeated]


@pytest.mark.usefixtures("need_cpu_kernels")
def test_large_calls_let_other_threads_run() -> None:
    """Without Python's lock, which this thread would not release for a hundred seconds otherwise."""
    x, interval, ran, stop = torch.ones(8, 4096, 256), sys.getswitchinterval(), [0], threading.Event()
    warm(lambda: sinpe.add_(x))

    def count() -> None:
        while not stop.is_set():
            ran[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    sys.setswitchinterval(100.0)
    try:
        for _ in range(1000):
            before = ran[0]
            sinpe.add_(x)
            if ran[0] > before + 20:  # other functions of a call release it, too
                break
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert ran[0] > before + 20


class Kernels(ctypes.Structure):
    """The first fields of the struct in csrc/core/kernels.h; its last one is `run`."""

    _fields_ = (
        ("bytes", ctypes.c_int64),
        ("in_host_memory", ctypes.c_bool),
        ("max_elements", ctypes.c_int64),
        ("is_ready", ctypes.c_void_p),
    )


IS_READY = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int32)
RUN = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_int32] * 2, ctypes.c_void_p, ctypes.c_int32, *[ctypes.c_bool] * 2)
MESSAGE = ctypes.create_string_buffer(b"a kernel could not be launched")


@contextlib.contextmanager
def stand_in(in_host_memory: bool) -> Iterator[list[str]]:
    """Kernels, of a device if not in host memory, whose launch fails after the checks of its arguments; yields the
    calls of their functions, "is_ready", "check" and "run"."""
    original, calls = ctypes.CDLL(loader.resolve("cpu").library).sinpe_kernels, []
    original.restype = ctypes.c_void_p
    address = original()
    size = Kernels.from_address(address).bytes
    real = RUN(ctypes.c_void_p.from_address(address + size - 8).value)

    def run(op: int, device: int, operands: int, count: int, is_new: bool, check_only: bool) -> int | None:
        calls.append("check" if check_only else "run")
        return real(op, device, operands, count, is_new, True) or (None if check_only else ctypes.addressof(MESSAGE))

    memory = (ctypes.c_char * size).from_buffer_copy(ctypes.string_at(address, size))
    kernels, functions = Kernels.from_buffer(memory), (IS_READY(lambda device: not calls.append("is_ready")), RUN(run))
    kernels.in_host_memory = in_host_memory
    kernels.is_ready, last = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    ctypes.c_void_p.from_buffer(memory, size - 8).value = last
    module = loader.core_module()[0]
    module.set_kernels(1, ctypes.addressof(memory))
    try:
        yield calls
    finally:
        module.set_kernels(1, address)


def test_launch_that_fails() -> None:
    """Is made again in Python, unless a device has drawn a seed, of which Python would draw a second one."""
    x, dropout = torch.ones(1, 9000, 8), {"dropout": 0.5}
    want = sinpe.add(x, PE), sinpe.add(x, PE, seed=3, **dropout)
    warm(lambda: sinpe.add_(x.clone(), PE))
    warm(lambda: sinpe.add(x, PE, **dropout))
    for in_host_memory in (True, False):
        with stand_in(in_host_memory) as calls:
            for got in (sinpe.add(x, PE), sinpe.add_(x.clone(), PE)):
                assert torch.equal(got, want[0])
            assert torch.equal(sinpe.add(x, PE, seed=3, **dropout), want[1])
            assert calls == ["run"] * 3 if in_host_memory else ["is_ready", "run"] * 3
    with stand_in(in_host_memory=False), pytest.raises(RuntimeError, match="could not be launched"):
        sinpe.add(x, PE, **dropout)


def test_kernels_of_other_sources_are_refused() -> None:
    x = torch.ones(1, 9000, 8)
    warm(lambda: sinpe.add(x, PE))
    want, other = sinpe.add(x, PE), Kernels(bytes=8)
    loader.core_module()[0].set_kernels(1, ctypes.addressof(other))
    assert torch.equal(sinpe.add(x, PE), want)


def test_errors_where_memory_cannot_be_allocated() -> None:
    for _ in range(3):
        sinpe.table(8, 512)
    with pytest.raises(ValueError, match="length"):
        sinpe.table(2**52, 512)

"""Calls of the public functions that differ in one respect from an ordinary call, and all that can be observed of them.

An ordinary call has a name in CALLS. A change is an argument and an expression for its new value, in which `t` is the
old one; or the name of something that is done around the call, in AROUND. `fresh_outcomes` makes each call in a process
in which no other was made: this file is also the program of the process that it forks from.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import children
import numpy  # noqa: F401  for expressions
import torch
import torch.fx.experimental.symbolic_shapes  # takes seconds, see serve
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import sinpe_ext as sinpe

Arguments = dict[str, Any]
PE, EQUAL, GRID = sinpe.Encoding(8), sinpe.Encoding(8), sinpe.convention("mae2d", 16)


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
    "float16": Sizes(dtype=torch.float16),
    "large float16": Sizes(2, 1100, 64, torch.float16),
}


class Subclass(torch.Tensor):
    pass


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu").to(dtype)


def whole(*shape: int, below: int = 6) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(1), device="cpu")


# ------------------------------------------------------------------------------------------------- ordinary calls


def _data(s: Sizes, *shape: int) -> Tensor:
    return normal(*shape, dtype=s.dtype)


def _encoding(s: Sizes) -> sinpe.Encoding:
    return sinpe.Encoding(s.channels)


def _x(s: Sizes, **arguments: Any) -> Arguments:
    return {"x": normal(s.batch, s.rows, s.channels, dtype=s.dtype), **arguments}


def _embed(s: Sizes, **arguments: Any) -> Arguments:
    weight = arguments.pop("weight", lambda t: t)(normal(6, s.channels, dtype=s.dtype))
    return {"ids": whole(s.batch, s.rows), "weight": weight, **arguments}


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
        lambda s: _x(s, alpha=normal(1), start=5, encoding=_encoding(s), padding_mask=_mask(s.batch, s.rows)),
    ),
    "add, dropout": (sinpe.add, lambda s: _x(s, dropout=0.5, encoding="t2t")),
    "add, seed": (sinpe.add, lambda s: _x(s, dropout=0.5, seed=5, positions=normal(s.rows), alpha=2.0)),
    "add, extra tokens": (sinpe.add, lambda s: _x(s, extra_tokens=1, scale=2.0)),
    "add, sequence first": (
        sinpe.add,
        lambda s: {"x": _data(s, s.rows, s.batch, s.channels), "seq_dim": 0, "padding_mask": _mask(s.batch, s.rows)},
    ),
    "add, grid": (
        sinpe.add,
        lambda s: {"x": _data(s, s.batch, s.rows, 4, 2 * s.channels), "encoding": "mae2d", "start": (1, 2)},
    ),
    "add, flat grid": (
        sinpe.add,
        lambda s: {"x": _data(s, s.batch, s.rows * 4, 16), "encoding": GRID, "grid_shape": [s.rows, 4]},
    ),
    "add, channels first": (
        sinpe.add,
        lambda s: dict(x=_data(s, s.batch, 2 * s.channels, s.rows, 4), encoding="mae2d", channel_dim=1, dropout=0.5),
    ),
    "add, learned x": (sinpe.add, lambda s: {"x": _learned(_data(s, s.batch, s.rows, s.channels)), "scale": 3.0}),
    "add, learned": (
        sinpe.add,
        lambda s: {
            "x": _learned(_data(s, s.batch, s.rows, s.channels)),
            "alpha": _learned(normal(1, dtype=_acc(s))),
            "positions": _learned(normal(s.batch, s.rows)),
            "dropout": 0.25,
        },
    ),
    "add_": (sinpe.add_, lambda s: _x(s, encoding=_encoding(s))),
    "add_, mask": (sinpe.add_, lambda s: _x(s, padding_mask=_mask(s.rows), start=3, dropout=0.5)),
    "add, out": (sinpe.add, lambda s: _x(s, out=torch.zeros(s.batch, s.rows, s.channels, dtype=s.dtype))),
    "embed": (sinpe.embed, lambda s: _embed(s, padding_idx=1)),
    "embed, rows": (
        sinpe.embed,
        lambda s: _embed(s, start=torch.arange(s.batch), padding_mask=_mask(s.batch, s.rows), alpha=0.5),
    ),
    "embed, learned": (sinpe.embed, lambda s: _embed(s, weight=_learned, scale=8.0, padding_idx=-2)),
    "embed, dropout": (
        sinpe.embed,
        lambda s: _embed(s, weight=torch.nn.Parameter, dropout=0.5, positions=whole(s.rows), alpha=normal(1)),
    ),
    "encode": (
        sinpe.encode,
        lambda s: {"positions": whole(s.batch, s.rows), "encoding": _encoding(s), "dtype": s.dtype},
    ),
    "encode, name": (sinpe.encode, lambda s: {"positions": normal(s.rows), "encoding": "ddpm", "dim": s.channels}),
    "encode, learned": (sinpe.encode, lambda s: {"positions": _learned(normal(s.rows)), "dim": s.channels}),
    "encode, grid": (sinpe.encode, lambda s: {"positions": normal(s.batch, s.rows, 2), "encoding": GRID}),
    "table": (sinpe.table, lambda s: {"length": s.rows, "encoding": _encoding(s), "dtype": s.dtype}),
    "table, name": (sinpe.table, lambda s: {"length": s.rows, "encoding": "t2t", "dim": s.channels, "start": 3}),
    "table, out": (
        sinpe.table,
        lambda s: {"length": s.rows, "encoding": s.channels, "out": torch.zeros(s.rows, s.channels, dtype=s.dtype)},
    ),
    "table, grid": (sinpe.table, lambda s: {"length": [s.rows, 4], "encoding": GRID, "dtype": s.dtype}),
}

# ------------------------------------------------------------------------------------------------------- changes

# Of any tensor argument; those marked with a * are for floating-point ones.
TENSORS = """
t.double()  t.float()  t.half()  t.bfloat16()  t.long()  t.int()  t.short()  t.to(torch.uint8)  t.to(torch.uint64)
t.bool()  t.to(torch.complex64)  t+1  -t*  t*0*  t/0*  torch.full_like(t,-0.0)*
t.requires_grad_()*  t.requires_grad_()*1*  t.detach()  torch.nn.Parameter(t,requires_grad=False)
        torch.nn.Parameter(t)*
t.as_subclass(Subclass)  t.data  t.clone()
torch._neg_view(t)*  torch.complex(t,t).conj().imag*  torch._efficientzerotensor(t.shape,dtype=t.dtype)
torch._lazy_clone(t)  inference(t)  t.to("meta")  t.to_sparse()  torch.nested.as_nested_tensor(t)*
(t.untyped_storage().resize_(0),t)[1]  (t.untyped_storage().resize_(t.untyped_storage().nbytes()-1),t)[1]
t.mT.contiguous().mT  t.transpose(0,-1)  t.transpose(0,1)  t.flip(0)  t.repeat_interleave(2,-1)[...,::2]
torch.cat([t,t],-1)[...,:t.shape[-1]]  t[:1].expand(t.shape)  t[...,:1].expand(t.shape)
torch.cat([t.flatten()[:1],t.flatten()])[1:].view(t.shape)  t.as_strided(t.shape,t.stride())
torch.cat([t,t])  t[:1]  t[:,:1]  t[...,:1]  t[:0]  t[0]  t[None]  t[...,None]  t.squeeze()  t.flatten()
t.unsqueeze(-1).expand(*t.shape,2)  t[(None,)*14]
t.data.neg_()*  t.data.add_(t)  t.data.logical_not_()  t.data.fill_(float("nan"))*  t.data.fill_(0)
t.transpose_(0,-1)  t.squeeze_()  t.unsqueeze_(0)  t.resize_(1)  t.set_(t.clone())  t.set_(t[:1].clone())
(setattr(t,"data",t.double()),t)[1]*  (setattr(t,"data",t[...,:1].clone()),t)[1]
t.tolist()  t.detach().numpy()  None  3  object
"""
NUMBER = "0  1  -1  2.5  -2  0.0  -0.0  1e-30  1e300  float('inf')  float('nan')  10**400  True  '1'  None  1j"
VALUES = {  # of other arguments, or in place of a tensor
    "encoding": """None  8  16  7  0  -8  2**70  True  8.0  "t2t"  "paper"  "T2T"  "nonsense"  ""  "mae2d"
        "detr2d"  PE  EQUAL
        sinpe.Encoding(8,start=3)  sinpe.Encoding(8,start=2**62)  sinpe.Encoding(8,base=100)
        sinpe.Encoding(8,layout="sin_cos")
        sinpe.Encoding(8,angle="float32_exp")  sinpe.Encoding(16)  GRID  sinpe.convention("detr2d",16)
        sinpe.convention("t2t",8)
        sinpe.GridEncoding((PE,EQUAL))  sinpe.GridEncoding((PE,sinpe.Encoding(8,start=1)))  [8]
        type("Int",(int,),{})(8)
        type("Str",(str,),{})("t2t")  numpy.int64(8)  torch.tensor(8)""",
    "positions": """None  torch.arange(3)  torch.arange(6).view(2,3)  torch.arange(3)[None]  torch.arange(4)
        torch.arange(2)  torch.arange(1)
        torch.tensor([[1],[2]])  torch.tensor([0.5,float("nan"),-1e30])  torch.arange(3,dtype=torch.int32)
        torch.arange(3.0).half()
        torch.tensor([0.5,1,2],requires_grad=True)  torch.arange(3).double()  torch.tensor(4).expand(2,3)
        torch.zeros(3,3).long()
        torch.zeros(2,3,2)  torch.zeros(3,4,2)  [0,1,2]  range(3)  numpy.arange(3)  0""",
    "start": """0  5  -1  -(2**61)  2**62  2**63-2  2**63-1  2**63  -(2**63)  2**70  True  False  2.0  "1"  None
        numpy.int64(5)
        numpy.int32(5)  (1,2)  (2,1)  [1,2]  (0,2**40)  (1,)  (1,2,3)  torch.tensor(5)  torch.tensor([5])
        torch.tensor([5,1])
        torch.tensor([5,1,2])  torch.tensor([[5,1]])  torch.tensor([[5,1],[1,2]])  torch.tensor(5.0)
        torch.tensor(5,dtype=torch.int32)
        torch.tensor(True)  torch.tensor([2**63-1,0])  torch.tensor([2**62,-(2**62)])  torch.arange(4)[::2]
        torch.tensor(5,device="meta")
        type("Int",(int,),{})(7)""",
    "scale": NUMBER + "  numpy.float32(2)  torch.tensor(2.0)  type('Float',(float,),{})(2)",
    "alpha": NUMBER + """  numpy.float32(2)  torch.tensor(0.5)  torch.tensor([0.5])  torch.tensor([[0.5]])
        torch.tensor([0.5,1])  torch.tensor([])
        torch.tensor(2)  torch.tensor(0.5,dtype=torch.float64)  torch.tensor(0.5,dtype=torch.float16)
        torch.tensor(float("nan"))
        torch.tensor(-0.0)  torch.tensor(0.5,requires_grad=True)  torch.nn.Parameter(torch.ones(1))
        torch.arange(5.0)[3:4]""",
    "dropout": """0  0.0  -0.0  1  1.0  0.5  0.25  1e-9  1-1e-9  1.5  -0.1  float('nan')  True  False  '0.5'  None
        torch.tensor(0.5)""",
    "seed": """None  0  1  5  -1  2**63-1  2**63  -(2**63)  True  1.0  "1"  torch.tensor(5)  torch.tensor([5])
        torch.tensor([5,6])  torch.tensor(5.0)
        torch.tensor(5,dtype=torch.int32)  torch.Generator().manual_seed(3)  numpy.int64(5)""",
    "padding_mask": """None  torch.tensor([True,False,True])  torch.tensor([[True,False,True]])
        torch.tensor([[True,False,True],[False]*3])
        torch.zeros(3).bool()  torch.ones(3).bool()  torch.zeros(3)  torch.zeros(3).long()  torch.zeros(2).bool()
        torch.ones(2,1).bool()
        torch.ones(3,3).bool()  torch.ones(3,4).bool()  torch.ones(2,3,4).bool()
        torch.tensor([[True],[False]]).expand(2,3)  [True,False,True]
        True""",
    "seq_dim": "-2  -1  0  1  2  3  -3  -4  2**70  True  False  0.0  None  numpy.int64(0)  type('Int',(int,),{})(0)",
    "channel_dim": "-1  -2  0  1  2  3  -3  2**70  True  2.0  None  numpy.int64(1)",
    "grid_shape": """None  (3,4)  [3,4]  (4,3)  [4,3]  (12,1)  (1,3)  [1,3]  (2,6)  (3,)  3  (3,5)  (3.0,4)
        (True,3)  (0,3)  (-1,3)  (2**70,1)
        torch.Size((3,4))  numpy.array([3,4])""",
    "extra_tokens": "0  1  2  3  4  -1  2**70  True  False  1.0  None  numpy.int64(1)",
    "out": """None  torch.zeros(2,3,8)  torch.zeros(2,8,3).mT  torch.zeros(2,3,9)[...,:8]
        torch.zeros(1,3,8).expand(2,3,8)  torch.zeros(3,8)
        torch.zeros(2,3,8,dtype=torch.float64)  torch.zeros(3,8,dtype=torch.float16)
        torch.zeros(2,3,8,requires_grad=True)  x  x.view(2,3,8)
        x.detach()  x.mT.contiguous().mT  torch.cat([x,x])[1:3]  x.flip(0)  torch.zeros(3,16)[:,::2]""",
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


def _traced(f: Callable[[Tensor], Tensor], t: Tensor) -> Any:
    return torch.jit.trace(f, t, check_trace=False)(t)


AROUND: dict[str, Callable[[Callable[..., Any], Arguments], Any]] = {
    "nothing": lambda function, arguments: function(**arguments),
    "no_grad": _within(torch.no_grad),
    "inference_mode": _within(torch.inference_mode),
    "grad in no_grad": lambda function, arguments: torch.no_grad()(_within(torch.enable_grad))(function, arguments),
    "autocast": _within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "default dtype": _within(lambda: _set(torch.get_default_dtype, torch.set_default_dtype, torch.float64)),
    "default device": _within(lambda: _set(lambda: None, torch.set_default_device, "meta")),
    "device meta": _within(lambda: torch.device("meta")),
    "device cpu": _within(lambda: torch.device("cpu")),
    "1 thread": _within(lambda: _set(torch.get_num_threads, torch.set_num_threads, 1)),
    "deterministic": _within(
        lambda: _set(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)
    ),
    "anomaly mode": _within(torch.autograd.detect_anomaly),
    "saved tensors": _within(lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 2)),
    "profiler": _within(lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])),
    "eager backend": _within(lambda: sinpe.use_backend("eager")),
    "compiled backend": _within(lambda: sinpe.use_backend("compiled")),
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
    "jit.trace": _of_first(_traced),
    "compile": _of_first(_compiled),
}

COMPILED = "add", "add_", "embed", "encode", "table"  # calls that are compiled, which takes half a second each

Case = tuple[str, str, str]  # the ordinary call; the argument that differs, "sizes" or "around"; how


def _split(text: str) -> list[str]:
    return re.split(r"\s{2,}", text.strip().replace("\n", "  "))


def cases() -> list[Case]:
    made: list[Case] = []
    for call, (function, make) in CALLS.items():
        names = [*inspect.signature(function).parameters, "unknown"]
        changes = [(name, change) for name, texts in VALUES.items() if name in names for change in _split(texts)]
        for name, value in make(Sizes()).items():
            if isinstance(value, Tensor):
                floats = value.is_floating_point()
                changes += [(name, text.rstrip("*")) for text in _split(TENSORS) if floats or text[-1] != "*"]
            if isinstance(value, list):
                changes += [(name, text) for text in _split(LISTS)]
        changes += [("sizes", name) for name in OTHER_SIZES] + [
            ("around", name) for name in AROUND if name != "compile" or call in COMPILED
        ]
        made += [(call, *change) for change in dict.fromkeys(changes)]
    return sorted(made, key=lambda case: case[1] == "around")


# ------------------------------------------------------------------------------------------------------ outcomes


def described(value: Any) -> Any:
    """All that can be observed of a value, as text."""
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    if not isinstance(value, Tensor):
        return str(value)
    t = value
    about = [type(t).__name__, t.dtype, t.device, t.requires_grad, t.is_leaf, t.grad_fn is not None, t.is_inference()]
    if t.layout == torch.strided and not t.is_nested:
        about += [tuple(t.shape), t.stride(), t.storage_offset(), t.is_neg(), t.is_conj()]
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
    """Its type and message, without addresses, and without the advice for processes that have imported FSDP."""
    return f"{type(error).__name__}: " + re.sub("0x[0-9a-f]+|; fully_shard casts.*", "", str(error))


def ordinary(call: str) -> Arguments:
    return CALLS[call][1](Sizes())


def tensors_of(call: str) -> list[str]:
    return [name for name, value in ordinary(call).items() if isinstance(value, Tensor)]


def warm_up(call: str, arguments: Arguments) -> None:
    """Makes the ordinary call three times, at last with these arguments, whose values it leaves as they are."""
    function, make = CALLS[call]
    for given in (make(Sizes()), make(Sizes()), arguments):
        function(**given)
    for name, value in make(Sizes()).items():
        if isinstance(value, Tensor):
            arguments[name].data.copy_(value)


def change(arguments: Arguments, name: str, text: str) -> Any:
    """The new value of an argument, made of the old ones."""
    return eval(text, globals(), {"x": arguments.get("x"), "t": arguments.get(name)})


def outcome(case: Case, is_warm: bool = False) -> Any:
    """What a call does, after the ordinary one or not."""
    call, changed, how = case
    function, make = CALLS[call]
    try:
        arguments = make(OTHER_SIZES[how] if changed == "sizes" else Sizes())
        if is_warm:
            ordinary_arguments = ordinary(call) if changed == "sizes" else arguments
            warm_up(call, ordinary_arguments)
        if changed not in ("sizes", "around"):
            arguments[changed] = change(arguments, changed, how)
    except Exception as error:
        return "no such call: " + _error(error)
    return outcome_of(function, arguments, AROUND[how if changed == "around" else "nothing"])


def outcome_of(
    function: Callable[..., Any], arguments: Arguments, around: Callable[..., Any] = AROUND["nothing"]
) -> Any:
    """The result or the error, the arguments after the call, gradients, and the state of torch's generator."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    versions = {name: t._version for name, t in tensors.items() if not t.is_inference()}
    torch.manual_seed(11)
    SEEN.clear()
    found: dict[str, Any] = {}
    result: Any = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = around(function, arguments)
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
            result.backward(normal(*result.shape, seed=2).to(result.dtype))
            found["gradients"] = {name: described(t.grad) for name, t in tensors.items() if t.is_leaf}
        except Exception as error:
            found["gradients"] = _error(error)
    return found


class FreshProcesses:
    """A process in which nothing has been called, that forks one for each case."""

    def __init__(self) -> None:
        support = str(Path(__file__).parent)
        env = children.library_environment(PYTHONPATH=os.pathsep.join([support, str(children.REPOSITORY)]))
        self.process = subprocess.Popen(
            [sys.executable, __file__], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def outcome(self, case: Case) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(case), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def serve() -> None:
    sinpe.backend_info()  # loads the kernels
    for line in sys.stdin:
        case = tuple(json.loads(line))
        if case[1] == "around":
            importlib.import_module("torch._dynamo")  # takes seconds
        gc.freeze()  # keeps shared pages shared
        process = os.fork()
        if process == 0:
            print(json.dumps(outcome(case)), flush=True)
            os._exit(0)
        if status := os.waitpid(process, 0)[1]:
            print(json.dumps(f"ended with {status}"), flush=True)


if __name__ == "__main__":
    serve()

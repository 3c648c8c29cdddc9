"""Reads names, shapes and locations of tensors from the pickle of a checkpoint, without executing it.

`torch.load` allocates whatever sizes a pickle states, hashes its keys, executes its calls, and fails as a whole if one
object cannot be loaded. Here `pickletools` splits the pickle into opcodes; calls are recorded and not executed, and a
tensor is described by a few numbers until its values are read. So no class is imported, and tensors are found next to
and inside objects of any class. Time and memory are proportional to the size of the pickle: an object that is
referenced many times is neither copied nor searched again.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

MOST_OPCODES = 2**22  # 32 per tensor: 131072 tensors
MOST_AXES = 64
INT64 = 2**63
LONGEST_NAME = 200  # characters
MOST_NESTED = 1000  # levels of nested lists and dicts
MOST_ITEMS = 8  # items of a tuple that is a key, and of a dict of flags

# Known functions that do not return tensors: those of torch.load(weights_only=True), and more.
KNOWN_FUNCTIONS = (
    "_codecs.encode builtins.bytearray builtins.set builtins.complex __builtin__.bytearray __builtin__.set "
    "__builtin__.complex torch.device torch.serialization._get_layout"
).split()
# Keys that are left out of paths: the dict of an object and those of a module, so that names are as in a state dict.
OMITTED_KEYS = ("__dict__", "_parameters", "_buffers", "_modules")
KNOWN_MODULES = ("torch.nested.", "torch.distributed.", "torch._dynamo.decorators.", "numpy.")
PLAIN_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
UNSUPPORTED = {
    "torch._utils._rebuild_sparse_tensor": "sparse",
    "torch._utils._rebuild_qtensor": "quantized",
    "torch._utils._rebuild_nested_tensor": "nested",
    "torch._utils._rebuild_meta_tensor_no_storage": "on the meta device",
    "torch._utils._rebuild_wrapper_subclass": "of a subclass without a storage",
    "torch.nn.parameter.UninitializedParameter": "not initialized",
    "torch.nn.parameter.UninitializedBuffer": "not initialized",
    "numpy.core.multiarray._reconstruct": "a NumPy array in a pickle",
    "numpy._core.multiarray._reconstruct": "a NumPy array in a pickle",
}
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64", "UntypedStorage": "uint8", "QInt8Storage": "qint8", "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32", "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4",
}  # fmt: skip


class PickleError(Exception):
    """Raised for a damaged pickle; the message says what is wrong."""


class PickleTooLargeError(Exception):
    """Raised for a pickle of more than MOST_OPCODES opcodes, or too many bytes."""


class Global(NamedTuple):
    """A function or a class that a pickle names."""

    name: str


class Storage(NamedTuple):
    """A storage that a pickle refers to."""

    dtype: str
    key: str | int
    numel: int
    offset: int = 0  # elements: a storage that is a view of another (before PyTorch 1.6)


class Stored(NamedTuple):
    """A strided tensor over a storage; its negative if `negative`."""

    storage: Storage
    dtype: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    negative: bool = False


class Unsupported(NamedTuple):
    """A tensor that cannot be read as rows, and the reason."""

    reason: str


class Pairs(list[tuple[Any, Any]]):
    """A dict as a list of (key, value). Its keys are not hashed, as they may be objects of any kind."""

    __slots__ = ()


class Listed(NamedTuple):
    """A dict that was created from a list of pairs, as Python 2 pickled an OrderedDict."""

    items: Any


class Object:
    """Any other object: the function or class that would create it, its arguments, and the state that is then set."""

    __slots__ = ("arguments", "content", "made_by")

    def __init__(self, made_by: str, arguments: tuple[Any, ...] = ()) -> None:
        self.made_by, self.arguments, self.content = made_by, arguments, Pairs()


class Content(NamedTuple):
    """The value of a pickle, the storages that it refers to, and the first unknown function that it calls, or ""."""

    value: Any
    storages: list[Storage]
    unknown: str


def read(file: BinaryIO) -> Content:
    """Reads one pickle from a file and returns its content. Raises PickleError, PickleTooLargeError."""
    storages: list[Storage] = []
    unknown: list[str] = []
    try:
        value = _read(file, storages, unknown)
    except (PickleError, PickleTooLargeError):
        raise
    except Exception as error:  # for bytes that are not a pickle, pickletools may raise anything
        raise PickleError(f"{type(error).__name__}: {error}") from None
    return Content(value, storages, unknown[0] if unknown else "")


def _read(file: BinaryIO, storages: list[Storage], unknown: list[str]) -> Any:
    """Interprets the opcodes of a pickle without calls, and returns its value; appends to `storages` and `unknown`."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def pop(number: int) -> list[Any]:
        if not 0 < number <= len(stack) - (marks[-1] if marks else 0):
            raise PickleError("it takes more from its stack than there is")
        values = stack[-number:]
        del stack[-number:]
        return values

    def since_mark() -> list[Any]:
        at = marks.pop()
        values = stack[at:]
        del stack[at:]
        return values

    arg: Any
    for number, (opcode, arg, _) in enumerate(pickletools.genops(file)):
        name = opcode.name
        if number > MOST_OPCODES:
            raise PickleTooLargeError(f"a pickle of more than {MOST_OPCODES} opcodes")
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[arg] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[arg])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            parts = arg.split(" ", 1) if name == "GLOBAL" else pop(2)
            stack.append(Global(".".join(map(_text, parts))))
        elif name == "EMPTY_TUPLE":
            stack.append(())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(pop(int(name[-1]))))
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "LIST":
            stack.append(since_mark())
        elif name in ("APPEND", "APPENDS"):
            items = pop(1) if name == "APPEND" else since_mark()
            if type(stack[-1]) is list:
                stack[-1].extend(items)
            elif isinstance(stack[-1], Object):
                stack[-1].content.extend(enumerate(items, len(stack[-1].content)))
        elif name == "EMPTY_DICT":
            stack.append(Pairs())
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            items = pop(2) if name == "SETITEM" else since_mark()
            if name == "DICT":
                stack.append(Pairs())
            into = stack[-1].content if isinstance(stack[-1], Object) else stack[-1]
            if isinstance(into, Pairs):
                into.extend(zip(items[::2], items[1::2], strict=True))
        elif name in ("EMPTY_SET", "FROZENSET", "ADDITEMS"):
            if name != "EMPTY_SET":
                since_mark()
            if name != "ADDITEMS":
                stack.append(Object("set"))
        elif name in ("REDUCE", "NEWOBJ", "NEWOBJ_EX"):
            function, arguments = pop(3 if name == "NEWOBJ_EX" else 2)[:2]
            stack.append(_call(function, arguments, unknown))
        elif name == "BUILD":
            state = pop(1)[0]
            if isinstance(stack[-1], Object):  # the state is a __dict__, or a tuple of __dict__ and __slots__
                parts = state if type(state) is tuple and len(state) == 2 else (state,)
                stack[-1].content.extend((OMITTED_KEYS[0], part) for part in parts if type(part) is Pairs)
        elif name == "BINPERSID":
            persistent_id = pop(1)[0]
            if type(persistent_id) is tuple and persistent_id[:1] == ("module",):  # before PyTorch 1.6: a class
                stack.append(persistent_id[1])
            else:
                storages.append(_storage(persistent_id))
                stack.append(storages[-1])
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name in ("POP", "DUP"):
            value = pop(1)[0]
            stack.extend([value, value] if name == "DUP" else [])
        elif name == "POP_MARK":
            since_mark()
        elif name == "STOP":
            return pop(1)[0]
        elif opcode.stack_before or not opcode.stack_after:
            if name not in ("PROTO", "FRAME"):
                raise PickleError(f"its opcode {name} is none of a checkpoint")
        else:  # a number, a string or bytes
            stack.append(arg)
    raise PickleError("it has no end")


def _storage(persistent_id: Any) -> Storage:
    """The storage of a persistent id ("storage", type, key, device, numel[, (view key, offset, numel)])."""
    if type(persistent_id) is not tuple or len(persistent_id) not in (5, 6):
        raise PickleError("it refers to something that is no storage")
    kind, made_by, key, _, numel, *view = persistent_id
    dtype = STORAGES.get(made_by.name.rpartition(".")[2], made_by.name)
    offset = 0
    if view and view[0] is not None:
        _, offset, numel = view[0]
    named = type(key) is int or (type(key) is str and len(key) <= LONGEST_NAME)
    if kind not in ("storage", b"storage") or not named or not _are_lengths((numel, offset)):
        raise PickleError("it refers to something that is no storage")
    return Storage(dtype, key, numel, offset)


def _call(function: Any, arguments: Any, unknown: list[str]) -> Any:
    """The result of a call, as far as it matters for tensors, without executing it: a tensor, a dict or an Object."""
    if type(function) is not Global or type(arguments) is not tuple:
        raise PickleError("it calls something that is no function")
    name = function.name
    if name in ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"):
        return _tensor(*arguments)
    if name in ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"):
        return arguments[0]
    if name == "torch._tensor._rebuild_from_type_v2":
        inner, subclass, state = arguments[:3]
        if subclass.name in PLAIN_TENSORS and inner != function:
            return _call(inner, state, unknown)
        kind = subclass.name.rpartition(".")[2]
        return Unsupported("nested" if kind == "NestedTensor" else f"of the subclass {shortened(kind)}")
    if name in UNSUPPORTED:
        return Unsupported(UNSUPPORTED[name])
    if name.startswith("torch._utils._rebuild_"):
        return Unsupported("of a kind that has no rows in memory")
    if name in PLAIN_TENSORS or (name.startswith("torch.") and name.endswith("Tensor")):
        return Unsupported("saved by a version of PyTorch before 0.4")
    if name == "torch.Size":
        return arguments[0]
    if name in ("collections.OrderedDict", "collections.Counter"):
        if not arguments:
            return Pairs()
        return arguments[0] if type(arguments[0]) is Pairs else Listed(arguments[0])
    if name == "_codecs.encode" and type(arguments[0]) is str and len(arguments[0]) <= LONGEST_NAME:
        return arguments[0].encode("latin1", "replace")  # bytes, which may be a key of a dict
    if name not in KNOWN_FUNCTIONS and not name.startswith(KNOWN_MODULES):
        unknown.append(name.removeprefix("builtins."))
    return Object(name, arguments)


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Stored | Unsupported:
    """A tensor. `rest` contains its dtype if the storage is untyped, and the flags of a lazy conjugate or negative."""
    known = type(storage) is Storage and type(size) is tuple and type(stride) is tuple
    if not known or len(size) != len(stride) or len(size) > MOST_AXES or not _are_lengths((offset, *size, *stride)):
        return Unsupported("damaged (its shape is not one)")
    dtypes = [value.name.removeprefix("torch.") for value in rest if type(value) is Global]
    flags = [key for value in rest if type(value) is Pairs and len(value) <= MOST_ITEMS for key, on in value if on]
    return Stored(storage, dtypes[0] if dtypes else storage.dtype, offset, size, stride, "neg" in flags)


def _are_lengths(values: tuple[Any, ...]) -> bool:
    """Whether all values are non-negative integers that fit into int64."""
    return all(type(value) is int and 0 <= value < INT64 for value in values)


def walk(value: Any) -> Iterator[tuple[str, Stored | Unsupported]]:
    """Yields the tensors in nested dicts and lists with their paths. Every dict and list is visited once, under its
    first path; for a later path that leads to tensors, one Unsupported is yielded."""
    if isinstance(value, (Stored, Unsupported)):
        yield "", value
    seen = {_identity(value)}
    held: set[int] = set()  # identities of the dicts and lists that contain tensors at any depth
    again: list[tuple[str, Any, int]] = []
    path = [("", _identity(value), _items(value))]
    while path:
        prefix, identity, items = path[-1]
        found = next(items, None)
        if found is None:
            path.pop()
            if path and identity in held:
                held.add(path[-1][1])
            continue
        key, item = found
        if isinstance(item, (Stored, Unsupported)):
            held.add(identity)
            yield joined(prefix, key), item
        elif isinstance(item, Object) and any(isinstance(value, (Stored, Unsupported)) for value in item.arguments):
            held.add(identity)
            kind = item.made_by.rpartition(".")[2]
            yield joined(prefix, key), Unsupported(f"inside of an object that is not made ({shortened(kind)})")
        elif type(item) in (Pairs, Listed, Object, list, tuple) and item:
            inner = _identity(item)
            if inner in seen:
                again.append((prefix, key, inner))
            elif len(path) < MOST_NESTED:
                seen.add(inner)
                path.append(
                    (prefix if type(key) is str and key in OMITTED_KEYS else joined(prefix, key), inner, _items(item))
                )
            else:
                yield joined(prefix, key), Unsupported(f"nested deeper than {MOST_NESTED} lists")
    for prefix, key, identity in again:
        if identity in held:
            yield joined(prefix, key), Unsupported("in a list or dict that has another name as well")


def _identity(value: Any) -> int:
    """The id of a value, the same for a list and the dict that was created from it."""
    return id(value.items if type(value) is Listed else value)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """The (key, value) pairs of a dict, the state of an object, or a list or tuple (by index)."""
    if type(value) is Pairs:
        return iter(value)
    if type(value) is Object:
        return iter(value.content)
    if type(value) is Listed and type(value.items) in (list, tuple):
        return ((item[0], item[1]) for item in value.items if type(item) in (list, tuple) and len(item) == 2)
    return iter(enumerate(value)) if type(value) in (list, tuple) else iter(())


def joined(prefix: str, key: Any) -> str:
    """The path of a key below a prefix, shortened."""
    name = _text(key)
    return shortened(f"{prefix}.{name}" if prefix else name)


def shortened(name: str) -> str:
    """A name, with its middle replaced by "..." if it is long."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}...{name[-half:]}"


def _text(key: Any) -> str:
    """A key of a dict as text: str() of simple keys, a shortened form or the type of others."""
    if isinstance(key, str):
        return shortened(key)
    if isinstance(key, Global):
        return key.name
    if type(key) is tuple and len(key) <= MOST_ITEMS and not any(type(item) is tuple for item in key):
        shown = [repr(_text(item)) if isinstance(item, str) else _text(item) for item in key]
        return f"({', '.join(shown)}{',' if len(key) == 1 else ''})"
    if isinstance(key, bytes):
        return _text(repr(key[:LONGEST_NAME]))
    if key is None or isinstance(key, (bool, float)) or (isinstance(key, int) and -INT64 < key < INT64):
        return str(key)
    return f"<{type(key).__name__}>"

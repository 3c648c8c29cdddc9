"""Reads the tensors of a checkpoint or array file with the library that writes it: torch.load, safetensors, NumPy.

No class or function that a checkpoint names is imported, except those that tensors are made of; any other object is
replaced by one without behavior, whose state is searched for tensors.
"""

from __future__ import annotations

import contextlib
import pickle
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HEAD = 32  # bytes at the start of a file that determine its format
NUMPY, ZIP, PICKLE, LFS = b"\x93NUMPY", b"PK", b"\x80", b"version https://git-lfs"
LONGEST_LINE = 160
SAFETENSORS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # others are no tables
# Keys that are left out of names: the dict of an object and those of a module, so that names are as in a state dict.
OMITTED_KEYS = ("_parameters", "_buffers", "_modules")


class IdentifyError(Exception):
    """Raised for a file that cannot be read; the message is one printable line."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class SkipError(Exception):
    """Raised for a tensor that is skipped; the message is the reason, as it is printed after "was skipped:"."""


@dataclass(frozen=True)
class Entry:
    """A tensor of a file.

    Attributes:
        name, shape, dtype: of the tensor; shape and dtype are unknown for a skipped one.
        load: function that reads the tensor.
        skipped: why the tensor cannot be read; "" if it can.
        same: a value that is equal for entries that share their elements.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    load: Callable[[], Any] = lambda: None
    skipped: str = ""
    same: object = None


def printable(text: str) -> str:
    """A text with unprintable characters escaped: control characters, line breaks, direction marks, lone surrogates."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def first_line(error: BaseException) -> str:
    """The first line of an error, shortened."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0].strip()
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 3] + "..."


@contextlib.contextmanager
def entries(path: Path) -> Iterator[Iterator[Entry]]:
    """Opens a file and yields an iterator over its tensors. Raises IdentifyError if the file cannot be read."""
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn of files that they can read
        reader, kind = _format(path)
        try:
            found = reader(path, stack)
        except IdentifyError:
            raise
        except ImportError as error:
            what = error.name or "a library"
            raise IdentifyError(f"{path.name}: expected {what} to read it with; run `pip install {what}`") from None
        except Exception as error:  # of a damaged file, a library may raise anything
            raise IdentifyError(
                f"{path.name}: expected {kind}, got one that cannot be read ({first_line(error)}); save it again"
            ) from None
        yield found


def _format(path: Path) -> tuple[Callable[[Path, contextlib.ExitStack], Iterator[Entry]], str]:
    """The function that reads a file, and its format by the first bytes. Raises IdentifyError."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise IdentifyError(f"file: expected one to read, got {path}, which is a directory or device; pass a file")
        with open(path, "rb") as file:
            head = file.read(HEAD)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise IdentifyError(f"file: expected one to read, got {path} ({why}); pass its path") from None
    if not head:
        raise IdentifyError(f"{path.name}: expected a checkpoint or an array, got an empty file; fetch it again")
    if head.startswith(LFS):
        raise IdentifyError(
            f"{path.name}: expected a checkpoint or an array, got a git-lfs pointer, not the file: run git lfs pull"
        )
    if head.startswith(NUMPY):
        return _of_numpy, "an array of numpy.save"
    if head.startswith(ZIP):
        if not zipfile.is_zipfile(path):
            raise IdentifyError(f"{path.name}: expected a whole file, got one that was cut short; fetch it again")
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if names and all(name.endswith(".npy") for name in names):
            return _of_numpy, "an archive of numpy.savez"
        if any(name.endswith("/data.pkl") for name in names) and not any("/constants.pkl" in name for name in names):
            return _of_torch, "a checkpoint of torch.save"
    elif head.startswith(PICKLE):
        return _of_torch, "a checkpoint of torch.save"
    elif path.suffix == ".safetensors" or head[8:9] == b"{":
        return _of_safetensors, "a safetensors file"
    raise IdentifyError(
        f"{path.name}: expected a file of torch.save, safetensors or numpy.save, got none of them (it begins with "
        f"{head[:8]!r}); pass a checkpoint or an array"
    )


def _of_numpy(path: Path, stack: contextlib.ExitStack) -> Iterator[Entry]:
    """The array of an .npy file, memory-mapped, or those of an .npz archive, each read when it is reached."""
    import numpy

    found = numpy.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(found, numpy.ndarray):
        return iter([_of_array("", found)])
    archive = stack.enter_context(found)
    return (_member(archive, name) for name in archive.files)


def _member(archive: Any, name: str) -> Entry:
    """The array of this name in an .npz archive."""
    try:
        return _of_array(name, archive[name])
    except Exception as error:  # from zipfile, zlib and NumPy
        return Entry(name, skipped=f"{type(error).__name__}: {first_line(error)}")


def _of_array(name: str, array: Any) -> Entry:
    """The entry of a NumPy array."""
    import torch

    native = array.dtype.newbyteorder("=")

    def load() -> Any:
        values = array if array.dtype.isnative else array.astype(native)
        with contextlib.suppress(TypeError, ValueError):  # a dtype or a layout that torch does not support
            return torch.from_numpy(values)
        return values

    return Entry(name, tuple(array.shape), native.name, load)


def _of_safetensors(path: Path, stack: contextlib.ExitStack) -> Iterator[Entry]:
    """The tensors of a safetensors file, each read when it is examined."""
    from safetensors import safe_open

    file = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
    parts = [(name, file.get_slice(name)) for name in file.keys()]
    return (
        Entry(name, tuple(part.get_shape()), SAFETENSORS.get(part.get_dtype(), part.get_dtype()),
              partial(file.get_tensor, name))
        for name, part in parts
    )  # fmt: skip


def _of_torch(path: Path, stack: contextlib.ExitStack) -> Iterator[Entry]:
    """The tensors of a checkpoint of torch.save, memory-mapped unless it is of a version before 1.6."""
    import torch

    restricted: Any = types.ModuleType("restricted")  # in place of the module pickle
    restricted.Unpickler = _Unpickler
    restricted.load = lambda file, **settings: _Unpickler(file, **settings).load()
    mapped = zipfile.is_zipfile(path)
    value = torch.load(path, map_location="cpu", mmap=mapped, weights_only=False, pickle_module=restricted)
    return _walk(value)


class _Object:
    """Stands for an object of a class that is not imported: its state, and its items if it is a list or a dict."""

    content: dict[Any, Any]
    dump_patches = False  # torch.load asks for it: no difference of sources is to be written to a file

    def __new__(cls, *arguments: Any, **named: Any) -> _Object:
        made = object.__new__(cls)
        made.content = {}
        return made

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):  # its __dict__, or also its __slots__
            if isinstance(part, dict):
                self.content.update(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.content[key] = value

    def append(self, value: Any) -> None:
        self.content[len(self.content)] = value

    def extend(self, values: Any) -> None:
        self.content.update(enumerate(values, len(self.content)))


class _NoRows(_Object):
    """Stands for a tensor of another kind than a dense one: sparse, nested, quantized, of a subclass."""


class _Unpickler(pickle.Unpickler):
    """Imports only what dense tensors and their dicts are made of."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if f"{module}.{name}" in ALLOWED or (
            module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.layout))
        ):
            return super().find_class(module, name)
        if f"{module}.{name}" == "torch._tensor._rebuild_from_type_v2":
            return _without_attributes
        return _NoRows if module == "torch._utils" else _Object


ALLOWED = (
    "collections.OrderedDict collections.Counter torch.Size torch.device torch.nn.parameter.Parameter "
    "torch.nn.parameter.Buffer torch.Tensor torch.UntypedStorage torch.storage.UntypedStorage _codecs.encode"
).split()
ALLOWED += [f"torch._utils._rebuild_{kind}" for kind in ("tensor", "tensor_v2", "tensor_v3")]
ALLOWED += [f"torch._utils._rebuild_{kind}" for kind in ("parameter", "parameter_with_state")]


def _without_attributes(function: Callable[..., Any], kind: Any, arguments: tuple[Any, ...], state: Any) -> Any:
    """A tensor with Python attributes, or of a subclass."""
    return function(*arguments) if kind is not _Object else _NoRows()


def _walk(value: Any) -> Iterator[Entry]:
    """The tensors in nested dicts, lists and objects with their paths, each container under its first path."""
    import torch

    seen: set[int] = set()
    left = [("", value)]
    while left:
        name, item = left.pop()
        if isinstance(item, torch.Tensor):
            yield _of_tensor(name, item)
        elif isinstance(item, _NoRows):
            yield Entry(name, skipped="no dense tensor")
        elif isinstance(item, (dict, list, tuple, _Object)) and id(item) not in seen:
            seen.add(id(item))
            content = item.content if isinstance(item, _Object) else item
            pairs = content.items() if isinstance(content, dict) else enumerate(content)
            inner = [
                (name if key in OMITTED_KEYS else f"{name}.{key}" if name else str(key), one) for key, one in pairs
            ]
            left += reversed(inner)


def _of_tensor(name: str, tensor: Any) -> Entry:
    """The entry of a tensor of torch.load."""
    if tensor.is_meta:
        return Entry(name, skipped="on the meta device")
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    same = (tensor.data_ptr(), shape, tensor.stride(), dtype)
    return Entry(name, shape, dtype, lambda: tensor.detach(), same=same)

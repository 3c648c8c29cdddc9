"""Reads the tensors of a checkpoint or array file with the library that writes it: torch.load, safetensors, NumPy.

Checkpoints are loaded with weights_only=True, so no class or function that they name is imported. In place of an object
of another class than torch allows stands a dict without behavior, which is searched for tensors.
"""

from __future__ import annotations

import contextlib
import pickle
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HEAD = 32  # bytes at the start of a file that determine its format
NUMPY, ZIP, PICKLE, LFS = b"\x93NUMPY", b"PK\3\4", b"\x80", b"version https://git-lfs"
LONGEST_LINE = 160
LONGEST_NAME = 200
SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}  # fmt: skip
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
        try:
            reader = _reader(path)
            tensors = reader(path, stack)
        except IdentifyError:
            raise
        except ImportError as error:
            what = error.name or "a library"
            raise IdentifyError(f"{path.name}: expected {what} to read it with; run `pip install {what}`") from None
        except Exception as error:  # of a damaged file, a library may raise anything
            raise IdentifyError(
                f"{path.name}: expected a file of torch.save, safetensors or numpy.save, got one that cannot be read "
                f"({first_line(error)}); save the state_dict() or the array alone"
            ) from None
        yield tensors


def _reader(path: Path) -> Callable[[Path, contextlib.ExitStack], Iterator[Entry]]:
    """The function that reads a file, by its first bytes. Raises IdentifyError for a file of another format."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise IdentifyError(f"file: expected one to read, got {path}, which is a directory or device; pass a file")
        size = path.stat().st_size
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
    header = int.from_bytes(head[:8], "little")
    if path.suffix == ".safetensors" or (head[8:9] == b"{" and header + 8 <= size):
        return _of_safetensors
    if head.startswith(NUMPY):
        return _of_numpy
    if head.startswith(ZIP):
        if not zipfile.is_zipfile(path):
            raise IdentifyError(f"{path.name}: expected a whole file, got one that was cut short; fetch it again")
        with zipfile.ZipFile(path) as archive:
            return _of_numpy if all(name.endswith(".npy") for name in archive.namelist()) else _of_torch
    if head.startswith(PICKLE):
        return _of_torch
    raise IdentifyError(
        f"{path.name}: expected a file of torch.save, safetensors or numpy.save, got none of them (it begins with "
        f"{head[:8]!r}); pass a checkpoint or an array"
    )


def _of_numpy(path: Path, stack: contextlib.ExitStack) -> Iterator[Entry]:
    """The array of an .npy file, memory-mapped, or those of an .npz archive, read when they are examined."""
    import numpy

    loaded = numpy.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(loaded, numpy.ndarray):
        return iter([_of_array("", loaded, lambda: loaded)])
    archive = stack.enter_context(loaded)
    return (_member(archive, name) for name in archive.files)


def _member(archive: Any, name: str) -> Entry:
    """The array of this name in an .npz archive."""
    try:
        return _of_array(_shortened(name), archive[name], lambda: archive[name])
    except Exception as error:  # from zipfile, zlib and NumPy
        return Entry(_shortened(name), skipped=f"{type(error).__name__}: {first_line(error)}")


def _of_array(name: str, array: Any, read: Callable[[], Any]) -> Entry:
    """The entry of a NumPy array, which `read` returns again."""
    import torch

    native = array.dtype.newbyteorder("=")

    def load() -> Any:
        values = read().astype(native, copy=False)
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
        Entry(_shortened(name), tuple(part.get_shape()), SAFETENSORS.get(part.get_dtype(), part.get_dtype()),
              partial(file.get_tensor, name))
        for name, part in parts
    )  # fmt: skip


def _of_torch(path: Path, stack: contextlib.ExitStack) -> Iterator[Entry]:
    """The tensors of a checkpoint of torch.save, memory-mapped if possible."""
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

    others, mapped = [], False
    if zipfile.is_zipfile(path):  # otherwise of a version before 1.6
        others = get_unsafe_globals_in_checkpoint(path)
        with zipfile.ZipFile(path) as archive:
            mapped = all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())
    stand_ins = [(_stand_in(name), name) for name in others]
    try:
        with safe_globals([*stand_ins, _StandIn]):
            return _walk(torch.load(path, map_location="cpu", mmap=mapped, weights_only=True))
    except pickle.UnpicklingError as error:  # the reason is behind torch's advice about weights_only
        text = str(error)
        _, marked, reason = text.partition("WeightsUnpickler error: ")
        raise ValueError(reason if marked else text.partition("\n")[2] or text) from None


class _StandIn:
    """In place of a class or a function: a call returns a dict of its arguments, whose `__dict__` receives a state."""

    def __new__(cls, *arguments: Any) -> Any:
        return OrderedDict(enumerate(arguments))  # of this type, torch accepts items and a state


class _StandInOfNumPy:
    """In place of NumPy's classes and functions, whose states are tuples of numbers."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _stand_in(name: str) -> Any:
    """What stands in place of the class or function of this name."""
    if name.endswith(".getattr"):  # of a class, for a class defined in it
        return lambda *arguments: _StandIn
    return _StandInOfNumPy if name.startswith("numpy.") else _StandIn


def _walk(value: Any) -> Iterator[Entry]:
    """The tensors in nested dicts, lists and objects with their paths, each container under its first path."""
    import torch

    seen: set[int] = set()
    left = [("", value)]
    while left:
        name, item = left.pop()
        if isinstance(item, torch.Tensor):
            yield _of_tensor(name, item)
        elif isinstance(item, (dict, list, tuple, set)) and id(item) not in seen:
            seen.add(id(item))
            pairs: list[tuple[Any, Any]] = list(item.items()) if isinstance(item, dict) else list(enumerate(item))
            pairs.extend(getattr(item, "__dict__", {}).items())
            left += reversed([(name if key in OMITTED_KEYS else _joined(name, key), one) for key, one in pairs])


def _joined(name: str, key: Any) -> str:
    """The path of a key below a path."""
    simple = (str, bytes, int, float, type(None))
    known = isinstance(key, simple) or (type(key) is tuple and all(isinstance(part, simple) for part in key))
    text = str(key) if known else f"<{type(key).__name__}>"
    return _shortened(f"{name}.{text}" if name else text)


def _shortened(name: str) -> str:
    """A name, with its middle replaced by "..." if it is long."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}...{name[-half:]}"


def _of_tensor(name: str, tensor: Any) -> Entry:
    """The entry of a tensor of torch.load."""
    import torch

    tensor = torch.Tensor.detach(tensor)  # without attributes of the file
    if tensor.is_meta or tensor.is_nested or tensor.is_quantized or tensor.layout is not torch.strided:
        return Entry(name, skipped="not a dense tensor with values")
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    return Entry(name, shape, dtype, lambda: tensor, same=(tensor.data_ptr(), shape, tensor.stride(), dtype))

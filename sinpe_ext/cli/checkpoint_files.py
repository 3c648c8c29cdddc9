"""Reads the tensors of a checkpoint or array file: all names, shapes and dtypes first, then the values one at a time.

Sizes are compared with the size of the file before anything is allocated. Tensors are memory-mapped if the format
allows it (.npy, .safetensors, .pt), so that only the examined rows of a large tensor are read.
"""

from __future__ import annotations

import contextlib
import io
import math
import mmap
import os
import stat
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from . import pickled

if TYPE_CHECKING:
    import torch

HEAD = 32  # bytes at the start of a file that determine its format
LFS = b"version https://git-lfs"
NUMPY, ZIP, PICKLE = b"\x93NUMPY", b"PK", b"\x80"
MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa85019")  # a number at the start of files written before PyTorch 1.6
# Bytes of the header with names and shapes, which is parsed as a whole: 130 bytes per tensor, over 100000 tensors.
LARGEST_HEADER = 2**24
LARGEST_PICKLE = 2**28  # bytes: a checkpoint may contain a vocabulary and NumPy arrays in addition to tensors
LARGEST_ARRAY = 2**29  # bytes of an array that is read because it cannot be mapped: compressed, big-endian, unaligned
MOST_TENSORS = 2**17  # per file
NPY_HEADER = 2**16  # bytes; NumPy itself refuses more than 10000
LONGEST_LINE = 160
SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2", "C64": "complex64",
    "BOOL": "bool", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8",
}  # fmt: skip


class IdentifyError(Exception):
    """Raised for a file that cannot be read; the message is one printable line."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class SkipError(Exception):
    """Raised for a tensor that is skipped; the message is the reason, as it is printed after "was skipped:"."""


@dataclass(frozen=True)
class Entry:
    """A tensor of a file.

    Fields:
        name, shape, dtype: of the tensor; shape and dtype are unknown for a skipped one.
        load: function that reads the tensor, or raises SkipError.
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
            opened = _opened(path, stack)
        except OSError as error:
            raise IdentifyError(f"file: expected one to read, got {path} ({error.strerror}); pass its path") from None
        yield _limited(opened)


def _limited(found: Iterator[Entry]) -> Iterator[Entry]:
    """The first MOST_TENSORS tensors, then a skipped one if there are more."""
    for number, entry in enumerate(found):
        if number == MOST_TENSORS:
            yield Entry(entry.name, skipped=f"behind the first {MOST_TENSORS} tensors, with all that follow")
            return
        yield entry


def _opened(path: Path, stack: contextlib.ExitStack) -> Iterator[Entry]:
    """The tensors of a file, whose format is determined by its first bytes. Raises IdentifyError."""
    file = stack.enter_context(_regular(path))
    size = os.fstat(file.fileno()).st_size
    head = file.read(HEAD)
    if not head:
        raise IdentifyError(f"{path.name}: expected a checkpoint or an array, got an empty file; fetch it again")
    if head.startswith(LFS):
        raise IdentifyError(
            f"{path.name}: expected a checkpoint or an array, got a git-lfs pointer, not the file: run git lfs pull"
        )
    if head.startswith(NUMPY):
        return _of_npy(path, file, size)
    if head.startswith(ZIP):
        return _of_zip(path, file, size, stack)
    if head.startswith(PICKLE) and MAGIC in head:
        return _of_legacy(path, file, size)
    header = int.from_bytes(head[:8], "little")
    if path.suffix == ".safetensors" or (head[8:9] == b"{" and header < 2**32):
        return _of_safetensors(path, header, size, stack)
    raise IdentifyError(
        f"{path.name}: expected a file of torch.save, safetensors or numpy.save, got none of them (it begins with "
        f"{head[:8]!r}); pass a checkpoint or an array"
    )


def _regular(path: Path) -> BinaryIO:
    """Opens a regular file. Anything else (a pipe, a device, a folder) is refused without blocking."""
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            descriptor = os.open(path, flags)  # it may have been replaced by a pipe in the meantime
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISREG(mode):
                return os.fdopen(descriptor, "rb")
            os.close(descriptor)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise IdentifyError(f"file: expected one to read, got {path} ({why}); pass its path") from None
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    raise IdentifyError(f"file: expected one to read, got {path}, which is {kind}; pass the path of a file")


# NumPy


def _numpy(path: Path) -> Any:
    """The module numpy. Raises IdentifyError if it is not installed."""
    try:
        import numpy
    except ImportError:
        raise IdentifyError(f"{path.name}: expected NumPy to read it with; run `pip install numpy`") from None
    return numpy


def _of_npy(path: Path, file: BinaryIO, size: int) -> Iterator[Entry]:
    """The array of an .npy file, memory-mapped."""
    numpy = _numpy(path)
    try:
        file.seek(0)
        if _npy_header(file, size)[1].hasobject:
            raise ValueError("object arrays, which it loads with allow_pickle=True alone")
        array = numpy.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # the header is a Python literal, whose parser may raise anything
        raise IdentifyError(
            f"{path.name}: expected arrays of numbers, got a file that NumPy refuses ({first_line(error)}); save the "
            "array alone with numpy.save"
        ) from None
    yield _of_array("", array.shape, array.dtype, lambda: array)


def _of_array(name: str, shape: tuple[int, ...], dtype: Any, load: Callable[[], Any]) -> Entry:
    """The entry of a NumPy array, which `load` reads."""
    if dtype.hasobject or dtype.kind == "V":
        return Entry(name, skipped="of objects or records, not numbers")
    return Entry(name, tuple(shape), dtype.newbyteorder("=").name, partial(_tensor_of, load, math.prod(shape), dtype))


def _tensor_of(load: Callable[[], Any], numel: int, dtype: Any) -> Any:
    """Loads an array as a tensor in native byte order; as an array if torch does not support its dtype."""
    import torch

    if not dtype.isnative:
        _check_size(numel * dtype.itemsize)
    array = load()
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    with contextlib.suppress(TypeError, ValueError):  # a dtype or a layout that torch does not support
        return torch.from_numpy(array)
    return array


def _check_size(nbytes: int) -> None:
    """Raises SkipError if an array that cannot be mapped is too large to be read."""
    if nbytes > LARGEST_ARRAY:
        raise SkipError(f"larger than {LARGEST_ARRAY >> 20} MiB, and its format has to be read whole")


def _of_npz(path: Path, archive: zipfile.ZipFile) -> Iterator[Entry]:
    """The arrays of an .npz archive."""
    _numpy(path)
    for info in archive.infolist():
        name = pickled.shortened(info.filename.removesuffix(".npy"))
        if not info.filename.endswith(".npy"):
            continue
        try:
            with _member(archive, info) as file:
                shape, dtype = _npy_header(file, info.file_size)
        except Exception as error:  # from zipfile, zlib, NumPy and the parser of the header
            yield Entry(name, skipped=_why(error))
            continue
        yield _of_array(name, shape, dtype, partial(_read_member, archive, info, math.prod(shape) * dtype.itemsize))


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> BinaryIO:
    """Opens a member of an archive. Raises SkipError for other compression methods than NumPy's and for encryption."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others cannot be unpacked in parts
        raise SkipError("compressed otherwise than NumPy does")
    if info.flag_bits & 1:
        raise SkipError("encrypted")
    return archive.open(info)  # type: ignore[return-value]


def _npy_header(file: BinaryIO, size: int) -> tuple[tuple[int, ...], Any]:
    """(shape, dtype) of an array from its header. Raises SkipError if it does not fit into a file of `size` bytes."""
    from numpy.lib import format as npy

    start = io.BytesIO(file.read(NPY_HEADER))
    version = npy.read_magic(start)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(start)
    else:
        shape, _, dtype = npy.read_array_header_2_0(start)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise SkipError("damaged (its header promises more than there is)")
    return shape, dtype


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, nbytes: int) -> Any:
    """Reads an array from an archive. Raises SkipError if it is too large."""
    from numpy.lib import format as npy

    _check_size(nbytes)
    with _member(archive, info) as file:
        return npy.read_array(file, allow_pickle=False)


# safetensors


def _of_safetensors(path: Path, header: int, size: int, stack: contextlib.ExitStack) -> Iterator[Entry]:
    """The tensors of a safetensors file."""
    try:
        from safetensors import safe_open
    except ImportError:
        raise IdentifyError(
            f"{path.name}: expected safetensors to read it with; run `pip install safetensors`"
        ) from None
    try:
        if LARGEST_HEADER < header <= size:
            raise ValueError(f"its header has {header} bytes, more than {LARGEST_HEADER}")
        file = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
        names = list(file.keys())
    except Exception as error:
        raise IdentifyError(
            f"{path.name}: expected a safetensors file, got one that its library refuses ({first_line(error)}); save "
            "it again"
        ) from None
    for name in names:
        shown = pickled.shortened(name)
        try:
            part = file.get_slice(name)
            shape, kind = part.get_shape(), part.get_dtype()
        except Exception as error:
            yield Entry(shown, skipped=_why(error))
            continue
        yield Entry(shown, tuple(shape), SAFETENSORS.get(kind, kind.lower()), partial(file.get_tensor, name))


# torch.save


def _of_zip(path: Path, file: BinaryIO, size: int, stack: contextlib.ExitStack) -> Iterator[Entry]:
    """The tensors of a zip archive written by torch.save, or the arrays of an .npz archive."""
    try:
        if not zipfile.is_zipfile(file):
            raise IdentifyError(
                f"{path.name}: expected a whole file, got one that was cut short (its archive has no end); fetch it "
                "again"
            )
        bounded = _Bounded(file)
        archive = stack.enter_context(zipfile.ZipFile(bounded))  # type: ignore[arg-type]
        bounded.limit = LARGEST_PICKLE
    except IdentifyError:
        raise
    except Exception as error:
        raise _damaged(path, error) from None
    names = archive.namelist()
    pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
    if not pickles and all(name.endswith(".npy") for name in names):
        return _of_npz(path, archive)
    if not pickles or any(name.endswith("/constants.pkl") for name in names):
        what = "an archive of TorchScript" if pickles else "an archive of other files"
        raise IdentifyError(
            f"{path.name}: expected a file of torch.save, safetensors or numpy.save, got none of them ({what}); pass "
            "a checkpoint or an array"
        )
    prefix = pickles[0].removesuffix("data.pkl")
    try:
        order = "little"
        if prefix + "byteorder" in names:
            with _member(archive, archive.getinfo(prefix + "byteorder")) as member:
                order = member.read(10).decode()
        if order not in ("little", "big"):
            raise ValueError(f"its byte order is {order!r}")
        info = archive.getinfo(pickles[0])
        if info.file_size > LARGEST_PICKLE:
            raise pickled.PickleTooLargeError(f"a pickle of {info.file_size} bytes")
        with _member(archive, info) as member:
            value = _unpickled(path, member).value
        bytes_of = _mapped(file, size)
    except IdentifyError:
        raise
    except Exception as error:
        raise _damaged(path, error) from None

    def place(key: str | int) -> tuple[int, int]:
        try:
            info = archive.getinfo(f"{prefix}data/{key}")
        except KeyError:
            raise SkipError("damaged (its values are not in the file)") from None
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise SkipError("compressed otherwise than torch.save does")
        local = bytes_of[info.header_offset : info.header_offset + 30]
        if len(local) < 30 or local[:4] != b"PK\3\4":
            raise SkipError("damaged (its values are not in the file)")
        names_and_extra = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        return info.header_offset + 30 + names_and_extra, info.file_size

    return _of_pickle(value, bytes_of, place, order)


class _Bounded(io.RawIOBase):
    """A file that refuses reads longer than a limit: zipfile reads the directory of an archive at once."""

    limit = LARGEST_HEADER

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def read(self, size: int = -1, /) -> bytes:
        data = self.file.read(self.limit + 1 if size < 0 else min(size, self.limit + 1))
        if len(data) > self.limit:
            raise ValueError(f"it is to be read in parts of more than {self.limit} bytes")
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def seekable(self) -> bool:
        return True


def _of_legacy(path: Path, file: BinaryIO, size: int) -> Iterator[Entry]:
    """The format of PyTorch before 1.6: five pickles, then the storages, each after its length."""
    try:
        bytes_of = _mapped(file, size)
        start = io.BytesIO(bytes_of[:LARGEST_PICKLE])
        for _ in range(3):  # magic number, version, sizes of the C types
            pickled.read(start)
        value, storages, _ = _unpickled(path, start)
        keys = pickled.read(start).value
        places: dict[str | int, tuple[int, int]] = {}
        sizes = {storage.key: _itemsize(storage.dtype) for storage in storages}
        at = start.tell()
        for key in keys if isinstance(keys, list) else ():
            if type(key) not in (str, int):
                break
            numel = int.from_bytes(bytes_of[at : at + 8], "little", signed=True)
            length = numel * sizes.get(key, 1)
            if not 0 <= length <= size - at - 8:
                break  # the file is truncated here; the storages before are complete
            places[key] = (at + 8, length)
            at += 8 + length
    except IdentifyError:
        raise
    except Exception as error:
        raise _damaged(path, error) from None

    def place(key: str | int) -> tuple[int, int]:
        if key not in places:
            raise SkipError("damaged (its values are not in the file)")
        return places[key]

    return _of_pickle(value, bytes_of, place, "little")


def _unpickled(path: Path, file: BinaryIO) -> pickled.Content:
    """The content of a pickle. Raises IdentifyError if it has no tensors but objects of unknown classes."""
    content = pickled.read(file)
    if content.unknown and next(pickled.walk(content.value), None) is None:
        raise IdentifyError(
            f"{path.name}: expected a checkpoint of tensors, got one that holds {pickled.shortened(content.unknown)} "
            "and no tensors, and is not loaded (it may run code); save the model's state_dict() with torch.save"
        )
    return content


def _damaged(path: Path, error: Exception) -> IdentifyError:
    """The IdentifyError for an exception while a checkpoint was read."""
    if isinstance(error, pickled.PickleTooLargeError):
        return IdentifyError(
            f"{path.name}: expected a checkpoint whose pickle has at most {LARGEST_PICKLE >> 20} MiB and "
            f"{pickled.MOST_OPCODES} opcodes, got {error}; save the model's state_dict() alone with torch.save"
        )
    return IdentifyError(
        f"{path.name}: expected a whole checkpoint of torch.save, got one that is damaged ({first_line(error)}); "
        "fetch it again"
    )


def _mapped(file: BinaryIO, size: int) -> mmap.mmap:
    """Maps a file into memory."""
    return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)  # closed when the last tensor over it is deleted


def _of_pickle(
    value: Any, bytes_of: mmap.mmap, place: Callable[[str | int], tuple[int, int]], order: str
) -> Iterator[Entry]:
    """The tensors of an unpickled checkpoint; place(key) is the offset and the number of bytes of a storage."""
    for name, item in pickled.walk(value):
        if isinstance(item, pickled.Unsupported):
            yield Entry(name, skipped=item.reason)
        else:
            load = partial(_stored_tensor, item, bytes_of, place, order)
            yield Entry(name, item.size, item.dtype, load, same=item)


def _stored_tensor(
    item: pickled.Stored, bytes_of: mmap.mmap, place: Callable[[str | int], tuple[int, int]], order: str
) -> torch.Tensor:
    """A tensor over the mapped file, or a copy if the bytes are unaligned or of another byte order."""
    import torch

    dtype = getattr(torch, item.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise SkipError(f"of type {item.dtype}")
    itemsize = dtype.itemsize
    first, nbytes = place(item.storage.key)
    offset = item.storage.offset * _itemsize(item.storage.dtype)
    numel = min(item.storage.numel * _itemsize(item.storage.dtype), nbytes - offset) // itemsize
    last = item.offset + sum((length - 1) * step for length, step in zip(item.size, item.stride, strict=True))
    if not math.prod(item.size):
        return torch.empty(item.size, dtype=dtype)
    if last >= numel:
        raise SkipError("damaged (it is larger than its storage)")
    swapped = order != sys.byteorder
    start = first + offset
    if swapped or start % itemsize:
        _check_size(numel * itemsize)
        flat = torch.frombuffer(bytearray(bytes_of[start : start + numel * itemsize]), dtype=dtype)
        if swapped:
            flat.untyped_storage().byteswap(dtype)
    else:
        flat = torch.frombuffer(bytes_of, dtype=dtype, count=numel, offset=start)
    tensor = flat.as_strided(item.size, item.stride, item.offset)
    return -tensor if item.negative else tensor


def _itemsize(dtype: str) -> int:
    """The bytes of an element; 1 for a dtype that torch does not have."""
    import torch

    found = getattr(torch, dtype, None)
    return found.itemsize if isinstance(found, torch.dtype) else 1


def _why(error: Exception) -> str:
    """The reason for which a tensor is skipped, from the exception that reading it raised."""
    return first_line(error) if isinstance(error, SkipError) else f"{type(error).__name__}: {first_line(error)}"

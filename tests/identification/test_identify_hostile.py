"""`python -m sinpe_ext identify` on malicious files: an answer within seconds and bounded memory, without a traceback;
other tensors in the file are still identified.
"""

from __future__ import annotations

import io
import json
import os
import socket
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from children import DEADLINE, execute
from process_support import needs_fork

import sinpe_ext as sinpe

SECONDS = 20  # CPU time per file; most take milliseconds
MEMORY = 2**31  # bytes of address space per file, in addition to the libraries and the file
PAPER = sinpe.table(100, 64)
NAMED = 'sinpe.convention("paper", 64)'

# Imports once, then handles each file in a child process with limited memory and time.
SERVER = """
import json, os, resource, signal, sys, time, traceback, warnings
warnings.simplefilter("ignore")
import numpy, torch
try:
    import safetensors
except ImportError:
    pass
import sinpe_ext as sinpe
from sinpe_ext import __main__ as cli, identification
from sinpe_ext.cli import identify
jobs, memory, seconds = json.load(sys.stdin)
results = {}
for name, arguments, encoding, folder in jobs:
    began, child = resource.getrusage(resource.RUSAGE_CHILDREN), os.fork()
    if not child:
        code = 70
        try:
            for number, end in ((1, "out"), (2, "err")):
                descriptor = os.open(f"{folder}/{end}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(descriptor, number)
            sys.stdout = open(1, "w", encoding=encoding, closefd=False)
            sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)
            if memory:
                memory += int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
                memory += 0 if isinstance(arguments, str) else os.stat(arguments[0]).st_size
                most = resource.getrlimit(resource.RLIMIT_AS)[1]
                memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
                resource.setrlimit(resource.RLIMIT_AS, (memory, most))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            signal.alarm(600)  # for one that waits
            if isinstance(arguments, str):
                print(sinpe.identify(eval(arguments)).reason)
                code = 0
            else:
                code = cli.main(["identify", *arguments])
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds_used = used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime
    results[name] = os.waitstatus_to_exitcode(status), seconds_used
json.dump(results, sys.stdout)
"""


class Case(NamedTuple):
    """A file and the expected output.

    code: 0 if a table next to the bad tensor must be found, 1 if there is none, 2 for a line on stderr.
    """

    write: Callable[[Path], Any]
    code: int
    said: str
    name: str = "a.pt"
    arguments: tuple[str, ...] = ()
    encoding: str = "utf-8"


# Pickles and archives


def text(value: str | bytes) -> bytes:
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def called(name: str, *arguments: bytes) -> bytes:
    module, _, attribute = name.rpartition(".")
    return f"c{module}\n{attribute}\n".encode() + b"(" + b"".join(arguments) + b"tR"


def tensor(key: str, numel: int, size: tuple[int, ...], stride: tuple[int, ...], legacy: bool = False) -> bytes:
    view = b"N" if legacy else b""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + number(numel) + view
    lengths = [b"(" + b"".join(map(number, values)) + b"t" for values in (size, stride)]
    empty = called("collections.OrderedDict")
    return called("torch._utils._rebuild_tensor_v2", storage + b"tQ", number(0), *lengths, b"\x89", empty)


TABLE = tensor("0", 6400, (100, 64), (64, 1))


def pickle(*items: tuple[bytes, bytes]) -> bytes:
    return b"\x80\x02}(" + b"".join(key + value for key, value in items) + b"u."


def checkpoint(content: bytes) -> Callable[[Path], None]:
    """A torch.save file with this pickle and the values of one table."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/data.pkl", content)
            archive.writestr("a/byteorder", sys.byteorder)
            archive.writestr("a/data/0", PAPER.numpy().tobytes())
            archive.writestr("a/version", "3\n")

    return write


def adding(value: bytes, key: bytes = text("x")) -> Callable[[Path], None]:
    return checkpoint(pickle((key, value), (text("pe"), TABLE)))


def legacy(content: bytes, keys: tuple[str, ...], *numbers: int) -> Callable[[Path], None]:
    """A file of PyTorch before 1.6: storages of these sizes, of which the first has data."""

    def write(path: Path) -> None:
        facts = b"\x80\x02}."
        head = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02M\xe9\x03." + facts + content
        listed = b"\x80\x02](" + b"".join(map(text, keys)) + b"e."
        storages = [struct.pack("<q", value) + PAPER.numpy().tobytes() for value in numbers]
        path.write_bytes(head + listed + b"".join(storages))

    return write


def saved(make: Callable[[], Any]) -> Callable[[Path], None]:
    return lambda path: torch.save({"x": make(), "pe": PAPER}, path)


def itself() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def doubled(value: Any = None) -> list[Any]:
    value = [value]
    for _ in range(40):
        value = [value, value]
    return value


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(2, 4)])


def same_twice(path: Path) -> None:
    state = {"pe": PAPER, "w": torch.zeros(3)}
    torch.save({"model": state, "ema": state, "tied": [PAPER, PAPER]}, path)


def strange_names(path: Path) -> None:
    names = ("a\x1b[31mb", "c\nd", "e\u202ef", "g\ud800h", "\u00fc", "i\x00j", "k" * 10000)
    torch.save(dict.fromkeys([*names, "\x1b]0;title\x07pe"], PAPER), path)


def packed(archive_name: str, start: bytes, promised: int | None = None) -> Callable[[Path], None]:
    """A 3 MB archive with one member that unpacks to 3 GiB of zeros after its start."""

    def write(path: Path) -> None:
        compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
        head = compressor.compress(start) + compressor.flush(zlib.Z_FULL_FLUSH)
        block = compressor.compress(bytes(2**24)) + compressor.flush(zlib.Z_FULL_FLUSH)
        data = head + block * 192 + compressor.flush()
        size = promised or 192 * 2**24 + len(start)
        name = archive_name.encode()
        fields = struct.pack("<HHHIII", 8, 0, 33, 0, len(data), size) + struct.pack("<HH", len(name), 0)
        local = b"PK\3\4" + struct.pack("<HH", 20, 0) + fields + name + data
        table = b"PK\1\2" + struct.pack("<HHH", 20, 20, 0) + fields + bytes(14) + name
        path.write_bytes(local + table + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(table), len(local), 0))

    return write


# Arrays


def header(shape: str, kind: str = "'<f4'", rest: str = "") -> bytes:
    said = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}{rest}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(said)) + said


def raw(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def array(value: numpy.ndarray) -> bytes:
    file = io.BytesIO()
    numpy.save(file, value, allow_pickle=True)
    return file.getvalue()


def members(**contents: bytes) -> Callable[[Path], None]:
    """A `.npz` with these files and a table."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(f"{name}.npy", content)
            archive.writestr("pe.npy", array(PAPER.numpy()))

    return write


def with_encrypted_member(path: Path) -> None:
    members(x=array(PAPER.numpy()))(path)
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)


def with_bzip2_member(path: Path) -> None:
    members()(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", array(numpy.zeros((100, 64), "f4")))


def with_two_of_a_name(path: Path) -> None:
    members()(path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("pe.npy", array(PAPER.numpy() * 2))


def tensors(said: dict[str, Any], data: bytes = PAPER.numpy().tobytes(), cut: int = 0) -> Callable[[Path], None]:
    """A safetensors file with this header."""
    content = json.dumps(said).encode("utf-8", "surrogatepass")

    def write(path: Path) -> None:
        pytest.importorskip("safetensors")
        path.write_bytes(struct.pack("<Q", len(content)) + content + data[: len(data) - cut])

    return write


def place(kind: str = "F32", shape: tuple[int, ...] = (100, 64), at: tuple[int, int] = (0, 25600)) -> dict[str, Any]:
    return {"dtype": kind, "shape": list(shape), "data_offsets": list(at)}


def a_socket(path: Path) -> None:
    there = os.getcwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(there)


CASES = {
    # tensors of a checkpoint
    "nested tensor": Case(saved(nested), 0, "1 tensor was skipped: nested (1): x"),
    "sparse tensor": Case(saved(lambda: torch.eye(9).to_sparse()), 0, "1 tensor was skipped: sparse (1): x"),
    "meta tensor": Case(saved(lambda: PAPER.to("meta")), 0, "skipped: on the meta device (1): x"),
    "8-bit tensor": Case(saved(lambda: PAPER.to(torch.float8_e5m2)), 0, "skipped: of type float8_e5m2 (1): x"),
    "subclass": Case(saved(lambda: PAPER.as_subclass(Subclass)), 0, "skipped: of the subclass Subclass (1): x"),
    "expanded rows": Case(
        saved(lambda: torch.zeros(1, 64).expand(2**40, 64)), 0, "larger than 67108864 elements or 8388608 rows (--key"
    ),
    "expanded rows alone": Case(
        saved(lambda: torch.zeros(1, 64).expand(2**40, 64)),
        2,
        "x: expected a tensor to look at, got one that is larger than 1073741824 elements",
        arguments=("--key", "x"),
    ),
    "expanded channels": Case(saved(lambda: torch.ones(64, 1).expand(64, 2**50)), 0, "1 tensor was skipped: larger"),
    "expanded all": Case(saved(lambda: torch.ones(()).expand(2**20, 2**20, 2**20)), 0, "1 tensor was skipped: larger"),
    "many channels": Case(saved(lambda: torch.ones(()).expand(16, 2**20)), 0, "1 other tensor is no table"),
    "no elements": Case(saved(lambda: torch.zeros(0, 512)), 0, "1 other tensor is no table (of another shape or type)"),
    "reason of one": Case(
        saved(nested), 2, "x: expected a tensor to look at, got one that is nested", arguments=("--key", "x")
    ),
    "json": Case(
        saved(nested), 0, '"skipped": [\n    {\n      "key": "x",\n      "reason": "nested"', arguments=("--json",)
    ),
    # lists and dicts
    "list that contains itself": Case(saved(itself), 0, NAMED),
    "doubled lists": Case(saved(doubled), 0, NAMED),
    "doubled lists of a tensor": Case(
        saved(lambda: doubled(PAPER)), 0, "in a list or dict that has another name as well (4"
    ),
    "a dict under two names": Case(same_twice, 0, "has another name as well (1): ema"),
    "tied tensors": Case(same_twice, 0, "\ntied.1 (100, 64) float32\n    paper"),
    "deep lists": Case(
        adding(b"]" * 10**5 + TABLE + b"a" * 10**5), 0, "skipped: nested deeper than 1000 lists (1): x.0.0"
    ),
    "strange keys": Case(
        adding(TABLE, b"(" + text("a\n") + b"N" + number(2**70) + b"t"), 0, "('a\\n', None, <int>) (100, 64)"
    ),
    # pickles
    "tuple with an endless hash": Case(adding(b"N", text("a") + b"\x85" + b"q\x01h\x01\x86" * 60), 0, NAMED),
    "tuple with a deep hash": Case(adding(b"N", text("a") + b"\x85" * 10**6), 0, NAMED),
    "bytearray of 8 GiB": Case(adding(called("__builtin__.bytearray", number(2**33))), 0, NAMED),
    "tensor of 8 GiB by its type": Case(adding(called("torch.FloatTensor", number(2**31))), 0, "before 0.4 (1): x"),
    "text that doubles repeatedly": Case(
        adding(b"c_codecs\nencode\n" * 33 + text("a") + text("latin1") + b"\x86R" + (text("hex") + b"\x86R") * 32),
        0,
        NAMED,
    ),
    "size beyond its storage": Case(adding(tensor("0", 6400, (2**40, 64), (64, 1))), 0, "damaged (it is larger than"),
    "storage beyond its file": Case(adding(tensor("0", 2**40, (2**30, 64), (64, 1))), 0, "damaged (it is larger than"),
    "storage without values": Case(adding(tensor("7", 6400, (100, 64), (64, 1))), 0, "damaged (its values are not in"),
    "a long list in many dicts": Case(
        adding(
            b"](" + b"K\1K\2\x86" * 10**5 + b"eq\x080](" + b"ccollections\nOrderedDict\nh\x08\x85R" * 10**5 + b"e",
        ),
        0,
        NAMED,
    ),
    "600,000 strings": Case(adding(b"(" + b"X\x0d\0\0\0token_numbers" * 600_000 + b"t"), 0, NAMED),
    "an array of 100 MiB in the pickle": Case(adding(b"B\0\0\x40\x06" + bytes(100 * 2**20)), 0, NAMED),
    "objects of one state": Case(
        adding(b"(" + b"}q\x01(" + (b"K\x01" + TABLE) * 10**4 + b"u" + (b"ca\nb\n)Rh\x01b") * 10**5 + b"t"),
        0,
        "has another name as well (",
    ),
    "object that contains itself": Case(adding(b"ca\nb\n)Rq\x01}q\x02X\x01\0\0\0ah\x01sb"), 0, NAMED),
    "objects within objects": Case(adding(b"ca\nb\n" * 10**5 + b")R" + b"\x85R" * (10**5 - 1)), 0, NAMED),
    "negative size": Case(adding(tensor("0", 6400, (-5, 64), (64, 1))), 0, "damaged (its shape is not one) (1): x"),
    "size of 2^600": Case(
        adding(tensor("0", 6400, (2**600, 2**600), (64, 1))), 0, "damaged (its shape is not one) (1)"
    ),
    "text of 4 GiB declared": Case(checkpoint(b"\x80\x02X\xff\xff\xff\xffabc."), 2, "got one that is damaged"),
    "many dicts": Case(
        checkpoint(b"\x80\x02(" + b"}" * 5 * 10**6 + b"t."), 2, "opcodes, got a pickle of more than 4194304 opcodes"
    ),
    "archive on several disks": Case(
        raw(b"PK\3\4" + bytes(99) + b"PK\6\7" + struct.pack("<LQL", 1, 0, 2) + b"PK\5\6" + bytes(18)),
        2,
        "got one that is damaged",
    ),
    "pickle of 3 GiB": Case(
        packed("a/data.pkl", b"\x80\x02"), 2, "at most 256 MiB and 4194304 opcodes, got a pickle of 3"
    ),
    "pickle of 3 GiB declared as 300": Case(packed("a/data.pkl", b"\x80\x02}.", 300), 2, "got one that is damaged"),
    "before 1.6: values beyond the file": Case(
        legacy(
            pickle(
                (text("pe"), tensor("0", 6400, (100, 64), (64, 1), True)),
                (text("x"), tensor("1", 2**44, (2**38, 64), (64, 1), True)),
            ),
            ("0", "1"),
            6400,
            2**44,
        ),
        0,
        "damaged (its values are not in the file) (1): x",
    ),
    "before 1.6: size beyond its storage": Case(
        legacy(
            pickle(
                (text("pe"), tensor("0", 6400, (100, 64), (64, 1), True)),
                (text("x"), tensor("0", 2**44, (2**38, 64), (64, 1), True)),
            ),
            ("0",),
            6400,
        ),
        0,
        "damaged (it is larger than its storage) (1): x",
    ),
    "before 1.6: one value beyond its storage": Case(
        legacy(
            pickle(
                (text("pe"), tensor("0", 6400, (100, 64), (64, 1), True)),
                (text("x"), tensor("0", 6400, (100, 65), (64, 1), True)),
            ),
            ("0",),
            6400,
        ),
        0,
        "damaged (it is larger than its storage) (1): x",
    ),
    # names
    "names with escape sequences": Case(strange_names, 0, "\\x1b]0;title\\x07pe (100, 64) float32\n    paper"),
    "names on an ASCII terminal": Case(strange_names, 0, "\\x1b]0;title\\x07pe (100, 64)", encoding="ascii"),
    "names in an error": Case(
        strange_names, 2, "pass one of a\\x1b[31mb, c\\nd, e\\u202ef, g\\ud800h, ", arguments=("--key", "?")
    ),
    "name of a file": Case(raw(b"junk"), 2, "a\\x1b[2Jb\\n.pt: expected a file of", name="a\x1b[2Jb\n.pt"),
    "file not in UTF-8": Case(raw(b"junk"), 2, "a\\udcff.pt: expected a file of", name="a\udcff.pt"),
    # .npy
    "256 TiB declared": Case(raw(header("(70368744177664, 1)") + bytes(400)), 2, "NumPy refuses (damaged", "a.npy"),
    "elements declared as bytes": Case(
        raw(header("(40, 16)", "'<f8'") + bytes(1024)), 2, "NumPy refuses (damaged", "a.npy"
    ),
    "truncated header": Case(raw(header("(10, 64")), 2, "NumPy refuses", "a.npy"),
    "header of brackets": Case(raw(header("(" * 9000)), 2, "NumPy refuses", "a.npy"),
    "header of minus signs": Case(raw(header("(" + "-" * 9000 + "1,)")), 2, "NumPy refuses", "a.npy"),
    "header of a number": Case(raw(header("(" + "9" * 9000 + ", 64)")), 2, "NumPy refuses", "a.npy"),
    "header of 10 MB": Case(
        raw(b"\x93NUMPY\2\0" + struct.pack("<I", 10**7) + b" " * 10**7), 2, "NumPy refuses", "a.npy"
    ),
    "header of 4 GiB declared": Case(raw(b"\x93NUMPY\2\0\xff\xff\xff\xff{}"), 2, "NumPy refuses", "a.npy"),
    "header of an unknown type": Case(raw(header("(10, 64)", "'<q9'") + bytes(2560)), 2, "NumPy refuses", "a.npy"),
    "header that is not text": Case(raw(b"\x93NUMPY\3\0\4\0\0\0\xff\xfe\0\n"), 2, "NumPy refuses", "a.npy"),
    "negative length": Case(raw(header("(-10, -64)") + bytes(2560)), 2, "NumPy refuses (damaged", "a.npy"),
    "records": Case(
        raw(array(numpy.zeros((9, 9), [("a", "f4")]))), 1, "skipped: of objects or records, not numbers", "a.npy"
    ),
    "objects": Case(raw(array(numpy.array([{}, 1], object))), 2, "allow_pickle", "a.npy"),
    "empty array": Case(raw(array(numpy.zeros((0, 512), "f4"))), 1, "1 tensor is no table", "a.npy"),
    # .npz
    "array of 3 GiB": Case(
        packed("x.npy", header("(12582912, 64)")), 1, "larger than 512 MiB, and its format", "a.npz"
    ),
    "array of 3 GiB declared as 300 bytes": Case(
        packed("x.npy", header("(12582912, 64)"), 300), 1, "skipped: BadZipFile", "a.npz"
    ),
    "array of 300 bytes in 3 GiB": Case(packed("x.npy", header("(1, 64)")), 1, "1 tensor is no table", "a.npz"),
    "array that declares 256 TiB": Case(
        members(x=header("(70368744177664, 1)")), 0, "damaged (its header promises more", "a.npz"
    ),
    "array that declares elements as bytes": Case(
        members(x=header("(40, 16)", "'<f8'") + bytes(1024)), 0, "damaged (its header promises more", "a.npz"
    ),
    "array with a bad header": Case(
        members(x=header("(10, 64"), y=b"?" * 99, z=b""), 0, "3 tensors were skipped: ", "a.npz"
    ),
    "array of objects": Case(
        members(x=array(numpy.array([{}], object))), 0, "of objects or records, not numbers (1)", "a.npz"
    ),
    "array that is encrypted": Case(with_encrypted_member, 0, "1 tensor was skipped: encrypted (1): x", "a.npz"),
    "array in bzip2": Case(with_bzip2_member, 0, "compressed otherwise than NumPy does (1): x", "a.npz"),
    "two arrays of a name": Case(with_two_of_a_name, 0, NAMED, "a.npz"),
    # safetensors
    "strange names": Case(
        tensors({"a\x1b[1m": place(), "b\u202e\n": place("F32", (0, 9), (25600, 25600))}),
        0,
        "a\\x1b[1m (100, 64)",
        "a.safetensors",
    ),
    "8-bit values": Case(
        tensors({"pe": place(), "x": place("F8_E4M3", (4, 4), (25600, 25616))}, PAPER.numpy().tobytes() + bytes(16)),
        0,
        "of type float8_e4m3fn (1): x",
        "a.safetensors",
    ),
    "4-bit values": Case(
        tensors({"pe": place(), "x": place("F4", (4, 8), (25600, 25616))}, PAPER.numpy().tobytes() + bytes(16)),
        0,
        "of type float4_e2m1fn_x2 (1): x",
        "a.safetensors",
    ),
    "unknown type": Case(tensors({"pe": place("F33")}), 2, "that its library refuses", "a.safetensors"),
    "shape beyond the values": Case(
        tensors({"pe": place(shape=(2**40, 64))}), 2, "that its library refuses", "a.safetensors"
    ),
    "values cut short": Case(tensors({"pe": place()}, cut=9), 2, "that its library refuses", "a.safetensors"),
    "lone surrogate": Case(tensors({"a\ud800": place()}), 2, "that its library refuses", "a.safetensors"),
    "header of 2^63 bytes": Case(
        raw(struct.pack("<Q", 2**63 - 1) + b"{}"), 2, "that its library refuses", "a.safetensors"
    ),
    "header of 60 MB": Case(
        raw(struct.pack("<Q", 6 * 10**7) + b"{" + b" " * 6 * 10**7),
        2,
        "has 60000000 bytes, more than 16777216",
        "a.safetensors",
    ),
    # not regular files
    "pipe": Case(os.mkfifo, 2, "which is a pipe"),
    "directory": Case(os.mkdir, 2, "which is a directory"),
    "socket": Case(a_socket, 2, "which is a socket"),
    "device": Case(lambda path: os.symlink("/dev/zero", path), 2, "which is a device"),
    "file of 1 TiB": Case(lambda path: (path.write_bytes(b"PK\3\4"), os.truncate(path, 2**40)), 2, "cut short"),
    "array of 1 TiB": Case(
        lambda path: (path.write_bytes(header("(4294967296, 64)")), os.truncate(path, 2**40 + 200)),
        1,
        "1 tensor was skipped: larger than",
        "a.npy",
    ),
}


# sinpe_ext.identify returns no match for these, with this reason.
FUNCTION = {
    "torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(2, 4)])": "a nested tensor has no rows of one length",
    "torch.zeros(1, 64).expand(2**40, 64)": "repeats what it holds",
    "torch.zeros(64, 1).expand(64, 2**40)": "repeats what it holds",
    "sinpe.table(100, 64).expand(2**40, 100, 64)": "repeats what it holds",
    "torch.arange(2.0**10).as_strided((2**30, 2**9), (0, 1))": "repeats what it holds",
    "numpy.broadcast_to(numpy.float32(1), (2**20, 2**20))": "repeats what it holds",
    "torch.ones(()).expand(16, 2**20)": "more than the 65536",
    "torch.eye(9).to_sparse()": "no rows to look at",
    "torch.zeros(9, 9, device='meta')": "no rows to look at",
    "torch.zeros(9, 9).to(torch.float8_e5m2)": "float8_e5m2 values are no sines",
    "torch.zeros(0, 512)": "is not that of rows of channels",
}


class Subclass(torch.Tensor):
    pass


class Answer(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Answer]]:
    """Answers for the selected cases."""
    chosen = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    jobs, folders = [], {}
    for name, case in CASES.items():
        if name not in chosen:
            continue
        folder = tmp_path_factory.mktemp("identify")
        try:
            case.write(folder / case.name)
        except pytest.skip.Exception:
            continue
        jobs.append([name, [str(folder / case.name), *case.arguments], case.encoding, str(folder)])
        folders[name] = folder
    for made in FUNCTION:
        folders[made] = tmp_path_factory.mktemp("identify")
        jobs.append([made, made, "utf-8", str(folders[made])])
    limits = [0 if os.environ.get("SINPE_EXT_SANITIZE") else MEMORY, SECONDS]
    limit = DEADLINE + SECONDS * len(jobs)
    done = execute([sys.executable, "-c", SERVER], input=json.dumps([jobs, *limits]), limit=limit)
    results: dict[str, list[Any]] = json.loads(done.stdout)
    yield {
        name: Answer(code, *((folders[name] / end).read_text("utf-8", "replace") for end in ("out", "err")), seconds)
        for name, (code, seconds) in results.items()
    }


@needs_fork
@pytest.mark.parametrize("name", CASES)
def test_bounded_time_and_memory(name: str, answers: dict[str, Answer]) -> None:
    if name not in answers:
        pytest.skip("safetensors is not installed")
    case, (code, out, err, _) = CASES[name], answers[name]
    assert code == case.code, err[-2000:] or code
    assert case.said in (err if code == 2 else out), (out, err)
    assert len(err.splitlines()) == (code == 2)
    assert all(line.isprintable() for line in (out + err).split("\n")), (out, err)
    if code == 0 and "--json" not in case.arguments:
        assert NAMED in out
    assert max(map(len, (out + err).split("\n"))) < 1500


def test_closed_stdout(tmp_path: Path) -> None:
    torch.save({"pe": PAPER}, tmp_path / "a.pt")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sinpe_ext", "identify", str(tmp_path / "a.pt")]
    done = execute(command, stdout=writing, status=1)
    os.close(writing)
    assert done.stderr == ""


def test_time_per_file_is_limited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinpe_ext import __main__ as cli
    from sinpe_ext.cli import identify as identify_command

    torch.save({"a": PAPER, "b": PAPER + 1, "c": torch.zeros(3)}, tmp_path / "a.pt")
    monkeypatch.setattr(identify_command, "SECONDS", -1.0)
    assert cli.main(["identify", str(tmp_path / "a.pt")]) == 1
    assert "2 tensors were skipped: not reached in -1 s (--key NAME looks at one) (2): a, b" in capsys.readouterr().out
    assert cli.main(["identify", str(tmp_path / "a.pt"), "--key", "a"]) == 0


def test_tensors_per_file_are_limited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinpe_ext import __main__ as cli
    from sinpe_ext.cli import checkpoint_files

    torch.save({"pe": PAPER, "a": torch.zeros(3), "b": torch.zeros(3), "c": torch.zeros(3)}, tmp_path / "a.pt")
    monkeypatch.setattr(checkpoint_files, "MOST_TENSORS", 2)
    assert cli.main(["identify", str(tmp_path / "a.pt")]) == 0
    assert "1 tensor was skipped: behind the first 2 tensors, with all that follow (1): b" in capsys.readouterr().out


def test_exception_for_one_tensor_does_not_affect_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinpe_ext import __main__ as cli
    from sinpe_ext import identification

    identify = identification.identify

    def raising(table: torch.Tensor, **settings: Any) -> Any:
        if len(table) == 9:
            raise RuntimeError("first\x1b line\nsecond line")
        return identify(table, **settings)

    torch.save({"x": torch.zeros(9, 9), "pe": PAPER}, tmp_path / "a.pt")
    monkeypatch.setattr(identification, "identify", raising)
    assert cli.main(["identify", str(tmp_path / "a.pt")]) == 0
    out = capsys.readouterr().out
    assert NAMED in out and "1 tensor was skipped: RuntimeError: first\\x1b line (1): x" in out


@needs_fork
@pytest.mark.parametrize("made", FUNCTION)
def test_function_rejects_with_a_reason(made: str, answers: dict[str, Answer]) -> None:
    code, out, err, _ = answers[made]
    assert (code, err) == (0, "")
    assert FUNCTION[made] in out


def test_function_accepts_views_and_lazy_negatives() -> None:
    with torch.inference_mode():
        inference = PAPER.clone()
    imaginary = torch.complex(torch.zeros(100, 64), -PAPER).conj().imag  # a lazy negative
    for table in (inference, torch.nn.Parameter(PAPER.clone()), imaginary, PAPER.expand(8, 100, 64)):
        assert sinpe.identify(table)[0].name == "paper"


def test_function_rejects_fake_tensors() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.randn(64, 64)
    with pytest.raises(TypeError, match="table: expected a tensor or a NumPy array, got FakeTensor; pass the values"):
        sinpe.identify(fake)

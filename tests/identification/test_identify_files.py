"""Tensors read from a file equal those read by the library that writes it: names, dtypes, values."""

from __future__ import annotations

import argparse
import collections
import enum
import os
import pickle
import shutil
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch import nn

from sinpe_ext.cli.checkpoint_files import Entry, IdentifyError, entries

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex64, torch.complex128,
]  # fmt: skip
ROWS = torch.arange(1.0, 41.0).reshape(8, 5)


def content() -> dict[str, Any]:
    """Tensors of all dtypes, layouts and kinds that torch.save supports and that have data."""
    noted = ROWS.clone()
    noted.note = "an attribute"  # type: ignore[attr-defined]
    parameter = nn.Parameter(ROWS.clone())
    parameter.note = {"of": "a parameter"}  # type: ignore[attr-defined]
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(ROWS).sum().backward()
    optimizer.step()
    tied = ROWS.clone()
    return {
        "dtypes": {str(dtype): (ROWS % 2).to(dtype) for dtype in DTYPES},
        "views": [ROWS.T, ROWS[2:, 1:3], ROWS[:1].expand(4, 5), ROWS[::2], ROWS.flip(0), ROWS[0, 0], ROWS[:0]],
        "bits": (torch.view_as_complex(torch.ones(4, 3, 2)).conj().imag, torch.ones(3, dtype=torch.complex64).conj()),
        "kinds": (nn.Parameter(ROWS.clone()), nn.Buffer(ROWS.clone()), noted, parameter),
        "tied": {"a": tied, "b": tied, "c": tied[:]},
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "beside": [1, -(2**70), 1.5, None, True, "text", b"bytes", {1, 2}, torch.Size([1]), torch.float32, 1j],
        "more": {"device": torch.device("cpu"), "bytes": bytearray(b"ab"), "layout": torch.strided, "storage": 7},
        "keys": {1: ROWS, ("a", 1): ROWS, None: ROWS, 1.5: ROWS, b"b": ROWS, False: {"deep": [[[ROWS]]]}},
        "order": OrderedDict(z=ROWS, a=ROWS),
    }


def walk(name: str, value: Any) -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return {name: value}
    items = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    tensors: dict[str, torch.Tensor] = {}
    for key, item in items:
        tensors |= walk(f"{name}.{key}" if name else str(key), item)
    return tensors


def read(path: Path) -> dict[str, tuple[Entry, Any]]:
    with entries(path) as tensors:
        return {entry.name: (entry, None if entry.skipped else entry.load()) for entry in tensors}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    whole = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x.double() for x in (a, b))
    return a.dtype == b.dtype and torch.equal(*whole)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "before 1.6"])
def test_as_torch_load(new: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    saved = content()
    if not new:  # the old format has no dtypes without a typed storage
        saved["dtypes"] = {
            name: x for name, x in saved["dtypes"].items() if "float8" not in name and "uint" not in name
        }
    torch.save(saved, path, _use_new_zipfile_serialization=new)
    expected = walk("", torch.load(path, weights_only=True))
    tensors = read(path)
    assert list(tensors) == list(expected)
    for name, tensor in expected.items():
        entry, loaded = tensors[name]
        assert same(loaded, tensor), name
        assert (entry.shape, f"torch.{entry.dtype}") == (tuple(tensor.shape), str(tensor.dtype))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(2, 4)]),
        lambda: ROWS.to_sparse(),
        lambda: ROWS.to_sparse_csr(),
        lambda: torch.quantize_per_tensor(ROWS, 0.1, 0, torch.qint8),
        lambda: ROWS.to("meta"),
    ],
)
def test_tensors_without_dense_data_are_skipped(make: Callable[[], Any], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about prototypes and deprecations
        odd = make()
        torch.save({"a": ROWS, "odd": odd, "b": ROWS + 1}, tmp_path / "a.pt")
    tensors = read(tmp_path / "a.pt")
    try:
        torch.load(tmp_path / "a.pt", weights_only=True)
    except pickle.UnpicklingError:  # torch 2.15: nested tensors
        assert "odd" not in tensors
    else:
        assert tensors["odd"][0].skipped == "not a dense tensor with values"
    assert torch.equal(tensors["a"][1], ROWS) and torch.equal(tensors["b"][1], ROWS + 1)


def test_numpy(tmp_path: Path) -> None:
    arrays = {
        "rows": ROWS.numpy(), "fortran": numpy.asfortranarray(ROWS.numpy()), "big": ROWS.numpy().astype(">f8"),
        "half": ROWS.numpy().astype("f2"), "ids": numpy.arange(3), "scalar": numpy.float32(1.5),
        "none": numpy.zeros((0, 5), "f4"), "flags": numpy.ones(3, bool), "complex": numpy.ones(3, complex),
    }  # fmt: skip
    numpy.savez(tmp_path / "a.npz", **arrays)
    numpy.savez_compressed(tmp_path / "b.npz", **arrays)
    for name in ("a.npz", "b.npz"):
        for key, (entry, tensor) in read(tmp_path / name).items():
            assert numpy.array_equal(tensor.numpy(), arrays[key]) and entry.shape == arrays[key].shape
            assert entry.dtype == arrays[key].dtype.name
    for key, array in arrays.items():
        numpy.save(tmp_path / "a.npy", array)
        entry, tensor = read(tmp_path / "a.npy")[""]
        assert numpy.array_equal(tensor.numpy(), array) and entry.shape == array.shape, key
    texts = numpy.array(["a", "b"])
    numpy.save(tmp_path / "a.npy", texts)
    assert numpy.array_equal(read(tmp_path / "a.npy")[""][1], texts)  # not numeric


def test_safetensors(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    tensors = {str(dtype): (ROWS % 2).to(dtype) for dtype in DTYPES if dtype is not torch.complex128}
    tensors["none"] = ROWS[:0].contiguous()
    library.save_file(tensors, tmp_path / "a.safetensors")
    for name, (entry, tensor) in read(tmp_path / "a.safetensors").items():
        assert same(tensor, tensors[name]) and entry.shape == tuple(tensors[name].shape)
        assert tensors[name].dtype not in DTYPES[:4] or f"torch.{entry.dtype}" == str(tensors[name].dtype)


def test_tensor_of_a_mapped_file_is_not_copied(tmp_path: Path) -> None:
    torch.save({"a": ROWS}, tmp_path / "a.pt")
    with entries(tmp_path / "a.pt") as tensors:
        (entry,) = tensors
        assert entry.load().data_ptr() == entry.load().data_ptr()


class Config:
    """A class that the reader of the file may not have."""

    class Inner:
        pass

    class Kind(enum.Enum):
        ONE = 1

    def __init__(self) -> None:
        self.rows, self.inner, self.kind = ROWS, Config.Inner(), Config.Kind.ONE
        self.inner.rows = ROWS + 4


class Settings(dict):
    pass


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


class Executed:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made


def test_objects_of_any_class_are_searched_but_not_constructed(tmp_path: Path) -> None:
    """As saved by training scripts: arguments, a whole model, a defaultdict; torch.load rejects all of them."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ModuleDict({"pe": nn.Linear(3, 2, bias=False)}))
    model.register_buffer("table", ROWS)
    saved = {
        "arguments": argparse.Namespace(lr=0.1, warm=ROWS[:2]),
        "model": model,
        "state": collections.defaultdict(list, {"a": ROWS + 1, "b": [ROWS + 2]}),
        "config": Config(),
        "settings": Settings(a=ROWS, b=1),
        "pair": Pair(ROWS, 3),
        "loss": [numpy.float64(0.5), numpy.arange(3)],
        "made": Executed(shutil.rmtree, str(tmp_path)),
        "optimizer": torch.optim.Adam(model.parameters()),
        "path": tmp_path,
        "last": ROWS + 3,
    }
    saved["itself"] = [saved]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(saved, tmp_path / "a.pt")
    expected = {"arguments.warm": ROWS[:2]}
    expected |= {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    expected |= {"state.a": ROWS + 1, "state.b.0": ROWS + 2, "config.rows": ROWS, "config.inner.rows": ROWS + 4}
    expected |= {"settings.a": ROWS, "pair.0": ROWS, "last": ROWS + 3}
    tensors = read(tmp_path / "a.pt")
    assert {name for name in tensors if not name.startswith("optimizer.")} == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(tensors[name][1], tensor), name


@pytest.mark.parametrize("new", [True, False], ids=["zip", "before 1.6"])
def test_no_code_is_executed(new: bool, tmp_path: Path) -> None:
    saved = {"x": Executed(os.mkdir, str(tmp_path / "executed")), "pe": ROWS}
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    with pytest.raises(IdentifyError, match="whose module posix is blocked"), entries(tmp_path / "a.pt"):
        pass
    assert not (tmp_path / "executed").exists()
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert (tmp_path / "executed").exists()


def test_compressed_checkpoint(tmp_path: Path) -> None:
    torch.save({"a": ROWS}, tmp_path / "a.pt")
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as old,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert torch.equal(read(tmp_path / "b.pt")["a"][1], ROWS)


@pytest.mark.parametrize("length", [0x80, 0x4B50])  # the first bytes are those of a pickle, of a zip archive
def test_safetensors_header_of_any_length(length: int, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    text = b'{"a":{"dtype":"F32","shape":[8,5],"data_offsets":[0,160]}}'.ljust(length)
    (tmp_path / "a.bin").write_bytes(length.to_bytes(8, "little") + text + ROWS.numpy().tobytes())
    assert torch.equal(read(tmp_path / "a.bin")["a"][1], ROWS)


def test_long_and_odd_names(tmp_path: Path) -> None:
    torch.save({"k" * 1000: ROWS, nn.Parameter(ROWS): [ROWS + 2]}, tmp_path / "a.pt")
    assert list(read(tmp_path / "a.pt")) == ["k" * 100 + "..." + "k" * 100, "<Parameter>.0"]


def truncated(path: Path) -> None:
    torch.save({"a": ROWS}, path)
    path.write_bytes(path.read_bytes()[:-40])


def without_values(path: Path) -> None:
    torch.save({"a": ROWS}, path.with_name("b"))
    with zipfile.ZipFile(path.with_name("b")) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            if "/data/" not in name:
                new.writestr(name, old.read(name))


def damaged_directory(path: Path) -> None:
    torch.save({"a": ROWS}, path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2")] ^= 1
    path.write_bytes(content)


def script(path: Path) -> None:
    torch.jit.trace(nn.Linear(5, 3), ROWS).save(str(path))


def header(shape: str) -> bytes:
    said = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(said).to_bytes(2, "little") + said


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (truncated, "expected a whole file, got one that was cut short"),
        (without_values, "got one that cannot be read"),
        (damaged_directory, "got one that cannot be read"),
        (script, "got one that cannot be read .*torchscript"),
        (lambda path: path.write_bytes(pickle.dumps({"a": 1}, protocol=2)), "got one that cannot be read"),
        (lambda path: path.write_bytes(header("(281474976710656, 1)") + bytes(400)), "got one that cannot be read"),
        (lambda path: path.write_bytes(header("(10, 64") + bytes(400)), "got one that cannot be read"),
        (os.mkdir, "which is a directory or device"),
        (os.mkfifo, "which is a directory or device"),
        (lambda path: None, "No such file"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_files_that_cannot_be_read(write: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    write(tmp_path / "a.pt")
    with pytest.raises(IdentifyError, match=message) as caught, entries(tmp_path / "a.pt") as tensors:
        list(tensors)
    assert str(caught.value).isprintable()

"""Tensors read from a file equal those read by the library that writes it: names, dtypes, values."""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from sinpe_ext.cli.checkpoint_files import tensors_of

ROWS = torch.arange(1.0, 41.0).reshape(8, 5)
DTYPES = "float64 float32 float16 bfloat16 float8_e4m3fn int64 int8 uint16 uint64 bool".split()
OF_DTYPES = {name: (ROWS % 2).to(getattr(torch, name)) for name in DTYPES}


def read(path: Path) -> dict[str, Any]:
    return {name: load() for name, load in tensors_of(path).items()}


def check_same(got: dict[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name].double(), tensor.double()), name
        assert not got[name].requires_grad


@pytest.mark.parametrize("new", [True, False], ids=["zip", "before 1.6"])
def test_torch(new: bool, tmp_path: Path) -> None:
    """Names are paths of keys and indices, in the order of the file; other values are skipped."""
    views, layer = (ROWS[2:, 1:3], ROWS[:1].expand(4, 5), ROWS[:0]), nn.Linear(5, 3).state_dict()
    saved = {
        "views": [ROWS.T, views],
        "layer": layer,
        "parameter": nn.Parameter(ROWS.clone()),
        "others": [1, -(2**70), None, "text", b"bytes", {1, 2}, torch.Size([1]), torch.float32],
        "keys": {1: ROWS, ("a", 1): ROWS, None: ROWS, False: {"deep": [[ROWS]]}},
        "order": OrderedDict(z=ROWS, a=ROWS),
    }
    expected = {"views.0": ROWS.T} | {f"views.1.{number}": view for number, view in enumerate(views)}
    expected |= {f"layer.{name}": value for name, value in layer.items()}
    names = "parameter", "keys.1", "keys.('a', 1)", "keys.None", "keys.False.deep.0.0", "order.z", "order.a"
    expected |= dict.fromkeys(names, ROWS)
    if new:  # the old format has no dtypes without a typed storage
        saved["dtypes"], expected = OF_DTYPES, expected | {f"dtypes.{name}": x for name, x in OF_DTYPES.items()}
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    check_same(read(tmp_path / "a.pt"), expected)


def test_mapped_and_compressed_files_of_torch(tmp_path: Path) -> None:
    torch.save({"a": ROWS}, tmp_path / "a.pt")
    (load,) = tensors_of(tmp_path / "a.pt").values()
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(tmp_path / "a.pt") in maps.read_text()
    assert load().data_ptr() == load().data_ptr()  # not a copy
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as b:
        for name in old.namelist():
            b.writestr(name, old.read(name))
    check_same(read(tmp_path / "b.pt"), {"a": ROWS})


def test_numpy(tmp_path: Path) -> None:
    rows = ROWS.numpy()
    arrays = {"rows": rows, "fortran": numpy.asfortranarray(rows), "big": rows.astype(">f8"), "half": rows.astype("f2")}
    arrays |= {"ids": numpy.arange(3), "scalar": numpy.float32(1.5), "none": rows[:0], "flags": rows > 3}
    numpy.savez(tmp_path / "a.npz", **arrays)
    numpy.savez_compressed(tmp_path / "b.npz", **arrays)
    for name in ("a.npz", "b.npz"):
        got = read(tmp_path / name)
        assert list(got) == list(arrays) and all(numpy.array_equal(got[key].numpy(), arrays[key]) for key in arrays)
    for key, array in arrays.items():
        numpy.save(tmp_path / "a.npy", array)
        assert numpy.array_equal(read(tmp_path / "a.npy")[""].numpy(), array), key


@pytest.mark.parametrize("length", [None, 0x80, 0x4B50])  # the first bytes are those of a pickle, of a zip archive
def test_safetensors(length: int | None, tmp_path: Path) -> None:
    """Also under another name, with a header of any length."""
    library = pytest.importorskip("safetensors.torch")
    if length is None:
        tensors = {**OF_DTYPES, "none": ROWS[:0].contiguous()}
        library.save_file(tensors, tmp_path / "a.safetensors")
        check_same(dict(sorted(read(tmp_path / "a.safetensors").items())), dict(sorted(tensors.items())))
        return
    text = b'{"a":{"dtype":"F32","shape":[8,5],"data_offsets":[0,160]}}'.ljust(length)
    (tmp_path / "a.bin").write_bytes(length.to_bytes(8, "little") + text + ROWS.numpy().tobytes())
    check_same(read(tmp_path / "a.bin"), {"a": ROWS})


class Executed:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made


def test_no_code_is_executed(tmp_path: Path) -> None:
    torch.save({"x": Executed(os.mkdir, str(tmp_path / "executed")), "pe": ROWS}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="posix"):
        tensors_of(tmp_path / "a.pt")
    assert not (tmp_path / "executed").exists()
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert (tmp_path / "executed").exists()


def damaged(path: Path, change: Callable[[bytes], bytes]) -> None:
    torch.save({"a": ROWS}, path)
    path.write_bytes(change(path.read_bytes()))


def npy(shape: str) -> bytes:
    said = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(said).to_bytes(2, "little") + said + bytes(400)


UNREADABLE = "^a.pt: expected a file of torch.save, .*got one that cannot be read"


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (b"", UNREADABLE),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        ((2**60).to_bytes(8, "little") + b"{}", UNREADABLE),
        ((64).to_bytes(8, "little") + b"{", UNREADABLE),
        (pickle.dumps({"a": 1}, protocol=2), UNREADABLE),
        (npy("(281474976710656, 1)"), UNREADABLE),
        (npy("(10, 64"), UNREADABLE),
        (lambda path: damaged(path, lambda data: data[:-40]), UNREADABLE),
        (lambda path: damaged(path, lambda data: data.replace(b"PK\1\2", b"QK\1\2", 1)), UNREADABLE),
        (lambda path: torch.jit.trace(nn.Linear(5, 3), ROWS).save(str(path)), UNREADABLE + " .*[Tt]orch[Ss]cript"),
        (lambda path: torch.save(argparse.Namespace(), path), "argparse.Namespace.*; save the state_dict"),
        (os.mkdir, "which is no file"),
        (os.mkfifo, "which is no file"),
        (lambda path: None, "which is no file"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_files_that_cannot_be_read(write: bytes | Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(write) if isinstance(write, bytes) else write(path)
    with pytest.raises(ValueError, match=message) as caught:
        read(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_missing_library_is_named(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"a.{suffix}").write_bytes((64).to_bytes(8, "little") + b'{"broken' + bytes(64))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=f"a.{suffix}: expected safetensors .*pip install safetensors"):
        tensors_of(tmp_path / f"a.{suffix}")

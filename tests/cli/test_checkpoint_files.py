"""Tensors read from a file equal those read by the library that writes it: names, dtypes, values."""

from __future__ import annotations

import argparse
import os
import pickle
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


def read(path: Path) -> dict[str, Any]:
    return {name: load() for name, load in tensors_of(path).items()}


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
        assert same(tensors[name], tensor), name


def test_numpy(tmp_path: Path) -> None:
    arrays = {
        "rows": ROWS.numpy(), "fortran": numpy.asfortranarray(ROWS.numpy()), "big": ROWS.numpy().astype(">f8"),
        "half": ROWS.numpy().astype("f2"), "ids": numpy.arange(3), "scalar": numpy.float32(1.5),
        "none": numpy.zeros((0, 5), "f4"), "flags": numpy.ones(3, bool), "complex": numpy.ones(3, complex),
    }  # fmt: skip
    numpy.savez(tmp_path / "a.npz", **arrays)
    numpy.savez_compressed(tmp_path / "b.npz", **arrays)
    for name in ("a.npz", "b.npz"):
        for key, tensor in read(tmp_path / name).items():
            assert numpy.array_equal(tensor.numpy(), arrays[key])
    for key, array in arrays.items():
        numpy.save(tmp_path / "a.npy", array)
        assert numpy.array_equal(read(tmp_path / "a.npy")[""].numpy(), array), key


def test_safetensors(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    tensors = {str(dtype): (ROWS % 2).to(dtype) for dtype in DTYPES if dtype is not torch.complex128}
    tensors["none"] = ROWS[:0].contiguous()
    library.save_file(tensors, tmp_path / "a.safetensors")
    for name, tensor in read(tmp_path / "a.safetensors").items():
        assert same(tensor, tensors[name])


def test_tensor_of_a_mapped_file_is_not_copied(tmp_path: Path) -> None:
    torch.save({"a": ROWS}, tmp_path / "a.pt")
    (load,) = tensors_of(tmp_path / "a.pt").values()
    assert load().data_ptr() == load().data_ptr()


class Executed:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made


def test_objects_of_other_classes_are_refused_with_the_reason_of_torch(tmp_path: Path) -> None:
    torch.save({"arguments": argparse.Namespace(lr=0.1), "pe": ROWS}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="Unsupported .*argparse.Namespace.*; save the state_dict") as caught:
        tensors_of(tmp_path / "a.pt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "before 1.6"])
def test_no_code_is_executed(new: bool, tmp_path: Path) -> None:
    saved = {"x": Executed(os.mkdir, str(tmp_path / "executed")), "pe": ROWS}
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    with pytest.raises(ValueError, match="posix"):
        tensors_of(tmp_path / "a.pt")
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
    assert torch.equal(read(tmp_path / "b.pt")["a"], ROWS)


@pytest.mark.parametrize("length", [0x80, 0x4B50])  # the first bytes are those of a pickle, of a zip archive
def test_safetensors_header_of_any_length(length: int, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    text = b'{"a":{"dtype":"F32","shape":[8,5],"data_offsets":[0,160]}}'.ljust(length)
    (tmp_path / "a.bin").write_bytes(length.to_bytes(8, "little") + text + ROWS.numpy().tobytes())
    assert torch.equal(read(tmp_path / "a.bin")["a"], ROWS)


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
        (truncated, "got one that cannot be read"),
        (lambda path: path.write_bytes(b""), "got one that cannot be read"),
        (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid"), "git lfs pull"),
        (lambda path: path.write_bytes((2**60).to_bytes(8, "little") + b"{}"), "got one that cannot be read"),
        (lambda path: path.write_bytes((64).to_bytes(8, "little") + b"{"), "got one that cannot be read"),
        (without_values, "got one that cannot be read"),
        (damaged_directory, "got one that cannot be read"),
        (script, "got one that cannot be read .*[Tt]orch[Ss]cript"),
        (lambda path: path.write_bytes(pickle.dumps({"a": 1}, protocol=2)), "got one that cannot be read"),
        (lambda path: path.write_bytes(header("(281474976710656, 1)") + bytes(400)), "got one that cannot be read"),
        (lambda path: path.write_bytes(header("(10, 64") + bytes(400)), "got one that cannot be read"),
        (os.mkdir, "which is no file"),
        (os.mkfifo, "which is no file"),
        (lambda path: None, "which is no file"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_files_that_cannot_be_read(write: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    write(tmp_path / "a.pt")
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path / "a.pt")
    assert str(caught.value).isprintable()

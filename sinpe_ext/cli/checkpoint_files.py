"""Reads the tensors of a checkpoint or array file with the library that writes it: torch.load, safetensors, NumPy.

Checkpoints are loaded with weights_only=True, so no class or function that they name is imported.
"""

from __future__ import annotations

import textwrap
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any


def tensors_of(path: Path) -> dict[str, Callable[[], Any]]:
    """The tensors of a file by name, as functions that read them; the name is "" for the array of an .npy file.

    Names in nested dicts and lists are joined with dots. The format is recognized by the content or the suffix. Raises
    ValueError if the file cannot be read, ImportError without the library that reads it.
    """
    if not path.is_file():
        raise ValueError(f"file: expected a checkpoint or an array, got {path}, which is no file; pass its path")
    with path.open("rb") as file:
        head = file.read(9)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries warn of files that they can read
            if path.suffix == ".safetensors" or head[8:] == b"{":
                from safetensors import safe_open

                archive = safe_open(path, framework="pt", device="cpu")
                return {name: partial(archive.get_tensor, name) for name in archive.keys()}
            if head.startswith(b"\x93NUMPY") or path.suffix == ".npz":
                return _of_numpy(path)
            return _of_torch(path)
    except ImportError as error:
        raise ImportError(
            f"{path.name}: expected {error.name} to read it with; run `pip install {error.name}`"
        ) from None
    except Exception as error:  # of a damaged file, a library may raise anything
        todo = "fetch it by git lfs pull" if head == b"version h" else "save the state_dict() or the array alone"
        kinds = "torch.save, safetensors or numpy.save"
        raise ValueError(
            f"{path.name}: expected a file of {kinds}, got one that cannot be read ({reason_of(error)}); {todo}"
        ) from None


def reason_of(error: Exception) -> str:
    """The first line of an error; of torch's refusal of a class or function, the reason behind its advice."""
    lines = str(error).rpartition("WeightsUnpickler error: ")[2].strip().splitlines()
    said = [line for line in lines if line and not line.startswith("Weights only load")]
    return textwrap.shorten(said[0], 160, placeholder=" ...") if said else type(error).__name__


def _of_numpy(path: Path) -> dict[str, Callable[[], Any]]:
    """The array of an .npy file, memory-mapped, or those of an .npz archive."""
    import numpy
    import torch

    def tensor(read: Callable[[], Any]) -> Any:
        array = read()
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))

    loaded = numpy.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(loaded, numpy.ndarray):
        return {"": partial(tensor, lambda: loaded)}
    return {name: partial(tensor, partial(loaded.__getitem__, name)) for name in loaded.files}


def _of_torch(path: Path) -> dict[str, Callable[[], Any]]:
    """The tensors of a checkpoint of torch.save, memory-mapped if possible."""
    import torch

    mapped = False  # files before torch 1.6, and compressed ones, cannot be mapped
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            mapped = all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())
    loaded = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)

    def walk(name: str, value: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
        if isinstance(value, torch.Tensor):
            yield name, lambda: value.detach()
        items = (
            value.items() if isinstance(value, Mapping) else enumerate(value) if type(value) in (list, tuple) else ()
        )
        for key, item in items:
            yield from walk(f"{name}.{key}" if name else str(key), item)

    return dict(walk("", loaded))

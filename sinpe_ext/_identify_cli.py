"""`python -m sinpe_ext identify FILE`: which tensors of a checkpoint are tables of positional encodings, and whose."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._identify import Match, Matches

NEAREST_KEYS = 8
NAMED = 5  # tensors that are no table and might have been
HEAD = 32  # bytes that tell what a file is
LFS = b"version https://git-lfs"
MOST_AXES = 5


class IdentifyError(Exception):
    """A file that cannot be read; the message is one line."""


def options(command: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    command.add_argument(
        "file", metavar="FILE", help="a checkpoint or an array: .pt, .pth, .bin, .ckpt, .safetensors, .npy or .npz"
    )
    command.add_argument(
        "--shape", metavar="N", type=int, nargs="+", help="lengths of a flattened grid: H W, or T H W (default: found)"
    )
    command.add_argument("--key", metavar="NAME", help="only this tensor, or those whose names end so")
    command.add_argument("--json", action="store_true", help="print JSON")


def main(arguments: argparse.Namespace) -> int:
    """Runs the subcommand: 0 where a table was found, 1 where none was. Raises IdentifyError for a bad file or key."""
    from ._identify import identify, lengths_of

    try:
        lengths_of(arguments.shape)
    except ValueError as error:
        raise IdentifyError(f"--{error}") from None
    path = Path(arguments.file)
    tensors = list(_tensors(path))
    if arguments.key is not None:
        tensors = _chosen(tensors, arguments.key)
    found: list[tuple[str, Any, Matches]] = []
    others: dict[str, int] = {}
    missed: list[tuple[bool, str]] = []
    for key, load in tensors:
        tensor = load()
        if arguments.key is None and not _may_be_table(tensor):
            others["of another shape or type"] = others.get("of another shape or type", 0) + 1
            continue
        try:
            matches = identify(tensor, shape=arguments.shape)
        except (TypeError, ValueError) as error:
            if arguments.key is not None:
                raise IdentifyError(str(error)) from None
            matches = identify(tensor)
        if matches or matches.closest or arguments.key is not None:
            found.append((key, tensor, matches))
        else:
            others[matches.reason] = others.get(matches.reason, 0) + 1
            missed.append(("no sinusoids" in matches.reason, key or path.name))
    near = [key for _, key in sorted(missed, key=lambda item: item[0])]
    if arguments.json:
        print(json.dumps(_as_json(path, found, others, near), indent=2))
    else:
        _show(path, found, others, near)
    return 0 if any(matches for _, _, matches in found) else 1


def _show(path: Path, found: list[tuple[str, Any, Matches]], others: dict[str, int], near: list[str]) -> None:
    for key, tensor, matches in found:
        dtype = str(tensor.dtype).removeprefix("torch.")
        print(f"{key or path.name} {tuple(tensor.shape)} {dtype}")
        for line in str(matches).split("\n"):
            indent = "    " + " " * (len(line) - len(line.lstrip()))
            print(textwrap.fill(line.strip(), 120, initial_indent=indent, subsequent_indent=indent + "  ",
                                break_long_words=False, break_on_hyphens=False))  # fmt: skip
    number = sum(others.values())
    if number:
        most = max(others, key=lambda reason: others[reason])
        rest = f"{others[most]} of them: {most}" if others[most] < number else most
        which = "other tensor" if found else "tensor"
        names = _named(near) if number > 1 or found else ""  # the reason for a tensor alone is the one shown
        print(f"{number} {which}{'s are' if number > 1 else ' is'} no table ({rest}){names}")
    if not found and not number:
        print(f"{path.name}: no tensors")


def _named(near: list[str]) -> str:
    """Which tensors have the shape of a table, and how to hear more of one."""
    if not near:
        return ""
    more = f" and {len(near) - NAMED} more" if len(near) > NAMED else ""
    return f"; of the shape of one: {', '.join(near[:NAMED])}{more} (--key NAME says why each is none)"


def _as_json(
    path: Path, found: list[tuple[str, Any, Matches]], others: dict[str, int], near: list[str]
) -> dict[str, Any]:
    return {
        "file": str(path),
        "tensors": [
            {
                "key": key,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "matches": [_match_json(match) for match in matches],
                "reason": matches.reason,
                "closest": _match_json(matches.closest) if matches.closest else None,
            }
            for key, tensor, matches in found
        ],
        "others": others,
        "others_shaped_like_tables": near,
    }


def _match_json(match: Match) -> dict[str, Any]:
    return {field.name: getattr(match, field.name) for field in dataclasses.fields(match) if field.name != "encoding"}


def _chosen(tensors: list[tuple[str, Callable[[], Any]]], key: str) -> list[tuple[str, Callable[[], Any]]]:
    exact = [item for item in tensors if item[0] == key]
    chosen = exact or [item for item in tensors if item[0].endswith(key)]
    if not chosen:
        import difflib

        names = [name for name, _ in tensors]
        near = difflib.get_close_matches(key, names, n=NEAREST_KEYS, cutoff=0.3) or names[:NEAREST_KEYS]
        raise IdentifyError(f"--key: expected the name of a tensor in the file, got {key!r}; say {', '.join(near)}")
    return chosen


def _may_be_table(tensor: Any) -> bool:
    """Floating-point rows: at least two of its axes longer than 1, or one beside the channels."""
    import torch

    floating = tensor.is_floating_point() if isinstance(tensor, torch.Tensor) else tensor.dtype.kind == "f"
    shape = tuple(tensor.shape)
    return bool(floating and 2 <= len(shape) <= MOST_AXES and sum(length > 1 for length in shape) >= 2)


def _tensors(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, how to read it) for each tensor of a file, whatever its name ends in."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise IdentifyError(f"file: expected one to read, got {path} ({error.strerror}); pass its path") from None
    if not head:
        raise IdentifyError(f"{path.name}: expected a checkpoint or an array, got an empty file; fetch it again")
    if head.startswith(LFS):
        raise IdentifyError(
            f"{path.name}: expected a checkpoint or an array, got a git-lfs pointer, not the file: run git lfs pull"
        )
    if head.startswith(b"PK") and not zipfile.is_zipfile(path):
        raise IdentifyError(
            f"{path.name}: expected a whole file, got one that was cut short (its archive has no end); fetch it again"
        )
    if head.startswith(b"\x93NUMPY"):
        return _of_numpy(path)
    if head.startswith(b"PK") and _is_npz(path):
        return _of_numpy(path)
    named_so = path.suffix == ".safetensors" and not head.startswith((b"PK", b"\x80"))
    if named_so or (head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32):
        return _of_safetensors(path)
    return _of_torch(path)


def _is_npz(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return all(name.endswith(".npy") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def _of_numpy(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    try:
        import numpy
    except ImportError:
        raise IdentifyError(f"{path.name}: expected NumPy to read it with; run `pip install numpy`") from None
    try:
        loaded = numpy.load(path, allow_pickle=False)
        arrays = {"": loaded} if isinstance(loaded, numpy.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError) as error:
        raise IdentifyError(
            f"{path.name}: expected arrays of numbers, got a file that NumPy refuses ({_line(error)}); save the array "
            "alone with numpy.save"
        ) from None
    for name, array in arrays.items():
        yield name, partial(_same, array)


def _of_safetensors(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise IdentifyError(
            f"{path.name}: expected safetensors to read it with; run `pip install safetensors`"
        ) from None
    try:
        file = safe_open(
            path, framework="pt", device="cpu"
        ).__enter__()  # open for as long as a tensor may be asked for
    except (SafetensorError, OSError, ValueError, TypeError, MemoryError, OverflowError) as error:
        raise IdentifyError(
            f"{path.name}: expected a safetensors file, got one that its library refuses ({_line(error)}); save it "
            "again"
        ) from None
    for name in list(file.keys()):
        yield name, partial(file.get_tensor, name)


def _of_torch(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch

    try:
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the format of PyTorch before 1.6 cannot be mapped
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what an unpickler makes of bytes that are none: nearly any
        holds = re.search(r"GLOBAL (\S+)", str(error))
        if holds:
            raise IdentifyError(
                f"{path.name}: expected a checkpoint of tensors alone, got one that holds {holds[1]}, which is not "
                "loaded (it may run code); save the model's state_dict() with torch.save"
            ) from None
        raise IdentifyError(
            f"{path.name}: expected a file of torch.save, safetensors or numpy.save, got none of them "
            f"({type(error).__name__}); pass a checkpoint or an array"
        ) from None
    for name, tensor in _walk("", loaded):
        yield name, partial(_same, tensor)


def _same(value: Any) -> Any:
    return value


def _walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Tensors in nested dicts and lists, by their path."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _walk(f"{name}.{index}" if name else str(index), item)


def _line(error: Exception) -> str:
    """The first line of an error, shortened."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0].strip()
    return text if len(text) <= 160 else text[:157] + "..."

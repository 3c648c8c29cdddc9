"""`python -m sinpe_ext identify FILE`: finds positional-encoding tables in a checkpoint and names their convention."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

from . import printable
from .checkpoint_files import reason_of, tensors_of

HELP = "find the tables of positional encodings in a checkpoint and name their conventions"
LARGEST = 2**26  # elements of a tensor that is examined whole; of a larger one first the beginning
FLOATING = ("float64", "float32", "float16", "bfloat16")


def options(command: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand."""
    command.add_argument(
        "file", metavar="FILE", help="a checkpoint or an array: .pt, .pth, .bin, .ckpt, .safetensors, .npy or .npz"
    )
    text = "lengths of a flattened grid: H W, or T H W (default: found)"
    command.add_argument("--shape", metavar="N", type=length, nargs="+", help=text)
    command.add_argument(
        "--key", metavar="NAME", help="only the tensors whose names end with NAME, and why each is none"
    )
    command.add_argument("--json", action="store_true", help="print JSON")


def length(text: str) -> int:
    """Parses the length of an axis."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a length of 1 or more, got {text}")
    return int(text)


def main(options: argparse.Namespace) -> int:
    """Runs the subcommand. Returns 0 if a table was found, otherwise 1. Raises ValueError for a bad file or option."""
    path = Path(options.file)
    tensors = {name or path.name: read for name, read in tensors_of(path).items()}
    if options.key is not None:
        chosen = {name: read for name, read in tensors.items() if name.endswith(options.key)}
        if not chosen:
            some = ", ".join(list(tensors)[:10])
            raise ValueError(
                f"--key: expected the end of a tensor's name, got {options.key!r}; the file has {some}, ..."
            )
        tensors = chosen
    found: list[dict[str, Any]] = []
    others: dict[str, str] = {}  # name -> why it is no table
    for name, read in tensors.items():
        try:
            tensor = read()
            matches = _examined(tensor, options.shape, everything=options.key is None)
        except Exception as error:  # a damaged tensor, or one that does not fit the shape
            if options.key is not None:
                raise ValueError(f"{name}: {reason_of(error)}") from None
            others[name] = reason_of(error)
            continue
        if matches or matches.closest or options.key is not None:
            found.append({"name": name, "tensor": tensor, "matches": matches})
        else:
            others[name] = matches.reason
    if options.json:
        print(json.dumps({"file": str(path), "tensors": [_facts(**one) for one in found], "others": others}, indent=2))
    else:
        lines = [line for one in found for line in _described(**one)] + _summary(others, bool(found))
        for line in lines or [f"{path.name}: no tensors"]:
            print(printable(line))
    return 0 if any(one["matches"] for one in found) else 1


def _examined(tensor: Any, shape: list[int] | None, *, everything: bool) -> Any:
    """The `Matches` of a tensor. With `everything`, a shape that does not fit it is left out."""
    from ..identification import Matches, begins_with_sinusoids, identify

    is_table = str(tensor.dtype).removeprefix("torch.") in FLOATING and sum(length > 1 for length in tensor.shape) >= 2
    if everything and not is_table:
        return Matches(reason="of another shape or type")
    if is_table and tensor.numel() > LARGEST and not begins_with_sinusoids(tensor):
        return Matches(reason="its first rows are not sinusoidal")
    try:
        return identify(tensor, shape=shape)
    except (TypeError, ValueError):
        if shape is None or not everything:
            raise
        return identify(tensor)


def _described(name: str, tensor: Any, matches: Any) -> list[str]:
    """The lines on a tensor that is a table or nearly one."""
    head = f"{name} {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    return [head, *(f"    {line}" for line in str(matches).splitlines())]


def _summary(others: dict[str, str], also: bool) -> list[str]:
    """A line on the tensors that are no table, with the most frequent reason."""
    if not others:
        return []
    (reason, number), *rest = Counter(others.values()).most_common()
    tensors = f"{len(others)}{' other' if also else ''} tensor{'s are' if len(others) > 1 else ' is'} no table"
    return [f"{tensors} ({f'{number} of them: {reason}; --json lists each' if rest else reason})"]


def _facts(name: str, tensor: Any, matches: Any) -> dict[str, Any]:
    """A tensor that is a table or nearly one, for --json; encodings, which are not JSON, are left out."""

    def fields(match: Any) -> dict[str, Any]:
        names = (field.name for field in dataclasses.fields(match))
        return {name: getattr(match, name) for name in names if name != "encoding"}

    closest = fields(matches.closest) if matches.closest else None
    return {
        "key": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."),
        "matches": [fields(match) for match in matches], "reason": matches.reason, "closest": closest,
    }  # fmt: skip

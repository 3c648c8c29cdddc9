"""`python -m sinpe_ext identify FILE`: finds positional-encoding tables in a checkpoint and names their convention."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from . import printable
from .checkpoint_files import reason_of, tensors_of

HELP = "find the tables of positional encodings in a checkpoint and name their conventions"


def options(command: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand."""
    command.add_argument(
        "file", metavar="FILE", help="a checkpoint or an array: .pt, .pth, .bin, .ckpt, .safetensors, .npy or .npz"
    )
    text = "lengths of a flattened grid: H W, or T H W (default: a sequence or a square grid)"
    command.add_argument("--shape", metavar="N", type=int, nargs="+", help=text)
    command.add_argument("--key", metavar="NAME", help="only tensors whose names end with NAME, and why each is none")
    command.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    """Runs the subcommand. Returns 0 if a table was found, otherwise 1. Raises ValueError for a bad file or option."""
    if options.shape is not None and min(options.shape) < 1:
        raise ValueError(f"--shape: expected lengths of 1 or more, got {min(options.shape)}; pass those of the axes")
    path, key = Path(options.file), options.key
    tensors = {name or path.name: read for name, read in tensors_of(path).items()}
    chosen = [name for name in tensors if key is None or name.endswith(key)]
    if key is not None and not chosen:
        names = ", ".join(list(tensors)[:10])
        raise ValueError(f"--key: expected the end of a tensor's name, got {key!r}; the file has {names}, ...")
    found: list[dict[str, Any]] = []
    others: dict[str, str] = {}  # name -> why it is no table
    for name in chosen:
        try:
            tensor = tensors[name]()
            matches = _identified(tensor, options.shape, must_fit=key is not None)
        except Exception as error:  # a damaged tensor, or one that does not fit the shape
            if key is not None:
                raise ValueError(f"{name}: {reason_of(error)}") from None
            others[name] = reason_of(error)
            continue
        if matches or matches.closest or key is not None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            found.append({"key": name, "shape": list(tensor.shape), "dtype": dtype, "matches": matches})
        else:
            others[name] = matches.reason
    if options.json:
        for one in found:
            matches = one["matches"]
            one |= {"matches": list(map(vars, matches)), "reason": matches.reason}
            one["closest"] = matches.closest and vars(matches.closest)
        print(json.dumps({"file": str(path), "tensors": found, "others": others}, indent=2, default=repr))
    else:
        for line in _lines(found, others) or [f"{path.name}: no tensors"]:
            print(printable(line))
    return 0 if any(one["matches"] for one in found) else 1


def _identified(tensor: Any, shape: list[int] | None, *, must_fit: bool) -> Any:
    """The `Matches` of a tensor. A shape that does not fit it is left out unless it must."""
    from ..identification import Matches, identify

    is_float = tensor.is_floating_point() and tensor.dtype.itemsize > 1
    if not must_fit and (not is_float or sum(length > 1 for length in tensor.shape) < 2):
        return Matches(reason="of another shape or type")
    try:
        return identify(tensor, shape=shape)
    except (TypeError, ValueError):
        if shape is None or must_fit:
            raise
        return identify(tensor)


def _lines(found: list[dict[str, Any]], others: dict[str, str]) -> list[str]:
    """The report: the tables, and a line on the other tensors, with the most frequent reason."""
    lines = []
    for one in found:
        lines.append(f"{one['key']} {tuple(one['shape'])} {one['dtype']}")
        lines += [f"    {line}" for line in str(one["matches"]).splitlines()]
    if others:
        (reason, number), *rest = Counter(others.values()).most_common()
        which = f"{len(others)}{' other' if found else ''} tensor{'s are' if len(others) > 1 else ' is'} no table"
        lines.append(f"{which} ({f'{number} of them: {reason}; --json lists each' if rest else reason})")
    return lines

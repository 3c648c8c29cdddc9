"""Where a command writes: refused before any work is done, in one wording."""

from __future__ import annotations

import os
from pathlib import Path


def file_to_write(name: str, given: str, *, or_folder: bool = False) -> Path:
    """The path of a file that can be written; with `or_folder` also that of a folder that can.

    Raises: ValueError naming the argument; folders are not made, since most that are missing are misspelt.
    """
    path = Path(given)
    is_folder = os.path.isdir(given)
    if not (is_folder and or_folder):
        if not given or is_folder:
            raise ValueError(f"{name}: expected a file to write to, got the folder {given or repr(given)}; add a name")
        if given.endswith(("/", os.sep)) or not os.path.isdir(path.parent):
            missing = given.rstrip("/" + os.sep) if given.endswith(("/", os.sep)) else path.parent
            raise ValueError(
                f"{name}: expected a file to write to in a folder that exists, got {given}; make {missing} first"
            )
    place = path if os.path.exists(path) else path.parent
    if not os.access(place, os.W_OK):
        raise ValueError(f"{name}: expected a file to write to, got {given}, and {place} is read-only; pass another")
    return path


def refused(name: str, given: object, error: OSError) -> ValueError:
    """What to raise where the system refuses a file after all."""
    return ValueError(f"{name}: expected a file to write to, got {given} ({error.strerror or error}); pass another")


def picture_to_write(name: str, given: str) -> Path:
    """The path of a picture, in a format that matplotlib writes."""
    from matplotlib.backend_bases import FigureCanvasBase

    path, known = file_to_write(name, given), sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        got = f'the format "{path.suffix[1:]}"' if path.suffix[1:] else "no ending"
        raise ValueError(
            f"{name}: expected a name that ends in .{', .'.join(known)}, got {got} in {given}; pass a .png"
        )
    return path

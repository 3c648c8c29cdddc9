"""Checks of output paths, made before any work is done."""

from __future__ import annotations

import os
from pathlib import Path


def file_to_write(name: str, given: str, *, or_folder: bool = False) -> Path:
    """Checks that a file can be written and returns its path; with `or_folder` a folder is accepted as well.

    Missing folders are not created, because most of them are misspelled. Raises ValueError that names the argument.
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
    """The exception to raise if writing a file fails in spite of the checks."""
    return ValueError(f"{name}: expected a file to write to, got {given} ({error.strerror or error}); pass another")


def picture_to_write(name: str, given: str) -> Path:
    """Checks that an image file can be written in a format of matplotlib and returns its path. Raises ValueError."""
    from matplotlib.backend_bases import FigureCanvasBase

    path, known = file_to_write(name, given), sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        got = f'the format "{path.suffix[1:]}"' if path.suffix[1:] else "no ending"
        raise ValueError(
            f"{name}: expected a name that ends in .{', .'.join(known)}, got {got} in {given}; pass a .png"
        )
    return path

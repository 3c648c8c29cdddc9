"""Checks of output paths, made before any work is done."""

from __future__ import annotations

import os
from pathlib import Path


def file_to_write(name: str, text: str, *, or_folder: bool = False) -> Path:
    """Checks that a file can be written and returns its path; with `or_folder` a folder is accepted as well.

    Missing folders are not created, because most of them are misspelled. Raises ValueError that names the argument.
    """
    path = Path(text)
    is_folder = os.path.isdir(text)
    if not (is_folder and or_folder):
        if not text or is_folder:
            raise ValueError(f"{name}: expected a file to write to, got the folder {text or repr(text)}; add a name")
        if text.endswith(("/", os.sep)) or not os.path.isdir(path.parent):
            missing = text.rstrip("/" + os.sep) if text.endswith(("/", os.sep)) else path.parent
            raise ValueError(
                f"{name}: expected a file to write to in a folder that exists, got {text}; make {missing} first"
            )
    target = path if os.path.exists(path) else path.parent
    if not os.access(target, os.W_OK):
        raise ValueError(f"{name}: expected a file to write to, got {text}, and {target} is read-only; pass another")
    return path


def refused(name: str, text: object, error: OSError) -> ValueError:
    """The exception to raise if writing a file fails in spite of the checks."""
    return ValueError(f"{name}: expected a file to write to, got {text} ({error.strerror or error}); pass another")


def picture_to_write(name: str, text: str) -> Path:
    """Checks that an image file can be written in a format of matplotlib and returns its path. Raises ValueError."""
    from matplotlib.backend_bases import FigureCanvasBase

    path, known = file_to_write(name, text), sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        got = f'the format "{path.suffix[1:]}"' if path.suffix[1:] else "no ending"
        raise ValueError(f"{name}: expected a name that ends in .{', .'.join(known)}, got {got} in {text}; pass a .png")
    return path


def matplotlib_installed() -> None:
    """Raises ImportError, with advice, if matplotlib cannot be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(f"plotting requires matplotlib ({error}); run `pip install matplotlib`") from error

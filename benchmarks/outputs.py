"""Checks of output paths, made before any work is done."""

from __future__ import annotations

from pathlib import Path


def file_to_write(name: str, text: str, *, or_folder: bool = False) -> Path:
    """Checks that a path names a file in a folder that exists, or with `or_folder` a folder, and returns it.

    Missing folders are not created, because most of them are misspelled. Raises ValueError that names the argument.
    """
    path = Path(text)
    if or_folder and path.is_dir():
        return path
    if not text or text.endswith("/") or path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{name}: expected a file to write to in a folder that exists, got {text!r}; pass its name")
    return path


def refused(name: str, text: object, error: OSError) -> ValueError:
    """The exception to raise if writing a file fails in spite of the check."""
    return ValueError(f"{name}: expected a file to write to, got {text} ({error.strerror or error}); pass another")


def picture_to_write(name: str, text: str) -> Path:
    """Checks that an image file can be written in a format of matplotlib and returns its path. Raises ValueError."""
    from matplotlib.backend_bases import FigureCanvasBase

    path, known = file_to_write(name, text), sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        raise ValueError(f"{name}: expected a name that ends in .{', .'.join(known)}, got {text}; pass a .png")
    return path


def matplotlib_installed() -> None:
    """Raises ImportError, with advice, if matplotlib cannot be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(f"plotting requires matplotlib ({error}); run `pip install matplotlib`") from error

"""Progress of the benchmark on standard error: a bar on a terminal with tqdm, else a line per step."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, TextIO


class Progress:
    """Counts the steps of a run. A context manager: the bar is removed before the tables are printed."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.bar = _bar(total, self.stream)
        self.begun = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    def step(self, title: str) -> None:
        """Start the next step; the previous one is done."""
        if self.bar is None:
            print(f"... {title}", file=self.stream, flush=True)
            return
        self.bar.update(int(self.begun))
        self.bar.set_postfix_str(title)
        self.begun = True


def _bar(total: int, stream: TextIO) -> Any:
    """tqdm's bar, or None if the stream is not a terminal or tqdm is not installed."""
    if not stream.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, file=stream, leave=False, dynamic_ncols=True, unit="row")

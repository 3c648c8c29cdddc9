"""The results file: facts of the machine, medians and spreads, one line for each row, so that a change is readable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import quantiles
from typing import Any

DIGITS = 6  # significant: more than any table shows


def spread(samples: list[float]) -> float:
    """The distance between the first and the third quartile, as a part of the median; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    first, middle, third = quantiles(samples, n=4, method="inclusive")
    return round((third - first) / middle, 4) if middle else 0.0


def shortened(value: Any) -> Any:
    """A copy with floats of DIGITS significant digits, and without the entries of dicts that are None or empty."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: shortened(item) for name, item in value.items() if item is not None and item != {}}
    return [shortened(item) for item in value] if isinstance(value, (list, tuple)) else value


def written(results: Mapping[str, Any]) -> str:
    """The text of a results file: JSON with a line for each entry of a list."""
    parts = []
    for name, value in shortened(results).items():
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
        else:
            text = json.dumps(value)
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(path: Path | None, results: Mapping[str, Any]) -> None:
    """Writes a results file atomically, so that an interrupted run leaves a complete file."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)  # the default folder; a folder given by the user exists
        whole = path.with_name(f"{path.name}.part")
        whole.write_text(written(results))
        whole.replace(path)

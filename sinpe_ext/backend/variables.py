"""The environment variables of this library: the values that each accepts, and a check of those that are set."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PREFIX = "SINPE_EXT_"


@dataclass(frozen=True)
class Setting:
    """The values that a variable accepts; without values it accepts any."""

    values: tuple[str, ...] = ()
    otherwise: str = ""  # the effect of any other value
    fatal: bool = False  # whether any other value raises an error when the variable is read


SETTINGS = {
    "BACKEND": Setting(("auto", "compiled", "eager"), "every call raises ValueError", fatal=True),
    "JIT": Setting(("0", "1"), "taken as 1: kernels are compiled on first use"),
    "BUILD": Setting(("auto", "cpu", "cuda", "none"), "an installation refuses it"),
    "CUDA_ARITHMETIC": Setting(("single", "double"), "the first call on CUDA raises ValueError", fatal=True),
    "CHECK": Setting(("0", "1"), "taken as 1: values on a device are checked"),
    "CPU_ISA": Setting(("default", "v3", "v4"), "ignored: the best that the CPU has is taken"),
    "POPULATE": Setting(("0", "1"), "taken as 1: pages of new outputs are populated"),
    "NON_TEMPORAL_BYTES": Setting(("a number of bytes",), "ignored: the default is taken"),
    "CACHE_DIR": Setting(),
    "LOCK_TIMEOUT": Setting(("a number of seconds",), "compiling on first use raises ValueError", fatal=True),
    "SANITIZE": Setting(("0", "1"), "taken as 1: libraries are built with sanitizers"),
}
_OF_TESTS = ("COMMIT", "OTHER_LIBRARIES", "REQUIRE_PEERS", "SANITIZE")
SETTINGS |= {name: Setting() for name in _OF_TESTS if name not in SETTINGS}


@dataclass(frozen=True)
class Problem:
    """A variable that is set to an invalid value, or whose name is unknown."""

    name: str
    value: str
    text: str
    fatal: bool = False


def problems(environ: Mapping[str, str] | None = None) -> list[Problem]:
    """The variables with invalid values, and those with a name that looks like one of this library and is unknown."""
    environ = os.environ if environ is None else environ
    invalid = []
    for name, value in sorted(environ.items()):
        known = SETTINGS.get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
        if known is None:
            invalid += _unknown_variable(name, value)
        elif value and not _accepts(name, known, value):
            expected = ", ".join(known.values)
            invalid.append(
                Problem(name, value, f"{name}: expected {expected}, got {value!r}; {known.otherwise}", known.fatal)
            )
    return invalid


def _accepts(name: str, known: Setting, value: str) -> bool:
    """Whether a variable accepts a value."""
    if name == f"{PREFIX}NON_TEMPORAL_BYTES":
        return re.fullmatch(r"[0-9]{1,18}", value) is not None
    if name != f"{PREFIX}LOCK_TIMEOUT":
        return not known.values or value in known.values
    with contextlib.suppress(ValueError):
        float(value)
        return True
    return False


def _unknown_variable(name: str, value: str) -> list[Problem]:
    """The problem of an unknown name with the prefix SINPE_EXT_, or of a similar one such as SINPE_JIT; else none."""
    ours = name.startswith(PREFIX)
    match = re.match(r"SINPE_?(?:EXT_?)?(.+)", name.upper())
    if match is None:
        return []
    close = difflib.get_close_matches(match[1], SETTINGS, n=1)
    if close:
        return [Problem(name, value, f"{name}={value} has no effect; did you mean {PREFIX}{close[0]}?")]
    known = ", ".join(PREFIX + each for each in SETTINGS if each not in _OF_TESTS)
    return [Problem(name, value, f"{name}={value} has no effect; expected one of {known}")] if ours else []


@contextlib.contextmanager
def without(refused: list[Problem]) -> Iterator[None]:
    """Removes the variables whose values would raise an error, so that a report is possible, and restores them."""
    kept = {problem.name: os.environ.pop(problem.name) for problem in refused if problem.fatal}
    try:
        yield
    finally:
        os.environ.update(kept)

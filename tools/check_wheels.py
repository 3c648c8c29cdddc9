"""Installs wheels of ours into clean environments and runs them there without a compiler:

    python tools/check_wheels.py dist/*.whl                          # torch 2.11, 2.13, the newest, and 2.6 for eager
    python tools/check_wheels.py dist/*.whl --python env/bin/python  # beside the torch of an environment that is there

Each wheel is looked into (wheel_contents.py), and installed into an environment of its own, build/wheels/...: with a
torch that pip installs (PYTHON makes it, TORCH_INDEX_URL is where torch comes from), or on top of an environment,
which is left as it is. There `python -m sinpe_ext info` and wheel_smoke.py run with an empty PATH, no cache and
SINPE_EXT_JIT=0. A wheel with a CPU library has to run it from torch 2.11 on, and eager PyTorch with a reason before;
a pure one runs eager PyTorch; all of them give the same bits. Standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import wheel_contents
from environments import LIMIT, OLDEST, PINNED, ROOT, CannotRun, newest, output, say

WORK = ROOT / "build" / "wheels"
EAGER = "2.6.0"  # the oldest torch that eager PyTorch is tested with
SMOKE = ROOT / "tools" / "wheel_smoke.py"
TABLE = "0bd6b4b1dfc59ae6ab06fb89d6ef7bf2be812b44837dee370b4231f20574f60f"  # docs/accuracy.md: table(65536, 512)
NOT_TRIED = "not tried"
OPERATIONS = 10  # of wheel_smoke.calls


class Place:
    """A torch: one that pip is to install, or that of an environment."""

    def __init__(self, torch: str = "", python: Path | None = None):
        self.base, self.torch = python, torch
        self.name = f"torch-{torch}"
        if python is not None:
            self.base = Path(os.path.abspath(python))  # not resolved: a link is what names an environment
            ask = "import sysconfig, torch; print(sysconfig.get_path('purelib'), torch.__version__)"
            self.site, found = output([str(self.base), "-W", "ignore", "-c", ask]).split()[-2:]
            self.torch = found.split("+")[0]
            self.name = f"beside-torch-{found}"

    def environment(self, wheel: Path) -> Path:
        """The Python of a fresh environment with this torch and the wheel."""
        kind = "pure" if wheel.stem.endswith("py3-none-any") else "compiled"
        folder = WORK / f"{self.name}-{kind}"
        python = folder / "bin" / "python"
        if self.base is None:
            if not python.exists():
                output([os.environ.get("PYTHON") or sys.executable, "-m", "venv", str(folder)])
                index = ["--index-url", os.environ["TORCH_INDEX_URL"]] if os.environ.get("TORCH_INDEX_URL") else []
                say(f"{folder.name}: torch {self.torch}")
                pip(python, f"torch=={self.torch}", *index)
            pip(python, "--force-reinstall", "--no-deps", str(wheel))
            pip(python, str(wheel))  # its dependencies: those are there
        else:
            shutil.rmtree(folder, ignore_errors=True)
            output([str(self.base), "-m", "venv", str(folder)])
            site = output([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
            (Path(site) / "zz_torch.pth").write_text(self.site + "\n", encoding="utf-8")
            pip(python, "--ignore-installed", "--no-deps", "--no-index", str(wheel))
        return python


def pip(python: Path, *arguments: str) -> None:
    output([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments], env=settings(None))


def settings(path: Path | None) -> dict[str, str]:
    """The environment of a command there; path: the only folder on its PATH."""
    dropped = ("SINPE_EXT_", "PYTHON", "CXX", "CC", "CUDA", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    if path is None:
        return kept
    return kept | {"PATH": str(path), "SINPE_EXT_JIT": "0", "SINPE_EXT_CACHE_DIR": str(path / "none")}


def run(python: Path, *arguments: str) -> str:
    """What a command prints in an empty folder that is all of its PATH."""
    empty = WORK / "empty"
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir(parents=True)
    command = [str(python), *arguments]
    done = subprocess.run(command, cwd=empty, env=settings(empty), capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        raise CannotRun(f"{' '.join(arguments[-2:])}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    if any(empty.iterdir()):
        raise CannotRun(f"{' '.join(arguments[-2:])} left {', '.join(path.name for path in empty.iterdir())} behind")
    return done.stdout


def wrong(wheel: Path, python: Path, found: dict[str, Any], info: dict[str, Any]) -> list[str]:
    """What the smoke run did not do as it should."""
    with zipfile.ZipFile(wheel) as archive:
        manifest = json.loads(archive.read("sinpe_ext/_build.json"))
    old = tuple(map(int, found["torch"].split(".")[:2])) < (2, 11)
    built = "cpu" in manifest["libraries"] and not old
    cpu = info["devices"]["cpu"]
    reason = "is older than 2.11" if old else str(manifest.get("reason"))
    checks = {
        "the version": found["version"] == wheel_contents.version(),
        "the place": python.parent.parent in Path(found["file"]).parents,
        "the backend": (found["backend"], found["how"]) == (("compiled", "prebuilt") if built else ("eager", "none")),
        "info's backend": (cpu["backend"], cpu["how"]) == (found["backend"], found["how"]),
        "the reason": built or (reason in found["reason"] and bool(cpu["todo"])),
        "the NumPy core": found["core"] == ("core" in manifest["libraries"]),
        "the table's SHA-256": found["table"] == TABLE,
        "NumPy's SHA-256": found["numpy"] in (None, TABLE),
        "the operations": len(found["names"]) == OPERATIONS,
        "identify": found["identified"] == "fairseq",
    }
    return [name for name, good in checks.items() if not good]


def serves(wheel: Path, python: Path) -> bool:
    """Whether a wheel is for this Python."""
    tag = re.search(r"-(cp\d+)-cp\d+-", wheel.name)
    ask = "import sys; print(f'cp{sys.version_info[0]}{sys.version_info[1]}')"
    return tag is None or tag[1] == output([str(python), "-c", ask]).strip()


def check(wheel: Path, place: Place, bits: set[str]) -> tuple[str, bool]:
    """One row of the table, and whether all is well."""
    try:
        if not serves(wheel, place.base or Path(os.environ.get("PYTHON") or sys.executable)):
            return f"| `{wheel.name}` | {place.torch} | - | not for this Python | {NOT_TRIED} |", True
        say(f"{wheel.name}, {place.name}")
        python = place.environment(wheel)
        info = json.loads(run(python, "-m", "sinpe_ext", "info", "--json"))
        found = json.loads(run(python, "-W", "ignore", str(SMOKE)))
    except (CannotRun, ValueError, subprocess.TimeoutExpired) as problem:
        return f"| `{wheel.name}` | {place.torch} | - | {problem} | failed |", False
    bits.add(found["calls"])
    problems = wrong(wheel, python, found, info) + (["other bits than elsewhere"] if len(bits) > 1 else [])
    how = f"{found['backend']}, {found['how']}, {found['isa']}" if found["how"] != "none" else found["backend"]
    reason = found["reason"].splitlines()[0]
    answer = "wrong: " + ", ".join(problems) if problems else "as it should be"
    return (
        f"| `{wheel.name}` | {found['torch']}, Python {found['python']} | {how} | {reason} | {answer} |",
        not problems,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("--python", action="append", type=Path, metavar="PATH", help="an environment with a torch")
    parser.add_argument("--torch", action="append", metavar="VERSION", help="make an environment with this release")
    arguments = parser.parse_args()
    good, bits, rows = True, set[str](), []
    for wheel in arguments.wheels:
        problems = wheel_contents.problems(wheel)
        good = good and not problems
        print(f"result: {wheel.name}: {'; '.join(problems) or 'holds what it should'}")
    try:
        places = [Place(python=path) for path in arguments.python or ()]
        versions = arguments.torch or ([] if places else list(dict.fromkeys([OLDEST, PINNED, newest(), EAGER])))
    except CannotRun as problem:
        print(f"result: {problem}")
        return 1
    places += [Place(torch=version) for version in versions]
    for wheel in arguments.wheels:
        answers = [check(wheel.absolute(), place, bits) for place in places]
        rows += [row for row, _ in answers]
        good = good and all(fine for _, fine in answers)
        if all(NOT_TRIED in row for row, _ in answers):
            print(f"result: {wheel.name}: for no Python here, so not tried; --python or PYTHON names another")
            good = False
    print("\n| wheel | torch | CPU | why | result |\n|---|---|---|---|---|", *rows, sep="\n")
    return not good


if __name__ == "__main__":
    sys.exit(main())

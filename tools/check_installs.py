"""Installs the project in the ways that users do, each in a fresh environment, and says what came of it:

    python tools/check_installs.py --python env/bin/python            # on top of an environment that has torch
    python tools/check_installs.py --python env/bin/python offline    # some of the ways

That environment stays as it is. It has to have pip and what pyproject.toml's build-system names, and the one that runs
this the package `build`. The isolated way and [plot] ask pip's index. Standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from check_wheels import Place, pip, settings
from environments import LIMIT, ROOT, CannotRun, output, say, sources
from wheels import build

WORK = ROOT / "build" / "installs"


@dataclass
class Way:
    """One way to install, and what has to be found afterwards."""

    name: str
    arguments: tuple[str, ...]
    expected: str  # in the outcome
    environ: dict[str, str] = field(default_factory=dict)
    compiler: bool = True
    then: Callable[[Path], str] = lambda python: ""

    def command(self) -> str:
        set_here = "".join(f"{name}={value} " for name, value in self.environ.items())
        return f"{set_here}pip install {' '.join(self.arguments)}" + ("" if self.compiler else ", no compiler")


def site_of(folder: Path) -> Path:
    return next((folder / "lib").glob("python*/site-packages"))


def draw(python: Path) -> str:
    target = python.parent.parent / "pe.png"
    output(
        [str(python), "-m", "sinpe_ext", "plot", "--length", "50", "--dim", "20", "-o", str(target)], cwd=target.parent
    )
    return "; plot drew " + ("a PNG" if target.read_bytes().startswith(b"\x89PNG") else "nothing")


def uninstall(python: Path) -> str:
    site = site_of(python.parent.parent)
    output([str(python), "-m", "pip", "uninstall", "-y", "sinpe-ext"])
    left = [path.name for path in site.glob("*sinpe*")]
    return "; uninstalled, left: " + (", ".join(left) or "nothing")


def ways(sdist: str, wheel: str) -> list[Way]:
    own, none = ("--no-build-isolation",), {"SINPE_EXT_BUILD": "none"}  # where compiling is not what is tried
    return [
        Way("no-compiler", (*own, "."), "eager: not built at install time: no C++ compiler was found", compiler=False),
        Way("demanded", (*own, "."), "SINPE_EXT_BUILD=cpu, but _C_cpu cannot be built: no C++ compiler",
            {"SINPE_EXT_BUILD": "cpu"}, compiler=False),
        Way("pure", (*own, "."), "eager: installed without compiled libraries; uninstalled, left: nothing", none,
            then=uninstall),
        Way("editable", (*own, "-e", "."), "eager: installed without compiled libraries", none),
        Way("old-setuptools", (*own, "."), "setuptools 65.5.0 is older than 77; run `pip install -U setuptools`", none),
        Way("sdist", (*own, "--no-index", sdist), "eager: installed without compiled libraries", none),
        Way("plot", (f"{wheel}[plot]",), "plot drew a PNG", then=draw),
        Way("offline", (*own, "--no-index", "."), "compiled: built at install time"),
        Way("isolated", (".",), "compiled: built at install time"),
    ]  # fmt: skip


def outcome(way: Way, place: Place, source: Path) -> str:
    """What the installation runs, or pip's last word."""
    folder = WORK / way.name
    shutil.rmtree(folder, ignore_errors=True)
    assert place.base is not None
    output([str(place.base), "-m", "venv", "--without-pip", str(folder)])  # pip and setuptools are the environment's
    python = folder / "bin" / "python"
    (site_of(folder) / "zz_torch.pth").write_text(place.site + "\n", encoding="utf-8")
    if way.name == "old-setuptools":
        pip(python, "--ignore-installed", "setuptools==65.5.0")
    empty = folder / "empty"
    empty.mkdir()
    path = os.pathsep.join([str(place.base.parent), os.environ["PATH"]]) if way.compiler else str(empty)
    environ = settings(None) | way.environ | {"PATH": path, "SINPE_EXT_CACHE_DIR": str(folder / "cache")}
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *way.arguments]
    done = subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise CannotRun(next((line for line in lines if line.startswith("sinpe_ext: ")), lines[-1]))
    info = json.loads(output([str(python), "-m", "sinpe_ext", "info", "--json"], cwd=empty,
                             env=environ | {"SINPE_EXT_JIT": "0"}))  # fmt: skip
    cpu = info["devices"]["cpu"]
    reason = cpu["reason"].split(" (")[0].split("; compiling on first use")[0]
    return f"{cpu['backend']}: {reason}" + way.then(python)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, type=Path, metavar="PATH", help="an environment with a torch")
    parser.add_argument("ways", nargs="*", metavar="WAY", help="which (default: all)")
    arguments = parser.parse_args()
    shutil.rmtree(WORK / "source", ignore_errors=True)
    source = sources(WORK / "source")
    try:
        place = Place(python=arguments.python)
        out = WORK / "dist"
        sdist = build(source, out, "sdist", False, SINPE_EXT_BUILD="none")
        wheel = build(source, out, "wheel", False, SINPE_EXT_BUILD="none")
    except CannotRun as problem:
        print(f"result: {problem}")
        return 1
    chosen = [way for way in ways(str(sdist), str(wheel)) if not arguments.ways or way.name in arguments.ways]
    failed, rows = 0, []
    for way in chosen:
        say(way.name)
        started = time.monotonic()
        try:
            found = outcome(way, place, source)
        except CannotRun as problem:
            found = f"refused: {problem}"
        good = way.expected in found
        failed += not good
        command = way.command().replace(str(WORK / "dist") + os.sep, "")
        rows.append(f"| `{command}` | {found} | {time.monotonic() - started:.0f} | {'yes' if good else '**no**'} |")
        say(rows[-1])
    print(f"torch {place.torch}\n\n| way | what came of it | s | as expected |\n|---|---|---|---|", *rows, sep="\n")
    return bool(failed or not chosen)


if __name__ == "__main__":
    sys.exit(main())

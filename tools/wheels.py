"""Makes the source distribution and the wheels in dist/, by `python -m build`, and checks what is in them:

    python tools/wheels.py                    # sdist, pure Python wheel, CPU wheel
    python tools/wheels.py --kinds none,cuda  # SINPE_EXT_BUILD of each wheel; cuda: with nvcc and a CUDA build of torch

The wheels are made of the unpacked source distribution, so that it is known to be whole, beside the torch of this
environment (--isolated: the torch that pyproject.toml names). Files carry the time of the last commit, or
SOURCE_DATE_EPOCH: the same sources and tools give the same bytes. tools/check_wheels.py installs and runs them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import wheel_contents
from environments import ROOT, CannotRun, output, say, sources

KINDS = ("none", "cpu", "cuda", "auto")


def build(folder: Path, out: Path, what: str, isolated: bool, **settings: str) -> Path:
    """One file by `python -m build` of the project in a folder."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SINPE_EXT_") and k != "PYTHONPATH"}
    command = [sys.executable, "-m", "build", f"--{what}", "--outdir", str(out / "new"), str(folder)]
    command += [] if isolated else ["--no-isolation"]
    shutil.rmtree(out / "new", ignore_errors=True)  # of a build that was ended
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    output(command, env=kept | {"PATH": path, "SOURCE_DATE_EPOCH": epoch()} | settings, cwd=folder)
    (made,) = (out / "new").iterdir()
    (out / "new" / made.name).replace(out / made.name)
    (out / "new").rmdir()
    return out / made.name


def epoch() -> str:
    """The time that the files carry."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return given or output(["git", "log", "-1", "--format=%ct"], cwd=ROOT).strip()


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as content:
        if hasattr(tarfile, "data_filter"):
            content.extractall(folder, filter="data")
        else:
            content.extractall(folder)
    (project,) = folder.iterdir()
    return project


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER", help="default: dist")
    parser.add_argument("--kinds", default="none,cpu", help="SINPE_EXT_BUILD of each wheel (default: none,cpu)")
    parser.add_argument("--isolated", action="store_true", help="in an environment that `build` makes")
    arguments = parser.parse_args()
    kinds = [kind for kind in arguments.kinds.split(",") if kind]
    if set(kinds) - set(KINDS):
        parser.error(f"--kinds: expected some of {', '.join(KINDS)} with commas, got {arguments.kinds!r}")
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    made = []
    try:
        with tempfile.TemporaryDirectory() as scratch:
            say("source distribution")
            made.append(
                build(sources(Path(scratch) / "copy"), out, "sdist", arguments.isolated, SINPE_EXT_BUILD="none")
            )
            for kind in kinds:
                say(f"wheel, SINPE_EXT_BUILD={kind}")
                project = unpacked(made[0], Path(scratch) / kind)
                made.append(build(project, out, "wheel", arguments.isolated, SINPE_EXT_BUILD=kind))
    except CannotRun as problem:
        print(f"result: {problem}")
        return 1
    bad = 0
    for path in made:
        problems = wheel_contents.problems(path)
        bad += len(problems)
        print(f"result: {path.name}: {path.stat().st_size / 1e6:.2f} MB, {len(problems) or 'no'} problems")
        for problem in problems:
            print(f"    {problem}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())

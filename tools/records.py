"""Runs the long test commands and records their results, with date and commit, for docs/reliability.md.

    python tools/records.py asan exhaustive    # runs these COMMANDS, writes docs/reliability/<name>.json and the table
    python tools/records.py                    # runs nothing; writes the table from those files
    python tools/records.py --check            # runs and writes nothing; checks that each command of the page has a
                                               # clean run

The result of a command consists of its lines "result: ..." and of the summaries of pytest and ctest. A run is clean if
the exit status is 0. A commit with a + means that files differed from it. Uses the standard library only; run it in the
environment of `make test`, with nox for asan and matrix.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import page_parts
from environments import commit

ROOT = Path(__file__).resolve().parent.parent


PAGE = ROOT / "docs" / "reliability.md"
RECORDS = ROOT / "docs" / "reliability"
PART = "python tools/records.py"
COMMANDS = {
    "arm64": "cmake --workflow --preset arm64",
    "asan": "nox -s asan",
    "bad-input": "pytest -m bad_input --require-backend=compiled",
    "cuda": "make check-cuda",
    "exhaustive": "make check-exhaustive",
    "fuzz": "pytest -n auto -m hypothesis --hypothesis-profile=long",
    "matrix": "make check-matrix",
    "peers": "make check-peers",
    "test-all": "make test-all",
    "tsan": "cmake --workflow --preset tsan",
    "wheels": "make check-wheels",
}
SAID = re.compile(r"result: (.*)|(?:=+ )?(\d+ (?:passed|failed)[^=]*)(?: =+)?|(\d+% tests passed.*)")


def run(command: str) -> dict[str, object]:
    """Runs a command, shows its output, and returns the record."""
    record: dict[str, object] = {"command": command, "commit": commit()}
    started, said = time.monotonic(), []
    streams: dict[str, Any] = {
        "text": True,
        "errors": "replace",
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    process = subprocess.Popen(shlex.split(command), cwd=ROOT, **streams)
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        if found := SAID.fullmatch(line.strip()):
            said.append(next(filter(None, found.groups())))
    clean = process.wait() == 0
    return record | {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "clean": clean and bool(said),
        "result": said or ["nothing said"],
    }


def page(text: str) -> str:
    """The page with the table of the recorded runs."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))]
    lines = ["| command | date | commit | minutes | clean | result |", "|---|---|---|---|---|---|"]
    for record in records:
        result = "<br>".join(part.replace("|", "\\|") for part in record["result"])
        cells = (f"`{record['command']}`", record["date"], record["commit"], record["minutes"])
        lines.append(f"| {' | '.join(map(str, cells))} | {'yes' if record['clean'] else '**no**'} | {result} |")
    return page_parts.replace(text, {PART: "\n".join(lines)})


def not_shown() -> list[str]:
    """The commands in the first column of the section Overview that have no clean recorded run."""
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Overview") :].split("\n## ")[0]
    firsts = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    named = {command for cell in firsts for command in re.findall(r"`([^`]+)`", cell)} - {"make test"}
    records = [json.loads(path.read_text(encoding="utf-8")) for path in RECORDS.glob("*.json")]
    return sorted(named - {record["command"] for record in records if record["clean"]})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--check", action="store_true", help="run nothing, write nothing")
    arguments = parser.parse_args()
    if strangers := sorted(set(arguments.name) - set(COMMANDS)):
        parser.error(f"NAME: expected some of {', '.join(COMMANDS)}, got {', '.join(strangers)}")
    if arguments.check:
        if missing := not_shown():
            print(f"{PAGE.name} names commands without a clean run: {', '.join(missing)}; run tools/records.py")
        return bool(missing)
    clean = True
    for name in arguments.name:
        record = run(COMMANDS[name])
        clean = clean and bool(record["clean"])
        RECORDS.mkdir(exist_ok=True)
        (RECORDS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return not clean


if __name__ == "__main__":
    sys.exit(main())

"""Runs commands of the Makefile, and keeps what they found, with date and commit, for docs/reliability.md:

    python tools/records.py asan exhaustive    # runs make asan, then make exhaustive: docs/reliability/<target>.json
    python tools/records.py --page             # runs nothing: the table of docs/reliability.md from those files
    python tools/records.py --check            # runs and writes nothing: is the table current, and has each command of
                                               # the page a clean run?

A command says what it found on lines that begin with "result: ", and that it was clean by its exit code. A commit with
a + had files changed since. Standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from environments import commit  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"
RECORDS = ROOT / "docs" / "reliability"
BEGIN, END = "<!-- begin: python tools/records.py --page -->", "<!-- end -->"
SAID = "result: "


def run(target: str) -> dict[str, object]:
    """`make target`, shown as it runs."""
    record: dict[str, object] = {"command": f"make {target}", "commit": commit()}
    started, said = time.monotonic(), []
    environ = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    process = subprocess.Popen(
        ["make", target],
        cwd=ROOT,
        env=environ,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        if line.startswith(SAID):
            said.append(line.removeprefix(SAID).strip())
    clean = process.wait() == 0
    return record | {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "clean": clean and bool(said),
        "result": said or ["nothing said"],
    }


def page(text: str) -> str:
    """The page with the table of what is kept."""
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))]
    lines = ["| command | date | commit | minutes | clean | result |", "|---|---|---|---|---|---|"]
    for record in kept:
        result = "<br>".join(part.replace("|", "\\|") for part in record["result"])
        cells = (f"`{record['command']}`", record["date"], record["commit"], record["minutes"])
        lines.append(f"| {' | '.join(map(str, cells))} | {'yes' if record['clean'] else '**no**'} | {result} |")
    before, _, rest = text.partition(BEGIN)
    if not rest or END not in rest:
        raise SystemExit(f"{PAGE.name}: no lines {BEGIN} and {END}")
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.partition(END)[2]


def not_shown() -> list[str]:
    """Commands that the section Overview names in its first column and that no clean run is kept of."""
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Overview") :].split("\n## ")[0]
    firsts = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    named = {target for cell in firsts for target in re.findall(r"`make ([a-z-]+)`", cell)} - {"test", "test-all"}
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RECORDS.glob("*.json")}
    return sorted(target for target in named if not kept.get(target, {}).get("clean"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="*", help="targets of the Makefile")
    parser.add_argument("--page", action="store_true", help="run nothing; write the table")
    parser.add_argument("--check", action="store_true", help="run nothing, write nothing")
    arguments = parser.parse_args()
    if bool(arguments.target) == (arguments.page or arguments.check):
        parser.error("name targets, or --page, or --check")
    clean = True
    known = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    if strangers := [target for target in arguments.target if target not in known]:
        parser.error(f"the Makefile has no target {', '.join(strangers)}")
    for target in arguments.target:
        record = run(target)
        clean = clean and bool(record["clean"])
        RECORDS.mkdir(exist_ok=True)
        (RECORDS / f"{target}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    made = page(text)
    if arguments.check:
        print("current" if made == text else f"{PAGE.name}: not current, run python tools/records.py --page")
        missing = not_shown()
        if missing:
            print(f"{PAGE.name} names commands of which no clean run is kept: {', '.join(missing)}; make record OF=...")
        return made != text or bool(missing)
    PAGE.write_text(made, encoding="utf-8")
    return not clean


if __name__ == "__main__":
    sys.exit(main())

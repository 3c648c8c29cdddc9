"""Runs the commands that a page shows, in a clean copy, and writes their output into the page.

    python tools/transcript.py                           # docs/tour.md: its blocks marked <!-- transcript -->
    python tools/transcript.py docs/page.md --keep DIR   # another page; DIR, a new folder, keeps the copy

A marked ```console block contains commands after "$ ", their continuation lines after "> ", and their output. All
blocks of a page run in one bash process. Its home directory contains only a clone of the last commit, named sinpe_ext:
no Python environment, no cache, and none of the caller's settings. If a command fails, the run ends and the page is not
changed. The line that begins with "Printed by" gets date, commit and machine. Needs only the standard library and git.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from environments import ROOT, CannotRun, output, say

BLOCK = re.compile(r"(?<=<!-- transcript -->\n```console\n).*?(?=^```$)", re.M | re.S)
STAMP = re.compile(r"^Printed by .*$", re.M)
END = "\x1e"  # the record separator of ASCII: no command prints it
PASSED_VARIABLES = ("LANG", "LC_ALL", "TERM", "TZ", "USER", "LOGNAME", "CXX", "CUDACXX", "CUDA_HOME")
PASSED_PREFIXES = ("PIP_", "http", "https", "no_proxy", "SSL_", "REQUESTS_")  # how pip reaches its index


@dataclass
class Command:
    lines: list[str]
    printed: str = ""

    def __str__(self) -> str:
        return "$ " + "\n> ".join(self.lines) + "\n" + self.printed


def commands(block: str) -> list[Command]:
    """The commands of a block, without the output that it shows."""
    found: list[Command] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Command([line[2:]]))
        elif line.startswith("> ") and found:
            found[-1].lines.append(line[2:])
    return found


def tidy(printed: str, home: Path) -> str:
    """Output as a page shows it: without colours, only the last state of lines that are overwritten, and with ~ for the
    home directory."""
    printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in printed.split("\n")]
    text = "\n".join(lines).strip("\n")
    for name in sorted({str(home), str(home.resolve())}, key=len, reverse=True):
        text = text.replace(name, "~")
    return text + "\n" if text else ""


def environ(home: Path) -> dict[str, str]:
    """The environment variables of a new user: this Python and the system's programs on the PATH, no active Python
    environment, and the settings with which pip reaches its index."""
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    path = [p for p in os.environ["PATH"].split(os.pathsep) if not (active and Path(p).is_relative_to(active))]
    variables = {k: v for k, v in os.environ.items() if k in PASSED_VARIABLES or k.startswith(PASSED_PREFIXES)}
    pip = Path.home() / ".config" / "pip" / "pip.conf"
    if pip.is_file():
        variables.setdefault("PIP_CONFIG_FILE", str(pip))
    return variables | {"HOME": str(home), "PATH": os.pathsep.join([str(Path(sys.base_prefix) / "bin"), *path])}


def run(todo: list[Command], home: Path) -> None:
    """Runs all commands in one bash process and stores the output of each. Raises CannotRun at the first failure."""
    ends = f"status=$?; printf '{END}%d{END}' $status; [ $status = 0 ] || exit"
    script = home.parent / "commands.sh"
    script.write_text("\n".join("\n".join([*command.lines, ends]) for command in todo) + "\n", encoding="utf-8")
    with subprocess.Popen(
        ["bash", str(script)],
        cwd=home,
        env=environ(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        printed = ""
        for raw in process.stdout:  # as bytes: text would take the carriage returns of a progress bar for ends of lines
            line = raw.decode(errors="replace")
            sys.stderr.write(line.replace(END, "\n"))
            printed += line
    parts = printed.split(END)
    for command, (said, status) in zip(todo, zip(parts[::2], parts[1::2], strict=False), strict=False):
        command.printed = tidy(said, home)
        if status != "0":
            raise CannotRun(f"exit status {status} of {command}")
    if len(parts) < 2 * len(todo) + 1:
        raise CannotRun(f"bash ended within {todo[len(parts) // 2]}")


def stamp() -> str:
    """The date, the commit and the machine."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.machine import processor

    head = output(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT).strip()
    today = datetime.now(timezone.utc).date().isoformat()
    return f"{today}, commit {head}, {os.cpu_count()} cores of {processor()}"


def renewed(text: str, home: Path) -> str:
    """The page with the current output of its commands."""
    blocks = [commands(block) for block in BLOCK.findall(text)]
    if not any(blocks):
        raise CannotRun("the page has no command in a console block after <!-- transcript -->")
    run([command for block in blocks for command in block], home)
    fresh = iter(blocks)
    return BLOCK.sub(lambda _: "".join(map(str, next(fresh))), text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", nargs="?", type=Path, default=ROOT / "docs" / "tour.md")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder for the copy, which stays there")
    options = parser.parse_args(arguments)
    text = options.page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as temporary:
        home = (options.keep or Path(temporary)).absolute() / "home"
        try:
            home.mkdir(parents=True)
            output(["git", "clone", "--quiet", str(ROOT), str(home / "sinpe_ext")])
            printed_by = f"Printed by `python tools/transcript.py`: {stamp()}."
            text = STAMP.sub(lambda _: printed_by, renewed(text, home))
        except (CannotRun, OSError) as problem:
            say(f"{problem}\n{options.page.name} stays as it is")
            return 1
    options.page.write_text(text, encoding="utf-8")
    say(f"{options.page.name} is new")
    return 0


if __name__ == "__main__":
    sys.exit(main())

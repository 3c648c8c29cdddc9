"""tools/transcript.py: runs a page's commands in a clean home, and puts their output into the page."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pages
import pytest
from children import execute
from loading import module_at

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = """# Page
Printed by nobody.
<!-- transcript -->
```console
$ export WORD=kept
never printed
$ cat <<'END'
> two
>   lines
> END
```
Between.
```console
$ touch not_run
```
<!-- transcript -->
```console
$ echo "$WORD" | tr a-z A-Z
$ cd sinpe_ext && ls README.md && pwd && ls -A ..
$ env | grep -c "^SINPE_EXT\\|^VIRTUAL_ENV\\|^PYTHONPATH" || true
$ printf '10%%\\r\\033[1m100%%\\033[0m  \\n\\n' >&2
```
"""


@pytest.fixture
def tool() -> ModuleType:
    if execute(["git", "rev-parse", "HEAD"], cwd=ROOT, status=None).returncode:
        pytest.skip("needs a git repository to clone")
    return module_at(ROOT / "tools" / "transcript.py")


def test_page_is_updated(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINPE_EXT_JIT", "0")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert tool.main([str(page), "--keep", str(tmp_path / "kept")]) == 0
    text = page.read_text()
    first, other, last = pages.blocks(text, "console")
    assert first.code == "$ export WORD=kept\n$ cat <<'END'\n> two\n>   lines\n> END\ntwo\n  lines\n"
    assert other.code == "$ touch not_run\n" and not list(tmp_path.rglob("not_run"))
    printed = [line for line in last.code.splitlines() if not line.startswith("$ ")]
    assert printed == ["KEPT", "README.md", "~/sinpe_ext", "sinpe_ext", "0", "100%"]
    assert re.search(
        r"^Printed by `python tools/transcript.py`: \d{4}-\d\d-\d\d, commit [0-9a-f]{10}, \d+ cores of ", text, re.M
    )
    assert text.startswith("# Page\n") and "\nBetween.\n" in text
    assert (tmp_path / "kept" / "home" / "sinpe_ext" / "README.md").is_file()


@pytest.mark.parametrize(
    "block, said",
    [
        ("$ echo before\n$ ls none\n$ echo after\n", "exit status 2 of $ ls none"),
        ("$ exit 0\n$ echo after\n", "bash ended within $ exit 0"),
        ("nothing\n", "no command"),
    ],
)
def test_failing_page_is_unchanged(tool: ModuleType, tmp_path: Path, capsys, block: str, said: str) -> None:
    page = tmp_path / "page.md"
    text = f"<!-- transcript -->\n```console\n{block}```\n"
    page.write_text(text)
    assert tool.main([str(page)]) == 1
    shown = capsys.readouterr().err
    assert said in shown and "page.md stays as it is" in shown and "\nafter" not in shown
    assert page.read_text() == text


def test_tour_is_a_transcript(tool: ModuleType) -> None:
    """The tour's commands and their recorded output."""
    text = pages.text_of("docs/tour.md")
    found = [line for block in tool.BLOCK.findall(text) for command in tool.commands(block) for line in command.lines]
    for wanted in ("make demo", "sinpe_ext info", "sinpe_ext identify", "examples/", "pip install"):
        assert any(wanted in line for line in found), wanted
    assert tool.STAMP.search(text) and "commit" in tool.STAMP.search(text)[0]
    assert "/tmp" not in "".join(tool.BLOCK.findall(text))

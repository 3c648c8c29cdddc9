"""README and docs: all Python blocks and commands run, links are valid, named files exist.

The Python blocks of a page run one after the other. A block that cannot run here is preceded by a comment in the page:
<!-- not run: reason -->.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pages
import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext import __main__ as cli

# Pages whose blocks are run by another test file, and its name.
ELSEWHERE = {
    "docs/conventions.md": "test_conventions_page.py",
    "docs/graphs.md": "test_graphs_page.py",
    "docs/integrations.md": "test_integrations_page.py",
}
ON_RANKS = "runs on every rank in the tests"  # tests/distributed/test_dtensor.py
# Commands that take minutes: only their options are parsed; test_cli.py and test_build.py run them.
LONG = ("demo", "build")
LANGUAGES = {"", "python", "sh", "console", "text", "cpp", "cmake", "toml", "yaml", "json", "diff"}


@pytest.mark.parametrize("page", [page for page in pages.PAGES if page not in ELSEWHERE])
def test_all_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_blocks = pages.blocks(pages.text_of(page), "python")
    if not python_blocks:
        pytest.skip("no Python block")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printing = dict(vars(torch._tensor_str.PRINT_OPTS))
    with torch.random.fork_rng(devices=[]):
        for block in python_blocks:
            assert not block.mark or block.not_run or block.mark == ON_RANKS, f"{page}:{block.line}: {block.mark}"
            code = compile("\n" * block.line + block.code, page, "exec")  # also blocks that do not run must parse
            if not block.mark:
                exec(code, names)
    vars(torch._tensor_str.PRINT_OPTS).update(printing)


def test_other_pages_are_tested() -> None:
    for page, test in ELSEWHERE.items():
        assert page.rpartition("/")[2] in (pages.ROOT / "tests" / "pages" / test).read_text(), page
    blocks = [b for page in pages.PAGES for b in pages.blocks(pages.text_of(page))]
    assert {block.language for block in blocks} <= LANGUAGES
    marked = [p for p in pages.PAGES if any(b.mark == ON_RANKS for b in pages.blocks(pages.text_of(p)))]
    assert marked == ["docs/distributed.md"]


def commands() -> list[str]:
    """Arguments of `python -m sinpe_ext` in shell blocks, without comments and redirections."""
    arguments = []
    for page in pages.PAGES:
        for block in pages.blocks(pages.text_of(page), "", "sh", "console"):
            lines = re.sub(r"\\\n\s*", " ", block.code).splitlines()
            said = [re.match(r"(?:\$ )?(?:[A-Z_]+=\S* )*python -m sinpe_ext ([^#>|]*)", line) for line in lines]
            arguments += [match[1].strip() for match in said if match]
    return arguments


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_command_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)
    cli.parser().parse_args(words)  # SystemExit for an unknown option
    if words[0] in LONG:
        return
    if words[0] == "plot":
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    torch.save({"pe": sinpe.table(64, 8)}, "checkpoint.pt")  # a file that the pages assume
    assert cli.main(words) == 0


@pytest.mark.parametrize("page", pages.PAGES)
def test_names_of_files_and_targets_are_valid(page: str) -> None:
    """Links are checked by `make docs`."""
    text = pages.text_of(page)
    assert pages.missing_paths(text) == []
    assert pages.missing_targets(text) == []


def test_missing_files_and_targets_are_detected() -> None:
    text = (
        "`tests/none.py` `tests/pages/test_*.py` `csrc/core/` `make nothing` `make test` `make\nnone`\n"
        "```python\nk[l](m)\n```\n"
    )
    assert pages.missing_paths(text) == ["tests/none.py"] and pages.missing_targets(text) == ["nothing", "none"]


def test_index_names_every_page() -> None:
    index = set(pages.links(pages.text_of("docs/README.md")))
    every = {Path(page).name for page in pages.PAGES if re.fullmatch(r"docs/[^/]*\.md", page)} - {"README.md"}
    assert every - index == set()
    assert {f"../{page}" for page in pages.PAGES if "/" not in page} - index == set()


def test_every_convention_is_named() -> None:
    text = pages.text_of("docs/guide.md")
    section = text[text.index("## Conventions") :]
    assert not [name for name in sinpe.conventions() if f"`{name}`" not in section]

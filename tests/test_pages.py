"""README and docs: every Python block and command runs, every link leads somewhere, every file that is named is there.

A page's Python blocks run one after the other, as a reader would paste them. One that cannot run here says so in the
page itself, in a comment before it: <!-- not run: reason -->.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pages
import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext import __main__ as cli

# Pages whose blocks have a test of their own, and what that test has to name.
ELSEWHERE = {
    "docs/conventions.md": "test_conventions_page.py",
    "docs/graphs.md": "test_graphs_page.py",
    "docs/integrations.md": "test_integrations_page.py",
}
ON_RANKS = "runs on every rank in the tests"  # tests/distributed_models.py
# Commands that take minutes; their options are read, and tests/test_cli.py and tests/test_build.py run them.
LONG = ("demo", "bench", "build")
LANGUAGES = {"", "python", "sh", "console", "text", "cpp", "cmake", "toml", "yaml", "json"}


@pytest.mark.parametrize("page", [page for page in pages.PAGES if page not in ELSEWHERE])
def test_every_block_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pages.blocks(pages.text_of(page), "python")
    if not found:
        pytest.skip("no Python block")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printing = dict(vars(torch._tensor_str.PRINT_OPTS))
    with torch.random.fork_rng(devices=[]):
        for block in found:
            assert not block.mark or block.not_run or block.mark == ON_RANKS, f"{page}:{block.line}: {block.mark}"
            code = compile("\n" * block.line + block.code, page, "exec")  # of any block: those that do not run parse
            if not block.mark:
                exec(code, names)
    vars(torch._tensor_str.PRINT_OPTS).update(printing)


def test_the_other_pages_have_their_tests() -> None:
    for page, test in ELSEWHERE.items():
        assert page.rpartition("/")[2] in (pages.ROOT / "tests" / test).read_text(), page
    blocks = [b for page in pages.PAGES for b in pages.blocks(pages.text_of(page))]
    assert {block.language for block in blocks} <= LANGUAGES
    marked = [p for p in pages.PAGES if any(b.mark == ON_RANKS for b in pages.blocks(pages.text_of(p)))]
    assert marked == ["docs/distributed.md"]


def commands() -> list[tuple[str, str]]:
    """Lines `python -m sinpe_ext ...` of shell blocks, with their page."""
    found = []
    for page in pages.PAGES:
        for block in pages.blocks(pages.text_of(page), "", "sh", "console"):
            lines = re.sub(r"\\\n\s*", " ", block.code).splitlines()
            found += [
                (page, line[line.index("python -m sinpe_ext") :])
                for line in lines
                if re.match(r"(\$ )?([A-Z_]+=\S* )*python -m sinpe_ext", line)
            ]
    return found


@pytest.mark.parametrize("page, line", commands(), ids=lambda value: value.replace("python -m sinpe_ext ", ""))
def test_every_command_runs(page: str, line: str, tmp_path: Path) -> None:
    words = shlex.split(line.partition(">")[0], comments=True)[3:]
    cli.parser().parse_args(words)  # SystemExit where it does not know one of them
    if words[0] in LONG:
        return
    torch.save({"pe": sinpe.table(64, 8)}, tmp_path / "checkpoint.pt")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(pages.ROOT), os.environ.get("PYTHONPATH", "")])}
    if "plot" in words:
        pytest.importorskip("matplotlib")
    call = [sys.executable, "-m", "sinpe_ext", *words]
    done = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", pages.PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    text = pages.text_of(page)
    assert pages.broken(page) == []
    assert pages.missing_paths(text) == []
    assert pages.missing_targets(text) == []


def test_what_leads_nowhere_is_found() -> None:
    text = (
        "# One `add` more: the\n## Two\n## Two\n[a](README.md#two-1) [b](#one-add-more-the) [c](#two) [d](#two-1)\n"
        "[e](none.md) [f](docs/accuracy.md#the-promise) [g](docs/accuracy.md#none) [h](https://example.org/#x)\n"
        "`a[i](j)` `tests/none.py` `tests/test_*.py` `csrc/core/` `make nothing` `make test`\n"
        "```python\nk[l](m)\n```\n"
    )
    assert pages.broken("README.md", text) == ["README.md#two-1", "none.md", "docs/accuracy.md#none"]
    assert pages.missing_paths(text) == ["tests/none.py"] and pages.missing_targets(text) == ["nothing"]


def test_the_index_names_every_page() -> None:
    index = set(pages.links(pages.text_of("docs/README.md")))
    every = {Path(page).name for page in pages.PAGES if re.fullmatch(r"docs/[^/]*\.md", page)} - {"README.md"}
    assert every - index == set()
    assert {f"../{page}" for page in pages.PAGES if "/" not in page} - index == set()


def test_every_convention_is_named() -> None:
    text = pages.text_of("README.md")
    section = text[text.index("## Conventions") :]
    assert not [name for name in sinpe.conventions() if f"`{name}`" not in section]

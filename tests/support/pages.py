"""Documentation pages: code blocks, links and anchors, as GitHub renders them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = tuple(
    path.relative_to(ROOT).as_posix()
    for path in (
        *sorted(ROOT.glob("*.md")),
        *(p for d in ("docs", "examples", "benchmarks", "csrc") for p in sorted((ROOT / d).glob("**/*.md"))),
    )
)
FENCE = re.compile(
    r"(?:<!-- *(?P<mark>[^\n]*?) *-->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^ *```$", re.S | re.M
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    mark: str  # the HTML comment on the line before it
    line: int

    @property
    def not_run(self) -> str:
        """The reason in the page why the block is not run, or an empty string."""
        return self.mark.removeprefix("not run:").strip() if self.mark.startswith("not run:") else ""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> list[Block]:
    """Fenced blocks of these languages, or all."""
    fenced = [
        Block(m["language"], m["code"], m["mark"] or "", text.count("\n", 0, m.start("code")) + 1)
        for m in FENCE.finditer(text)
    ]
    return [block for block in fenced if not languages or block.language in languages]


def prose(text: str) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", text)


def links(text: str) -> list[str]:
    """Targets of links and images, except in code."""
    return LINK.findall(re.sub(r"`[^`\n]*`(?!\])", "", prose(text)))


def missing_paths(text: str) -> list[str]:
    """Missing files that the code of a page names; * matches any name."""
    code = [block.code for block in blocks(text)] + re.findall(r"`([^`]+)`", prose(text))
    folders = r"(?<![\w/.~$-])(?:csrc|sinpe_ext|tests|tools|docs|examples|benchmarks|cmake)/[\w./*-]*"
    named = [path.rstrip(".") for path in re.findall(folders, "\n".join(code))]
    made_up = re.compile(r".*/[A-Z]+\.\w+")  # placeholders such as benchmarks/results/NEW.json
    return [path for path in named if not made_up.fullmatch(path) and not any(ROOT.glob(path.rstrip("/")))]


def missing_targets(text: str) -> list[str]:
    """`make` targets in the page that the Makefile lacks."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    code = [block.code for block in blocks(text, "", "sh", "console")]
    code += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]
    named = [
        name for line in "\n".join(code).splitlines() for name in re.findall(r"^(?:\$ )?make ([a-z][a-z0-9-]*)", line)
    ]
    return [name for name in named if name not in targets]

"""Documentation pages: their code blocks, and the files and make targets that they name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = "docs", "examples", "benchmarks", "csrc"
PAGES = tuple(
    path.relative_to(ROOT).as_posix()
    for path in (*sorted(ROOT.glob("*.md")), *(p for d in FOLDERS for p in sorted((ROOT / d).glob("**/*.md"))))
)
FENCE = re.compile(
    r"(?:<!-- *(?P<mark>[^\n]*?) *-->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^ *```$", re.S | re.M
)


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


def missing(text: str) -> list[str]:
    """Files and make targets that the page names in code, and that do not exist; * matches any name."""
    targets = set(re.findall(r"^([a-z0-9-]+):", text_of("Makefile"), re.M))
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    code = "\n".join([block.code for block in blocks(text)] + spans)
    folders = r"(?<![\w/.~$-])(?:csrc|sinpe_ext|tests|tools|docs|examples|benchmarks|cmake)/[\w./*-]*"
    paths = [path.rstrip(".") for path in re.findall(folders, code)]
    made_up = re.compile(r".*/[A-Z]+\.\w+")  # placeholders such as benchmarks/results/NEW.json
    paths = [path for path in paths if not made_up.fullmatch(path) and not any(ROOT.glob(path.rstrip("/")))]
    shell = "\n".join([block.code for block in blocks(text, "", "sh", "console")] + spans)
    return paths + [name for name in re.findall(r"(?m)^(?:\$ )?make ([a-z][a-z0-9-]*)", shell) if name not in targets]

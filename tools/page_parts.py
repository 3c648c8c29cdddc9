"""Generated parts of pages, between the lines <!-- begin: NAME --> and <!-- end -->. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping

PART = re.compile(r"(<!-- begin: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def parts(text: str) -> dict[str, str]:
    """The name of each part of a page and its content."""
    return {name: content for _, name, content, _ in PART.findall(text)}


def replace(text: str, contents: Mapping[str, str]) -> str:
    """The page with new contents of the named parts. Raises ValueError if the page lacks one."""
    if missing := contents.keys() - parts(text):
        raise ValueError(f"the page has no lines <!-- begin: {min(missing)} --> and <!-- end -->")
    return PART.sub(lambda part: f"{part[1]}{contents[part[2]]}\n{part[4]}" if part[2] in contents else part[0], text)

"""`tools/page_parts.py`: only the named parts of a page are replaced, and a page without one is refused."""

from __future__ import annotations

import page_parts
import pytest

PAGE = "a\n<!-- begin: one -->\nold 1\n<!-- end -->\nb\n<!-- begin: two -->\nold 2\n<!-- end -->\nc\n"


def test_named_part_is_replaced() -> None:
    made = page_parts.replace(PAGE, {"two": r"new \1"})
    assert made == PAGE.replace("old 2", r"new \1")
    assert page_parts.parts(made) == {"one": "old 1\n", "two": "new \\1\n"}


@pytest.mark.parametrize("page", ["a\n", PAGE.replace("<!-- end -->", "")])
def test_page_without_the_part_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="no lines <!-- begin: one --> and <!-- end -->"):
        page_parts.replace(page, {"one": "new"})

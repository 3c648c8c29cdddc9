"""Names of exported headers: a name that is no C identifier is rejected, names of conventions are accepted."""

from __future__ import annotations

import pytest

import sinpe_ext as sinpe
from sinpe_ext import __main__ as cli
from sinpe_ext.cli.export import export_header

PAPER = sinpe.convention("paper", 6)
NO_IDENTIFIERS = ["", "1x", "a b", "a-b", "a\n", "a.b", "é6", "π", "ｐａｐｅｒ", "a$", 'a"', "*/", "\ud800", "_a"]


@pytest.mark.parametrize("name", NO_IDENTIFIERS, ids=ascii)
def test_names_that_are_no_identifiers_are_rejected(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        export_header(PAPER, name)
    assert (
        str(caught.value) == f"name: expected a C identifier, got {name!r}; pass letters, digits and _, such as paper6"
    )


def test_command_line_rejects_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", "a\nb"):
        assert cli.main(["export", "paper", "6", "--name", name, "-o", "-"]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and len(printed.err.splitlines()) == 1
        assert printed.err.startswith("python -m sinpe_ext export: name: expected a C identifier, got ")


def test_names_of_conventions_are_accepted() -> None:
    for name in sinpe.conventions():
        export_header(PAPER, f"{name}512")

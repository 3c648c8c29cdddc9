"""The subcommands of `python -m sinpe_ext`, one module each: HELP, `options(parser)` and `main(options) -> exit code`.

Bad usage is a TypeError, ValueError, IndexError or ImportError, whose message is printed. What they share is here.
"""

from __future__ import annotations

import argparse
import ast
from typing import Any

from ..encodings.catalogue import convention


def encoding_option(command: argparse.ArgumentParser) -> None:
    """Adds the option --set of the subcommands that take an encoding by the name of its convention."""
    text = "a field of the Encoding, such as base=500000, odd=pad or frequencies=1,0.5; may be repeated"
    command.add_argument("--set", metavar="FIELD=VALUE", type=field, action="append", default=[], help=text)


def field(setting: str) -> tuple[str, Any]:
    """Parses FIELD=VALUE; a value that is no Python literal is a string."""
    name, separator, text = setting.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"expected FIELD=VALUE, got {setting!r}; pass --set base=500000")
    try:
        return name.strip(), ast.literal_eval(text.strip())
    except (SyntaxError, ValueError):
        return name.strip(), text


def chosen_encoding(options: argparse.Namespace) -> Any:
    """The encoding of the arguments convention and dim and of --set. Raises TypeError, ValueError."""
    return convention(options.convention, options.dim, **dict(options.set))


def printable(text: str) -> str:
    """A text with unprintable characters escaped: control characters, line breaks, direction marks, lone surrogates."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

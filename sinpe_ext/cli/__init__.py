"""The subcommands of `python -m sinpe_ext`, one module each: HELP, `options(parser)` and `main(options) -> exit code`.

Bad usage is a TypeError, ValueError, IndexError or ImportError, whose message is printed.
"""


def printable(text: str) -> str:
    """A text with unprintable characters escaped: control characters, line breaks, direction marks, lone surrogates."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

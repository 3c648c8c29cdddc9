"""The subcommands of `python -m sinpe_ext`, one module each: HELP, `options(parser)` and `main(options) -> exit code`.

Bad usage is a TypeError, ValueError, IndexError or ImportError, of which the first line is printed.
"""

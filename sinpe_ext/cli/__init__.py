"""The subcommands of the command line `python -m sinpe_ext`; their options are in `sinpe_ext/__main__.py`."""

"""Aliases of modules under their previous names; `sinpe_ext/__init__.py` appends this folder to its `__path__`."""

"""Modules under their names of before: `sinpe_ext/__init__.py` adds this folder to where it looks."""

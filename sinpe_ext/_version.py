"""The version, stated once: setuptools reads it from here without importing anything."""

__version__ = "0.1.0"

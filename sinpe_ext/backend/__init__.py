"""Which compiled library serves a device: its sources, the compilers, the cache, the loader with its reasons."""

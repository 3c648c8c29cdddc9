"""The benchmark: sinpe_ext, memory floors, and other implementations, timed in one run: `python -m benchmarks`."""

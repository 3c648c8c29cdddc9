"""The benchmark: sinpe_ext, the floor set by memory, and other implementations, in one run. `python -m benchmarks`."""

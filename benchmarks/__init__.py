"""The benchmark: ours, the floor that memory sets, and what others do, in one run. `python -m benchmarks`."""

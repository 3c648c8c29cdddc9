"""Encodings: their fields, the conventions by name, exact frequencies, and the constants for the kernels. No torch."""

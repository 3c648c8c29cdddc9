"""Interaction with PyTorch's runtime: tracing and compilation, grad mode, device constants, operator registration."""

"""Kernels that are wrong on purpose, each in its own way, and one that is right."""

"""Numba kernels: the loops that run once per batch, record or byte."""

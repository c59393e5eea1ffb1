"""Benchmarks: measured through public interfaces, printed with machine and commit by `make bench`."""

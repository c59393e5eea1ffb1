"""Benchmarks through public interfaces; `make bench` prints them with machine and commit."""

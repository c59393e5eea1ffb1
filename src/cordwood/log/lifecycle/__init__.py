"""Lifecycle of a data directory and its topics: open, create, recover, swap, delete, close."""

"""Counts with their noun, for messages: ``1 record``, ``2 records``, ``0 batches``."""

from __future__ import annotations


def plural(count: int, noun: str, more: str | None = None) -> str:
    """Return a count and its noun; ``more`` is the plural of a noun that does not take an s."""
    return f"{count} {noun if count == 1 else more or f'{noun}s'}"

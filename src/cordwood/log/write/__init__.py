"""Appending: the only code that changes partition files, and the single writer that calls it."""

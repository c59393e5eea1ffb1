"""Segment readers. Nothing in this package changes a file."""

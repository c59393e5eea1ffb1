"""Compaction: jobs that rewrite sealed segments without superseded records."""

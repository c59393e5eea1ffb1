"""Audit: find gaps and duplicates in topics, and check that routing lost no record."""

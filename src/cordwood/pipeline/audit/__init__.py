"""Audit: find gaps and duplicates in topics, and check that routing lost no record."""

from cordwood.pipeline.audit.books import balance_books
from cordwood.pipeline.audit.job import audit_topics

__all__ = ["audit_topics", "balance_books"]

"""Metadata of the log: topics, cursors, readers, producers and the segment index.

``store`` is the small interface to the metadata storage (range, compare-and-swap transaction,
watch, session): SQLite serves one node, and etcd can serve a cluster. ``keys`` alone defines the
key layout and the JSON format; ``catalog`` offers typed access with a cache in memory. Nothing here
touches partition directories.
"""

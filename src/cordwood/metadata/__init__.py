"""Metadata of the log: topics, cursors, readers, producers and the segment index.

``store`` is the small interface to the metadata storage (range, compare-and-swap transaction,
watch, session): SQLite serves one node, and etcd can serve a cluster. ``keys`` alone defines the
key layout and the JSON format. ``cluster_catalog`` (what every node must know) and ``reader_state``
(how far readers and producers are) offer typed access with tables in memory; ``front`` joins them.
Nothing here touches partition directories.
"""

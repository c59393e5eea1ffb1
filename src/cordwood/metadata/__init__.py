"""What the log knows about itself: topics, cursors, readers, producers and the segment index.

``store`` is the small interface all metadata stands behind (range, compare-and-swap transaction,
watch, session), so that SQLite serves one node and etcd can serve a cluster. ``keys`` is the one
place where key layout and JSON are written down; ``catalog`` is the typed view with a mirror in
memory. Nothing here touches partition directories.
"""

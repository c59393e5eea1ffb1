"""Record-batch bytes: one layout for wire, disk and Spark (RecordBatch v2, as Kafka writes it).

Two ways over one layout. ``header`` works on whole batches and never touches a record: it is all
the Kafka path needs. Records are reached either in plain Python (``records``: small work, and the
oracle of the tests) or in numba kernels (``columns``: batches ↔ columns; ``lines``: ingress lines →
batch), which want some milliseconds to load and are therefore warmed off the request path.

This room computes: it opens no file, reads no clock and logs nothing.
"""

"""Record batches as bytes: one layout (Kafka's RecordBatch v2) for wire, disk and Spark.

``header`` works on whole batches and never reads a record, which is all the Kafka path needs.
``compression`` has the five codecs. Records are decoded and encoded either in plain Python
(``records``, for small work and as the reference in tests) or by numba kernels:

- ``header_table`` reads many headers at once; ``columns`` converts batches to columns and back, and
  also serves compaction; ``arrow`` converts columns to Arrow and back, for Spark; ``lines`` encodes
  ingress lines as batches; ``subscriber_lines`` writes records as lines.
- ``kernels`` holds the compiled functions behind these. They load slowly, so ``kernels.loader``
  reports whether they are loaded, and loads them off the request path.

This package only computes: it opens no file, reads no clock and logs nothing.
"""

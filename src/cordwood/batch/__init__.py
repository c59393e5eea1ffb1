"""Record batches as bytes: one layout (Kafka's RecordBatch v2) for wire, disk and Spark.

``header`` works on whole batches and never reads a record, which is all the Kafka path needs.
``compression`` has the five codecs. Records are decoded and encoded either in plain Python
(``records``, for small work and as the reference in tests) or by numba kernels:

- ``header_table`` reads many headers at once; ``column_decoder`` and ``column_encoder`` convert
  batches to ``columns`` and back, also for compaction; ``arrow`` converts columns to Arrow and
  back, for Spark; ``lines`` encodes ingress lines as batches; ``subscriber_lines`` writes records
  as lines.
- ``kernels`` holds the compiled functions behind these. They load slowly, so ``kernels.loader``
  reports whether they are loaded, and loads them off the request path.

Bytes are walked in one place for each need; everything else calls these:

- headers in memory, plain: ``header.parse_headers``; by kernel: ``header_table.walk_batches``
- headers in a file: ``log.format.scan.BatchWalk``, and ``scan.check_batch`` for a single batch
- the batch that holds an offset, and the whole batches of one read: ``SegmentReader.locate`` and
  ``whole_batches`` in ``log.read``, which unpack only the fields they need
- records, plain: ``record_parser.parse_record``, for ``records`` and ``validation``
- records by kernel: ``scan_records`` in ``kernels.batches``, for ``column_decoder``; its twin
  ``check_records`` checks every field for the broker and returns no columns

This package only computes: it opens no file, reads no clock and logs nothing.
"""

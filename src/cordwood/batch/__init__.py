"""Record-batch bytes: one layout for wire, disk and Spark (RecordBatch v2, as Kafka writes it).

Two ways over one layout. ``header`` works on whole batches and never touches a record: it is all
the Kafka path needs; ``compress`` has the five codecs. Records are reached either in plain Python
(``records``: small work, and the oracle of the tests) or by numba kernels:

* ``table``: many headers in one walk; ``columns``: batches ↔ columns, compaction's rewriting
  included; ``arrow``: columns ↔ Arrow, for Spark; ``lines``: ingress lines → batches.
* ``kernels``, ``line_kernels`` and their pieces in ``machine`` behind those. They load slowly,
  so ``warmth`` says whether they are there, and loads them off the request path.

This room computes: it opens no file, reads no clock and logs nothing.
"""

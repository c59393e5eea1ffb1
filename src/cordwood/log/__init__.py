"""The log: durable, partitioned storage of record batches, and the only code that writes it.

A partition is a directory of segments in Kafka's layout; Kafka's tools read it, and this package
reads files that Kafka wrote. Start reading at ``write.partition``. The packages:

``format``     file names, indexes, checkpoints, snapshots and manifests as bytes and text;
               ``format.scan`` decides whether a file ends clean, torn or corrupt
``files``      every change to the disk as a named effect (``files.disk``), the seam for crash
               tests; file modes; a bounded number of open files
``read``       segments, the read snapshot (never past the high watermark), and the published
               offsets for readers in other processes
``health``     the registry of problems of each partition
``write``      ``tail`` writes the bytes, ``partition`` appends, syncs, publishes and rolls,
               ``commit`` groups the appends, ``writer`` decides when to commit
``recovery``   opening a directory after any stop; ``recovery.loader`` has a table of outcomes
``staging``    files that jobs leave for the broker
``swap``       staged segments replace live ones, resumable after each rename
``lifecycle``  ``lifecycle.store`` opens, creates and deletes topics and their partitions

The life of a batch: ``append`` patches its offset and writes it to the end of the active segment;
``sync`` makes it durable; ``publish`` moves the high watermark, and only now can it be read. A cut
(``roll``) seals the active segment between two batches. Sealed segments never change. Compaction
replaces them as a whole (``replace``); RECLAIM drops them, oldest first (``drop``). Their files are
kept for a while for readers that have them open.

Three guarantees hold at any moment, and a test stops the process after each file effect to check
them: published records exist after a restart, records that were never appended do not, and offsets
continue where they stopped.
"""

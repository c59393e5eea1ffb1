"""The log room: the only code that writes partition directories.

A partition is a directory of segments in Kafka's own layout; Kafka's tools read it and this room
reads theirs. Start reading at ``partition``; the rest, from the disk upwards:

``files``        every effect on the disk, by name: the seam for crash tests
``layout``       file names and the small text files (pure)
``scan``         bytes → batches, and how they end: clean, torn or corrupt (pure)
``index``        sparse offset and time index, in memory while active, bisected in files once sealed
``facts``        what is known of a segment without reading it, one line each
``descriptors``  a bounded number of open files, leased to readers
``segment``      one run of batches: grows, is sealed, is read
``view``         what readers see: one immutable value, never past the high watermark; ``window``
                 is where the writer puts it up
``producers``    idempotence, transactions, aborted ranges; snapshots as Kafka writes them
``epochs``       leadership terms
``sidecars``     the files beside a ``.log``, written whole
``exchange``     staged files become segments
``pending deletes``    files without a live name, kept a while for their readers
``tail``         the growing end: bytes go in here and nowhere else
``recovery``     opening a directory: what each thing found in it leads to (a table)
``partition``    append, sync, publish, roll, drop, truncate, replace
``published_offsets``        the high watermark for those who read the files from another process
``swap``         staged segments → live, resumable at each rename (``manifest`` is its text)
``store``        topics → partitions: open, create, delete, lock
``commit``       appends of many, written and synced together
``writer``       who commits, and when: one at a time, for everybody

The life of a batch: ``append`` patches its offset and writes it behind the active segment; ``sync``
puts it on the device; ``publish`` moves the high watermark, and only now can anybody read it. A cut
(``roll``) seals the active segment between two batches. Sealed segments never change; they are
replaced whole by compaction (``swap``) or dropped, oldest first (``drop``), and keep their files a
while for readers still in them.

Three promises hold at every instant, and a test stops the process after each file effect to check
them: what was published is there after a restart, nothing that was never appended is, and offsets
go on where they stood.
"""

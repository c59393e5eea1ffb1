"""Walk a whole ``.log`` and compute its stats and its index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from cordwood.errors import CorruptionError
from cordwood.log.format.index import MemoryIndex
from cordwood.log.format.scan import BatchWalk, read_fd
from cordwood.log.format.segment_stats import SegmentStats
from cordwood.model import NO_TIMESTAMP


class Survey(NamedTuple):
    """Stats and index of a ``.log``, computed by a walk over all of it."""

    stats: SegmentStats
    sparse: MemoryIndex


def survey(
    path: Path, base_offset: int, *, interval_bytes: int, created_ms: int, verify: bool = False
) -> Survey:
    """Walk a segment that is not being written; compute its stats and index. Any thread.

    ``path`` may be a staged file under any name. Raises ``CorruptionError`` unless the file ends
    cleanly. With ``verify`` every checksum is checked too.
    """
    index = MemoryIndex(base_offset, interval_bytes)
    records, first_ms = 0, NO_TIMESTAMP
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        walk = BatchWalk(read_fd(file.fileno()), size_bytes, base_offset, verify=verify)
        for position, header in walk:
            index.add(header, position)
            records += header.count
            if first_ms == NO_TIMESTAMP:
                first_ms = header.max_timestamp_ms
    if walk.problem:
        raise CorruptionError(f"{path}: {walk.problem}; restore this segment from a copy")
    index.seal()
    index_bytes, timeindex_bytes = index.sizes_bytes()
    return Survey(
        SegmentStats(
            base_offset=base_offset,
            end_offset=walk.next_offset,
            size_bytes=size_bytes,
            records=records,
            first_ms=first_ms,
            newest_ms=index.newest.timestamp_ms,
            created_ms=created_ms,
            index_bytes=index_bytes,
            timeindex_bytes=timeindex_bytes,
            aborted_count=0,
        ),
        index,
    )

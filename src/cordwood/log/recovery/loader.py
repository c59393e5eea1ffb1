"""Open a partition directory: load its segments, check them, and repair or report the rest.

Only the active segment is scanned, every byte of it. A sealed segment is known by its line in
``segment-facts-checkpoint`` and the sizes of its files; it is walked only if that line is missing
or wrong.

==================================  =============================================================
found                               outcome
==================================  =============================================================
no directory, or no ``.log`` in it  a new empty segment at the log start
a segment with a line and no file   ``CorruptionError``: records are missing
active: a torn tail                 copied to ``<base>.log.torn-<ms>``, cut off, synced, reported
active: a zero-filled tail          cut off, synced, reported (nothing in it to keep)
active: empty                       normal: that is how a segment begins
active: damage, whole batches after ``CorruptionError``, nothing is cut: the partition is offline
active: damage below what was       ``CorruptionError``, nothing is cut
synced at the last clean close
active: foreign bytes               ``CorruptionError``, nothing is cut
sealed: shorter or longer than its  walked; ``CorruptionError`` unless every batch in it is whole,
line says, or without a line        and always if it is shorter: records are missing
sealed: empty                       normal if its line says so or it has none (compaction);
                                    otherwise ``CorruptionError``
sealed: damaged within its size     not detected here; ``DamagedRecords`` with file and position
                                    when a read or the scrub meets it; sound records around it are
                                    served
index missing                       rebuilt from the ``.log``, reported
index of a wrong size or damaged    detected at first use, rebuilt in memory, reported; written at
                                    the next roll or close
snapshot missing or damaged         rebuilt from an older one and the batches since, reported
``.txnindex`` missing or wrong      rebuilt likewise, reported
``leader-epoch-checkpoint`` wrong   rebuilt from the active segment, reported
index, snapshot without a segment   removed, except the snapshot a clean close left at the end
``.tmp``, ``.deleted``              removed
``.cleaned``, ``.swap``             finished or undone by ``ladder.recover_swaps`` before this
any other name                      left alone, reported
==================================  =============================================================
"""

from __future__ import annotations

import logging
import os
from collections.abc import Set as AbstractSet
from itertools import pairwise
from pathlib import Path
from typing import Final

from cordwood.errors import CorruptionError
from cordwood.log.files.disk import Files, OpenFile
from cordwood.log.files.file_cache import FileCache
from cordwood.log.format.epochs import Epochs, parse_epochs, with_epoch
from cordwood.log.format.layout import (
    CLEANED,
    DELETED,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    SEGMENT_FACTS,
    SEGMENT_KINDS,
    SWAP,
    TMP,
    TORN,
    FileKind,
    file_name,
    file_path,
    parse_file_name,
    torn_suffix,
)
from cordwood.log.format.producers import (
    ABORTED_BYTES,
    Producers,
    encode_aborted,
)
from cordwood.log.format.scan import CHUNK_BYTES, BatchWalk, End, read_fd, zeros_start
from cordwood.log.format.segment_stats import SegmentStats, encode_stats, parse_stats
from cordwood.log.read.published_offsets import MARKS_NAME
from cordwood.log.read.segment import Segment
from cordwood.log.read.survey import survey
from cordwood.log.recovery.missing import accept_command, missing_files, remedy
from cordwood.log.recovery.producer_replay import ProducerReplay
from cordwood.log.recovery.result import Loaded, Recovery, open_segment
from cordwood.log.swap.ladder import recover_swaps
from cordwood.model import Aborted

logger = logging.getLogger("cordwood.log")

_OWN_NAMES: Final = frozenset({LEADER_EPOCHS, MARKS_NAME, PARTITION_METADATA, SEGMENT_FACTS})


class Loader:
    """Opens one partition directory once."""

    def __init__(
        self,
        directory: Path,
        *,
        files: Files,
        descriptors: FileCache,
        interval_bytes: int,
        now_ms: int,
    ) -> None:
        self._directory = directory
        self._files = files
        self._file_cache = descriptors
        self._interval_bytes = interval_bytes
        self._now_ms = now_ms
        self._recovery = Recovery()
        self._replay = ProducerReplay(directory, self._recovery, now_ms)
        self._live: dict[str, dict[int, os.DirEntry[str]]] = {}  # suffix → base offset → file
        self._odd: list[str] = []  # names that are not live files

    def settle(self) -> None:
        """Finish or undo swaps and remove temporary and deleted files of an earlier process."""
        self._list()
        if any(name.endswith((SWAP, CLEANED)) for name in self._odd):
            recover_swaps(self._directory, self._files)
        for name in self._odd:
            if name.endswith((TMP, DELETED)):
                self._files.unlink(self._directory / name)
        if self._odd:
            self._list()

    def load(self, log_start_offset: int) -> Loaded | None:
        """Load the partition; None if the directory holds no segment."""
        if not self._live:
            self._list()
        self._note_names()
        bases = sorted(self._live[FileKind.LOG.value])
        stats = parse_stats(self._read_small(SEGMENT_FACTS))
        if missing := missing_files(stats, self._live[FileKind.LOG.value], log_start_offset):
            path = file_path(self._directory, missing[0].base_offset, FileKind.LOG)
            raise CorruptionError(
                f"{path} is missing, with its records; {remedy(self._directory.name)}"
            )
        if not bases:
            return None
        self._remove_strays(frozenset(bases))
        sealed = [self._load_sealed(base, end, stats.get(base)) for base, end in pairwise(bases)]
        producers = self._replay.load(bases[-1], sealed)
        epochs = self._load_epochs()
        active, epochs = self._load_active(bases[-1], stats.get(bases[-1]), producers, epochs)
        self._recovery.next_offset = active.end_offset
        self._recovery.is_durable &= self._exists(active.end_offset, FileKind.SNAPSHOT)
        self._remove_snapshots({*bases, active.end_offset})
        return Loaded((*sealed, active), producers, epochs, self._recovery)

    def create(self, base_offset: int) -> Loaded:
        """Create a first, empty segment in an empty directory; the first sync makes it durable."""
        active = open_segment(
            self._directory, base_offset, self._interval_bytes, self._now_ms, self._file_cache
        )
        stats = self._directory / SEGMENT_FACTS
        text = encode_stats([active.open_stats(0)])
        self._files.write_whole(stats, text, sync_data=False, sync_dir=False)
        self._files.close(self._files.create(active.path()))
        self._recovery.next_offset = base_offset
        return Loaded((active,), Producers(), (), self._recovery)

    # --- names ------------------------------------------------------------------------------

    def _list(self) -> None:
        """List the file names only; which files are read is decided later."""
        self._live = {kind.value: {} for kind in FileKind}
        self._odd = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                digits, suffix = entry.name[:20], entry.name[20:]
                if suffix in self._live and digits.isascii() and digits.isdigit():
                    self._live[suffix][int(digits)] = entry
                elif entry.name not in _OWN_NAMES:
                    self._odd.append(entry.name)

    def _note_names(self) -> None:
        for name in self._odd:
            parsed = parse_file_name(name)
            is_torn = parsed is not None and parsed.suffix.startswith(TORN)
            if not is_torn and not name.endswith((TMP, DELETED)):
                path = self._directory / name
                self._recovery.notes.append(f"{path} is not a file of this partition; ignored")

    def _remove_strays(self, bases: frozenset[int]) -> None:
        for kind in SEGMENT_KINDS:
            self._keep_only(kind, bases)

    def _remove_snapshots(self, offsets: AbstractSet[int]) -> None:
        """Keep only snapshots at a segment's base, and that of a clean close at the log's end."""
        self._keep_only(FileKind.SNAPSHOT, offsets)

    def _keep_only(self, kind: FileKind, offsets: AbstractSet[int]) -> None:
        found = self._live[kind.value]
        for offset in found.keys() - offsets:
            self._files.unlink(file_path(self._directory, offset, kind))
            del found[offset]

    def _read_small(self, name: str) -> bytes:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return b""

    def _exists(self, base_offset: int, kind: FileKind) -> bool:
        return base_offset in self._live[kind.value]

    def _size(self, base_offset: int, kind: FileKind) -> int:
        """A live file's size; 0 if it is missing."""
        entry = self._live[kind.value].get(base_offset)
        return 0 if entry is None else entry.stat().st_size

    # --- sealed segments --------------------------------------------------------------------

    def _load_sealed(
        self, base_offset: int, end_offset: int, stats: SegmentStats | None
    ) -> Segment:
        size_bytes = self._size(base_offset, FileKind.LOG)
        if stats is not None and size_bytes < stats.size_bytes:
            raise CorruptionError(
                f"{file_path(self._directory, base_offset, FileKind.LOG)} has {size_bytes} bytes, "
                f"but had {stats.size_bytes}: records are missing; {remedy(self._directory.name)}"
            )
        has_index = self._exists(base_offset, FileKind.INDEX)
        has_index = has_index and self._exists(base_offset, FileKind.TIMEINDEX)
        if not has_index or not stats or not stats.is_sealed or size_bytes != stats.size_bytes:
            return self._survey_sealed(base_offset, end_offset, stats)
        segment = Segment(
            self._directory,
            stats._replace(end_offset=end_offset),
            None,
            self._file_cache,
            self._interval_bytes,
        )
        self._check_aborted(segment)
        return segment

    def _survey_sealed(
        self, base_offset: int, end_offset: int, stats: SegmentStats | None
    ) -> Segment:
        """Walk a segment whose stats or index files are missing or wrong."""
        path = file_path(self._directory, base_offset, FileKind.LOG)
        created_ms = path.stat().st_mtime_ns // 1_000_000 if stats is None else stats.created_ms
        found, index = survey(
            path, base_offset, interval_bytes=self._interval_bytes, created_ms=created_ms
        )
        if found.end_offset > end_offset:
            raise CorruptionError(
                f"{path} has offset {found.end_offset - 1}, which belongs to the next segment, "
                f"{file_name(end_offset, FileKind.LOG)}; one of the two files is from elsewhere"
            )
        if found.size_bytes == 0:
            self._recovery.notes.append(f"{path} is sealed and empty")
        aborted_count = self._size(base_offset, FileKind.TXNINDEX) // ABORTED_BYTES
        if stats is not None and stats.size_bytes == found.size_bytes:
            aborted_count = stats.aborted_count
        segment = Segment(
            self._directory,
            found._replace(end_offset=end_offset, aborted_count=aborted_count),
            index,
            self._file_cache,
            self._interval_bytes,
        )
        segment.is_index_wrong = True
        self._recovery.note_rebuilt(segment)
        self._recovery.scanned_bytes += found.size_bytes
        self._check_aborted(segment)
        return segment

    def _check_aborted(self, segment: Segment) -> None:
        size_bytes = self._size(segment.base_offset, FileKind.TXNINDEX)
        if size_bytes == segment.aborted_count * ABORTED_BYTES:
            return
        self._recovery.rebuilt.append(file_name(segment.base_offset, FileKind.TXNINDEX))
        aborted = self._replay.aborted_in(segment)
        segment.aborted_count = len(aborted)
        self._files.write_whole(segment.path(FileKind.TXNINDEX), encode_aborted(aborted))

    # --- leader epochs ----------------------------------------------------------------------

    def _load_epochs(self) -> Epochs:
        text = self._read_small(LEADER_EPOCHS)
        if not text:
            return ()
        try:
            return parse_epochs(text)
        except CorruptionError as error:
            self._recovery.notes.append(
                f"{LEADER_EPOCHS}: {error}; rebuilt from the active segment"
            )
            self._recovery.rebuilt.append(LEADER_EPOCHS)
            return ()

    # --- the active segment -----------------------------------------------------------------

    def _load_active(
        self,
        base_offset: int,
        stats: SegmentStats | None,
        producers: Producers,
        epochs: Epochs,
    ) -> tuple[Segment, Epochs]:
        path = file_path(self._directory, base_offset, FileKind.LOG)
        file = self._files.open_existing(path)
        try:
            created_ms = os.fstat(file.fd).st_mtime_ns // 1_000_000
            active = open_segment(
                self._directory,
                base_offset,
                self._interval_bytes,
                created_ms if stats is None else stats.created_ms,
                self._file_cache,
            )
            size_bytes = os.fstat(file.fd).st_size
            durable_bytes = 0 if stats is None else stats.size_bytes
            walk = BatchWalk(read_fd(file.fd), size_bytes, base_offset)
            aborted: list[Aborted] = []
            for located in walk:
                assert located.position == active.size_bytes
                active.note([located.header])
                self._replay.apply(walk, located, producers, aborted)
                epochs = with_epoch(epochs, located.header.leader_epoch, located.header.base_offset)
            active.aborted, active.aborted_count = tuple(aborted), len(aborted)
            self._finish_active(file, walk, size_bytes, durable_bytes)
        finally:
            self._files.close(file)
        return active, epochs

    def _finish_active(
        self, file: OpenFile, walk: BatchWalk, size_bytes: int, durable_bytes: int
    ) -> None:
        """Classify the end, cut off a torn tail, and sync everything that readers will now see."""
        if size_bytes < durable_bytes:
            raise CorruptionError(
                f"{file.path} has {size_bytes} bytes, but had {durable_bytes} when it was closed: "
                f"records are missing; {remedy(self._directory.name)}"
            )
        end = walk.end(durable_bytes)
        self._recovery.end = end
        self._recovery.scanned_bytes += size_bytes
        if end is End.CORRUPT:
            raise CorruptionError(
                f"{file.path}: {walk.problem}, which is not a torn append, so nothing was "
                "truncated; restore this segment from a copy, or truncate it to "
                f"{walk.valid_bytes} bytes and accept the loss of the records after it: "
                f"`{accept_command(self._directory.name)}`"
            )
        if end is End.TORN:
            self._recovery.notes.append(f"{file.path}: {walk.problem}; torn tail truncated")
            self._recovery.cut_bytes = size_bytes - walk.valid_bytes
            self._copy_torn_tail(file, walk.valid_bytes, size_bytes)
            self._files.truncate(file, walk.valid_bytes)
        if walk.valid_bytes > durable_bytes or end is End.TORN:
            self._files.sync_data(file)
        else:
            self._recovery.is_durable = not self._recovery.rebuilt

    def _copy_torn_tail(self, file: OpenFile, position: int, size_bytes: int) -> None:
        """Copy the torn bytes to another file before they are cut off, unless all are zero."""
        read = read_fd(file.fd)
        if zeros_start(read, position, size_bytes) == position:
            return
        copy_path = file.path.with_name(file.path.name + torn_suffix(self._now_ms))
        self._files.unlink(copy_path)
        copy = self._files.create(copy_path)
        try:
            for start in range(position, size_bytes, CHUNK_BYTES):
                chunk = read(start, min(CHUNK_BYTES, size_bytes - start))
                self._files.write_at(copy, chunk, start - position)
            self._files.sync_data(copy)
        finally:
            self._files.close(copy)
        self._files.sync_dir(self._directory)
        self._recovery.torn_copy = copy_path

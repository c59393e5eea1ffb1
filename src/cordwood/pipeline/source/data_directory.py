"""A ``Log`` over the files of a data directory: topics, bounds, time lookups and task splits.

While a broker holds the directory's lock, a partition ends at its published high watermark or, for
``read_committed``, at its last stable offset (``log.read.published_offsets``). Without a broker it
ends after the last valid batch, which is what recovery would keep. The lock is probed only if there
are bytes past the published offset; it is taken shared and released at once.

Never writes, and never commits cursors: only the broker stores them.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from cordwood.batch.columns import NO_OFFSETS
from cordwood.batch.header_table import Longs
from cordwood.errors import CorruptionError, NotDataDirectory, UnavailableError
from cordwood.log.format.index import WrongIndex
from cordwood.log.format.layout import (
    DELETED,
    FORMAT,
    PARTITION_METADATA,
    check_format,
    parse_directory_name,
    parse_metadata,
)
from cordwood.log.format.scan import BatchWalk, read_fd
from cordwood.log.read.held import is_held
from cordwood.log.read.published_offsets import read_published_offsets
from cordwood.log.read.segment_reader import SegmentReader
from cordwood.model import Aborted, TopicPartition
from cordwood.pipeline.source.offsets import Bounds, Range
from cordwood.pipeline.source.segment_files import (
    Chunk,
    StartHint,
    covering,
    list_segments,
    read_chunks,
)
from cordwood.pipeline.source.splits import SplitPiece
from cordwood.pipeline.source.transactions import has_transactions, read_aborted, replay_tail

_TAILS_MAX: Final = 256


class SegmentFileLog:
    """A ``Log`` over the files under ``path``."""

    def __init__(
        self, path: str, *, fail_on_data_loss: bool = True, committed: bool = False
    ) -> None:
        """Check that ``path`` is a data directory in a supported format.

        ``committed``: stop at the first open transaction and skip aborted ones.
        """
        self._path = Path(path)
        self._fail_on_data_loss = fail_on_data_loss
        self._committed = committed
        self._tails: dict[TopicPartition, list[StartHint]] = {}  # high watermarks seen, ascending
        try:
            check_format((self._path / FORMAT).read_bytes(), self._path)
        except (FileNotFoundError, NotADirectoryError):
            raise NotDataDirectory(
                f"{path} is not a cordwood data directory (it has no {FORMAT} file); give path the "
                "directory `cordwood serve --data` was started with"
            ) from None
        except PermissionError:
            raise UnavailableError(
                f"cannot read {path}: this user may not; start the broker with file.mode=group and "
                "share its group, or set kafka.bootstrap.servers"
            ) from None
        except OSError as error:
            raise UnavailableError(f"cannot read {path}: {error.strerror}") from None

    def topics(self) -> dict[str, list[int]]:
        """Every topic and its partitions."""
        topics: dict[str, list[int]] = {}
        for entry in sorted(self._path.iterdir()):
            tp = parse_directory_name(entry.name)
            if tp is not None and entry.is_dir():
                topics.setdefault(tp.topic, []).append(tp.partition)
        return {topic: sorted(partitions) for topic, partitions in topics.items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids that the metadata file of each topic's partition 0 holds."""
        ids: dict[str, str] = {}
        for topic in topics:
            path = self._directory(TopicPartition(topic, 0)) / PARTITION_METADATA
            with suppress(OSError, CorruptionError):  # no id is known: nothing is compared
                ids[topic] = str(parse_metadata(path.read_bytes()))
        return ids

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Log start and high watermark or last stable offset; omits deleted partitions."""
        bounds: dict[TopicPartition, Bounds] = {}
        for tp in tps:
            try:
                bounds[tp] = self._bounds(tp)
            except FileNotFoundError:
                continue
        return bounds

    def _bounds(self, tp: TopicPartition) -> Bounds:
        marks = read_published_offsets(self._directory(tp))
        live = self._live(tp)
        first = live[0].base_offset if live else 0
        if marks is None:
            return Bounds(first, max(first, self._valid_end(tp)))
        tail = StartHint(marks.high_watermark, marks.segment_base_offset, marks.segment_bytes)
        self._remember(tp, tail)
        start = max(first, marks.log_start_offset)
        end = marks.last_stable_offset if self._committed else marks.high_watermark
        if self._has_more(live, tail):
            with self._unheld() as is_unheld:
                end = self._valid_end(tp) if is_unheld else end
        return Bounds(min(start, end), end)

    @staticmethod
    def _has_more(live: list[SegmentReader], tail: StartHint) -> bool:
        """Whether bytes lie past the published offset: not yet durable, or left by a crash."""
        last = live[-1] if live else None
        if last is None or last.base_offset < tail.base_offset:
            return False
        return last.base_offset > tail.base_offset or last.path().stat().st_size > tail.position

    def _unheld(self) -> _Unheld:
        return _Unheld(self._path)

    def _valid_end(self, tp: TopicPartition) -> int:
        """One past the last offset in valid batches, as recovery would compute it.

        With ``committed``, at most the first offset of the oldest open transaction.
        """
        live = self._live(tp)
        if not live:
            return 0
        last = live[-1]
        with last.reading() as fd:
            walk = BatchWalk(read_fd(fd), last.size_bytes, last.base_offset)
            for _ in walk:
                pass
        unstable = replay_tail(self._directory(tp)).first_unstable if self._committed else None
        return walk.next_offset if unstable is None else min(unstable, walk.next_offset)

    def find_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """The first offset with a timestamp at or after ``timestamp_ms``; None if there is none."""
        bounds = self._bounds(tp)
        for segment in self._live(tp):
            with segment.reading() as fd:
                match = segment.first_at_time(fd, timestamp_ms, *bounds, segment.size_bytes)
            if match is not None:
                return match.record.offset
        return None

    def pieces(self, whole: Range, split_bytes: int) -> list[SplitPiece]:
        """The segments that cover the range; large ones are cut at index entries."""
        segments = self._live(whole.tp)
        first = max(covering(segments, whole.start), 0)
        pieces: list[SplitPiece] = []
        start = whole.start
        for at in range(first, len(segments)):
            following = segments[at + 1].base_offset if at + 1 < len(segments) else whole.end
            end = min(following, whole.end)
            if start < end:
                pieces += _cut(segments[at], start, end, following, split_bytes)
                start = end
        if start < whole.end:
            pieces.append(SplitPiece(start, whole.end, 0))
        return pieces

    def hint(self, tp: TopicPartition, offset: int) -> StartHint | None:
        """The nearest known high watermark at or before the offset, where a stream resumes."""
        tails = self._tails.get(tp, [])
        at = bisect_right(tails, offset, key=lambda tail: tail.offset) - 1
        return tails[at] if at >= 0 else None

    def _remember(self, tp: TopicPartition, tail: StartHint) -> None:
        tails = self._tails.setdefault(tp, [])
        if tails and tail.offset < tails[-1].offset:
            tails.clear()  # the log was truncated
        if not tails or tail.offset > tails[-1].offset:
            tails.append(tail)
            del tails[:-_TAILS_MAX]

    def chunks(self, whole: Range, hint: StartHint | None) -> Iterator[Chunk]:
        """The batches of the range, in order."""
        directory = self._directory(whole.tp)
        chunks = read_chunks(
            directory,
            whole.start,
            whole.end,
            fail_on_data_loss=self._fail_on_data_loss,
            hint=hint,
        )
        return self._with_aborted(directory, whole, chunks) if self._committed else chunks

    @staticmethod
    def _with_aborted(directory: Path, whole: Range, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Add aborted transactions to chunks; read once, as none of the range is still open."""
        aborted: list[Aborted] | None = None
        for chunk in chunks:
            if not has_transactions(chunk.data):
                yield chunk
                continue
            if aborted is None:
                aborted = read_aborted(directory, whole.start, whole.end)
            yield chunk._replace(aborted=aborted)

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

    def _directory(self, tp: TopicPartition) -> Path:
        return self._path / str(tp)

    def _live(self, tp: TopicPartition) -> list[SegmentReader]:
        return [s for s in list_segments(self._directory(tp)) if s.suffix != DELETED]


class _Unheld:
    """Yields whether no broker holds the data directory; if so, none can start meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fds: list[int] = []

    def __enter__(self) -> bool:
        return not is_held(self._path, shared_fds=self._fds)

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)


def _cut(
    segment: SegmentReader, start: int, end: int, following: int, split_bytes: int
) -> list[SplitPiece]:
    """Cut part of a segment into pieces of about ``split_bytes``, at index entries."""
    size_bytes, offsets, positions = _sparse_index(segment)
    if not len(offsets):  # short, swapped meanwhile, or active: its index is in the broker
        span = max(1, following - segment.base_offset)
        return [SplitPiece(start, end, size_bytes * (end - start) // span)]
    at, stop = (int(np.searchsorted(offsets, offset)) for offset in (start, end - 1))
    since = int(positions[at - 1]) if at else 0  # where the piece begins
    if stop < len(offsets):
        size_bytes = min(size_bytes, int(positions[stop]))
    pieces: list[SplitPiece] = []
    while True:
        at += int(np.searchsorted(positions[at:stop], since + split_bytes))
        if at >= stop:
            return [*pieces, SplitPiece(start, end, max(0, size_bytes - since))]
        cut, position = int(offsets[at]) + 1, int(positions[at])
        pieces.append(SplitPiece(start, cut, position - since))
        start, since = cut, position
        at += 1


def _sparse_index(segment: SegmentReader) -> tuple[int, Longs, Longs]:
    """The log's size, and the last offsets and positions of its indexed batches."""
    try:
        with segment.reading():
            offsets, positions = segment.index.columns()
    except FileNotFoundError:
        return 0, NO_OFFSETS, NO_OFFSETS
    except WrongIndex:
        return segment.size_bytes, NO_OFFSETS, NO_OFFSETS
    absolute = np.asarray(offsets, np.int64) + segment.base_offset
    return segment.size_bytes, absolute, np.asarray(positions, np.int64)

"""Routing on an executor: decide the target of each record, add provenance headers, stage by route.

``decide.routing.route`` makes the decision; this module calls it as rarely as possible. ASCII keys
with the same prefix go to the same topic, so it is called once per prefix. It is called for each
distinct key of a chunk if the prefix has an exact binding or no route, or if the key is not ASCII.
A record keeps its key, value, timestamp and headers. Headers that name its source are appended
(``decide.provenance``; for dead letters ``decide.deadletters``, with the reason).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from cordwood.batch.columns import Columns, HeaderSpans, Spans, kernel_spans
from cordwood.batch.header import HEADER_BYTES
from cordwood.batch.header_table import Bytes, HeaderTable, Longs, readonly
from cordwood.batch.kernels.loader import LazyKernels
from cordwood.batch.key_groups import NULL, group, partitions_of, prefixes
from cordwood.batch.records import put_varint
from cordwood.config import MIB
from cordwood.decide import deadletters
from cordwood.decide.provenance import SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_TOPIC
from cordwood.decide.routing import (
    Bindings,
    DeadLetter,
    DeadReason,
    Routed,
    key_prefix,
    route,
)
from cordwood.model import TopicPartition
from cordwood.pipeline.runtime.staging import StagingWriter
from cordwood.pipeline.runtime.targets import Targets

_kernels = LazyKernels("routes")
BATCH_BYTES: Final = MIB  # approximate size of a routed batch
HEADER_OVERHEAD: Final = 10  # maximum size of the two length fields of a header
MARK_HEADERS: Final = 3  # topic, partition and offset of the source
DEAD: Final = -1
UNDECIDED: Final = -2


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """The bindings and topics that route a micro-batch, as they were when it was planned."""

    bindings: Bindings
    dead_letter_topic: str
    targets: Targets


class RowRun(NamedTuple):
    """Rows of a chunk that go to one partition."""

    topic: str
    partition: int
    rows: Longs


class RecordRouter:
    """Routes the chunks of one task; caches decisions, as bindings are fixed per micro-batch."""

    def __init__(
        self, routing_table: RoutingTable, writer: StagingWriter, *, batch_bytes: int = BATCH_BYTES
    ) -> None:
        """``writer`` receives the routed records, in batches of about ``batch_bytes``."""
        self._batch_bytes = batch_bytes
        self._routing_table = routing_table
        self._writer = writer
        self._topics: list[str] = []
        self._ids: dict[str, int] = {}
        self._by_prefix: dict[bytes, int] = {}
        self._exact = {key_prefix(key).encode() for key in routing_table.bindings.exact}
        self._buffer: Bytes = np.empty(0, np.uint8)  # output buffer, reused for every chunk

    def route(self, tp: TopicPartition, columns: Columns) -> None:
        """Stage every record of a chunk for its route or for the dead-letter topic."""
        if not len(columns):
            return
        assert columns.keys is not None, "keys were wanted"
        ids, dead = self._decide(columns.keys)
        by_limit: dict[int, list[RowRun]] = {}
        for run in self._runs(columns.keys, ids):
            limit = self._routing_table.targets.get(run.topic).batch_bytes_max
            by_limit.setdefault(limit, []).append(run)
        for limit, runs in by_limit.items():
            dead |= self._relay(tp, columns, runs, limit)
        if dead:
            rows = np.array(sorted(dead), np.int64)
            chosen = columns.chosen(rows)
            reasons = [dead[row] for row in rows.tolist()]
            letters = _add_headers(chosen, _reasons(tp, chosen.offsets, reasons))
            self._stage(self._routing_table.dead_letter_topic, letters)

    def _runs(self, keys: Spans, ids: Longs) -> Iterator[RowRun]:
        """Yield the rows of each target partition, in their original order."""
        order = np.argsort(
            ids.astype(np.int16) if len(self._topics) < 2**15 else ids, kind="stable"
        )
        bounds = np.searchsorted(ids[order], np.arange(len(self._topics) + 1))
        for topic, start, end in zip(self._topics, bounds[:-1], bounds[1:], strict=True):
            if start < end:
                rows = order[start:end]
                for partition, which in self._partitions(topic, keys.chosen(rows)):
                    yield RowRun(topic, partition, rows[which])

    def _relay(
        self, tp: TopicPartition, columns: Columns, runs: Sequence[RowRun], bytes_max: int
    ) -> dict[int, DeadLetter]:
        """Write the runs in one kernel call, adding only the source headers to each record.

        Returns, as dead letters, the rows that exceed ``bytes_max`` even alone in a batch.
        """
        mark = _mark(tp)
        largest = _largest(columns, mark)
        dead: dict[int, DeadLetter] = {}
        if largest >= bytes_max - HEADER_BYTES:
            dead = self._too_large(columns, runs, mark, bytes_max)
            fitting = [run._replace(rows=_without(run.rows, dead)) for run in runs]
            runs = [run for run in fitting if len(run.rows)]
        if not runs:
            return dead
        rows = np.concatenate([run.rows for run in runs])
        if dead:
            largest = int(_bounds(columns, mark)[rows].max())
        ends = np.cumsum([len(run.rows) for run in runs], dtype=np.int64)
        batch_bytes = max(1, min(self._batch_bytes, bytes_max - largest))
        self._buffer = relay(columns, rows, ends, mark, self._buffer, batch_bytes=batch_bytes)
        start = 0
        for run, end in zip(runs, ends.tolist(), strict=True):
            self._writer.put(run.topic, run.partition, self._buffer[start:end].tobytes())
            start = end
        return dead

    def _too_large(
        self, columns: Columns, runs: Sequence[RowRun], mark: Bytes, bytes_max: int
    ) -> dict[int, DeadLetter]:
        """Find rows too large for any batch of their topic; encodes each candidate to be sure."""
        bounds = _bounds(columns, mark)
        dead = {}
        for topic, _, rows in runs:
            for row in rows[bounds[rows] > bytes_max - HEADER_BYTES].tolist():
                end = np.array([1], np.int64)
                self._buffer = relay(
                    columns, np.array([row]), end, mark, self._buffer, batch_bytes=1
                )
                if end[0] > bytes_max:
                    detail = (
                        f"the routed record takes {end[0]} bytes, more than "
                        f"max.message.bytes={bytes_max} of topic {topic}"
                    )
                    dead[row] = DeadLetter(DeadReason.TOO_LARGE, detail)
        return dead

    def _stage(self, topic: str, columns: Columns) -> None:
        assert columns.keys is not None
        for partition, which in self._partitions(topic, columns.keys):
            self._writer.add(topic, partition, columns.chosen(which))

    def _partitions(self, topic: str, keys: Spans) -> Iterator[tuple[int, Any]]:
        """Yield the topic's partitions that receive rows, and which rows."""
        count = self._routing_table.targets.get(topic).partitions
        if count == 1:
            yield 0, slice(None)
            return
        partitions = partitions_of(keys, count)
        partitions[partitions == NULL] = 0
        for partition in np.unique(partitions).tolist():
            yield partition, np.flatnonzero(partitions == partition)

    # --- the decision -------------------------------------------------------------------------

    def _decide(self, keys: Spans) -> tuple[Longs, dict[int, DeadLetter]]:
        """Return each row's topic as a number, and the rows to dead-letter."""
        before_dot, is_plain = prefixes(keys)
        groups = group(before_dot)
        table = np.array(
            [self._decide_prefix(before_dot[first] or b"") for first in groups.firsts.tolist()]
            + [UNDECIDED],  # for null keys, whose group is -1
            np.int64,
        )
        ids = table[groups.ids]
        ids[~is_plain] = UNDECIDED
        return ids, self._decide_singly(keys, ids)

    def _decide_prefix(self, prefix: bytes) -> int:
        """Return the topic number for all ASCII keys with this prefix, or ``UNDECIDED``.

        ``UNDECIDED`` means that each key must be routed by itself.
        """
        if prefix not in self._by_prefix:
            self._by_prefix[prefix] = UNDECIDED
            if prefix and prefix not in self._exact:
                verdict = route(prefix, self._routing_table.bindings)
                if isinstance(verdict, Routed):
                    self._by_prefix[prefix] = self._number(verdict.topic)
        return self._by_prefix[prefix]

    def _decide_singly(self, keys: Spans, ids: Longs) -> dict[int, DeadLetter]:
        """Fill in the rows that no prefix decided; returns the rows to dead-letter."""
        dead: dict[int, DeadLetter] = {}
        verdicts: dict[bytes | None, Routed | DeadLetter] = {}
        for row in np.flatnonzero(ids == UNDECIDED).tolist():
            key = keys[row]
            if key not in verdicts:
                verdicts[key] = route(key, self._routing_table.bindings)
            verdict = verdicts[key]
            if isinstance(verdict, Routed):
                ids[row] = self._number(verdict.topic)
            else:
                ids[row] = DEAD
                dead[row] = verdict
        return dead

    def _number(self, topic: str) -> int:
        if topic not in self._ids:
            self._ids[topic] = len(self._topics)
            self._topics.append(topic)
        return self._ids[topic]


# --- headers ------------------------------------------------------------------------------------


def _mark(tp: TopicPartition) -> Bytes:
    """Encode the source headers for records of a partition; the kernel appends the offset."""
    encoded = bytearray()
    for name, text in ((SOURCE_TOPIC, tp.topic), (SOURCE_PARTITION, str(tp.partition))):
        for part in (name, text):
            put_varint(encoded, len(part.encode()))
            encoded += part.encode()
    put_varint(encoded, len(SOURCE_OFFSET))
    encoded += SOURCE_OFFSET.encode()
    return readonly(encoded)


def _bounds(columns: Columns, mark: Bytes) -> Longs:
    """Return the maximum size in bytes of each row as a routed record."""
    assert columns.keys is not None, "keys were wanted"
    assert columns.values is not None, "values were wanted"
    fixed = len(mark) + _kernels.RECORD_OVERHEAD
    sizes: Longs = np.full(len(columns), fixed, np.int64)
    for spans in (columns.keys, columns.values):
        sizes += np.maximum(spans.lengths, 0)
    headers = columns.headers
    if headers is not None and len(headers.names):
        each = np.maximum(headers.names.lengths, 0) + np.maximum(headers.contents.lengths, 0)
        ends = np.concatenate([[0], np.cumsum(each + HEADER_OVERHEAD, dtype=np.int64)])
        sizes += ends[headers.rows[1:]] - ends[headers.rows[:-1]]
    return sizes


def _largest(columns: Columns, mark: Bytes) -> int:
    """Return an upper bound of all rows' sizes in bytes; cheap if rows have no headers."""
    assert columns.keys is not None, "keys were wanted"
    assert columns.values is not None, "values were wanted"
    if columns.headers is not None and len(columns.headers.names):
        return int(_bounds(columns, mark).max())
    spans = int(columns.keys.lengths.max()), int(columns.values.lengths.max())
    return sum(max(each, 0) for each in spans) + len(mark) + int(_kernels.RECORD_OVERHEAD)


def _without(rows: Longs, dead: Mapping[int, DeadLetter]) -> Longs:
    return rows[~np.isin(rows, list(dead))] if dead else rows


def relay(
    columns: Columns,
    rows: Longs,
    ends: Longs,
    mark: Bytes,
    buffer: Bytes,
    *,
    batch_bytes: int = BATCH_BYTES,
) -> Bytes:
    """Encode runs of rows as batches into ``buffer`` or a larger one, which is returned.

    On entry ``ends`` holds where each run ends in ``rows``; on return, where its bytes end. A batch
    is closed once it reaches ``batch_bytes``, so it may exceed that by one record.
    """
    kernel = _kernels
    assert columns.keys is not None, "keys were wanted"
    assert columns.values is not None, "values were wanted"
    headers = columns.headers or HeaderSpans.none(len(columns))
    spans = (columns.keys, columns.values, headers.names, headers.contents)
    bound = sum(each.size_bytes for each in spans) + len(headers.names) * HEADER_OVERHEAD
    bound += len(rows) * (len(mark) + kernel.RECORD_OVERHEAD)
    bound += min(len(rows), len(ends) + bound // batch_bytes + 1) * HEADER_BYTES
    if len(buffer) < bound:
        buffer = np.empty(bound, np.uint8)
    size = kernel.relay(
        np.ascontiguousarray(rows),
        ends,
        HeaderTable.blank(1).table,
        np.ascontiguousarray(columns.offsets),
        np.ascontiguousarray(columns.timestamps_ms),
        kernel_spans(columns.keys),
        kernel_spans(columns.values),
        np.ascontiguousarray(headers.rows),
        kernel_spans(headers.names),
        kernel_spans(headers.contents),
        mark,
        MARK_HEADERS,
        batch_bytes,
        buffer,
    )
    assert size <= bound, "the bound holds"
    return buffer


def _reasons(
    tp: TopicPartition, offsets: Longs, reasons: Sequence[DeadLetter]
) -> list[tuple[str, Spans]]:
    """Return the headers of ``deadletters.headers_for_record``, column by column."""
    whole = [
        deadletters.headers_for_record(why.reason, why.detail, *tp, offset)
        for why, offset in zip(reasons, offsets.tolist(), strict=True)
    ]
    names = [header.key for header in whole[0]]
    return [
        (name, Spans.of([headers[at].value for headers in whole])) for at, name in enumerate(names)
    ]


def _constant(text: str, rows: int) -> Spans:
    data = text.encode()
    return Spans(readonly(data), np.zeros(rows, np.int64), np.full(rows, len(data), np.int32))


def _add_headers(columns: Columns, extra: Sequence[tuple[str, Spans]]) -> Columns:
    headers = columns.headers or HeaderSpans.none(len(columns))
    return replace(columns, headers=with_headers(headers, extra))


def with_headers(headers: HeaderSpans, extra: Sequence[tuple[str, Spans]]) -> HeaderSpans:
    """Append one header of each name in ``extra`` to every row; the columns' bytes are joined."""
    old = np.diff(headers.rows)
    rows = np.zeros(len(old) + 1, np.int64)
    np.cumsum(old + len(extra), out=rows[1:])
    kept = np.repeat(rows[:-1] - headers.rows[:-1], old) + np.arange(len(headers.names))
    added = [rows[:-1] + old + at for at in range(len(extra))]
    names = [_constant(name, len(old)) for name, _ in extra]
    contents = [spans for _, spans in extra]
    return HeaderSpans(
        rows,
        _woven(int(rows[-1]), [(kept, headers.names), *zip(added, names, strict=True)]),
        _woven(int(rows[-1]), [(kept, headers.contents), *zip(added, contents, strict=True)]),
    )


def _woven(count: int, pieces: Sequence[tuple[Longs, Spans]]) -> Spans:
    """Build one column from several; each piece has indexes that say where its rows go."""
    starts, lengths = np.empty(count, np.int64), np.empty(count, np.int32)
    buffers: list[Any] = []
    base = 0
    for where, spans in pieces:
        if len(spans):
            starts[where] = spans.starts + base
            lengths[where] = spans.lengths
            buffers.append(spans.data)
            base += len(spans.data)
    joined = np.concatenate(buffers) if buffers else np.empty(0, np.uint8)
    return Spans(readonly(joined), starts, lengths)

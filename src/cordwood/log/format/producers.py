"""Producer state of a partition: idempotence, open transactions, and their file formats.

Per producer id it holds the epoch, the last five batches (sequence range → offsets), the first
offset of the open transaction, and the coordinator's epoch. ``check`` is called before a batch is
written, ``update`` afterwards; recovery replays headers through the same ``update``. This module
never touches the disk: it converts the snapshot and the transaction index from and to bytes.

There are two rules for sequences. *Strict* is Kafka's: the next batch begins one after the last
(mod 2**31), a repetition of one of the last five is a duplicate and returns the original offsets,
anything else is out of order. The line protocol's rule allows gaps: its listener has already
dropped duplicates, and numbers may be skipped.

``.snapshot``: int16 version 1 · uint32 CRC-32C of the rest · int32 count · per producer id int64 ·
epoch int16 · last sequence int32 · last offset int64 · offset delta int32 · timestamp int64 ·
coordinator epoch int32 · first offset of the open transaction int64 (-1: none).

``.txnindex``: per aborted transaction int16 version 0 · producer id int64 · first offset int64 ·
last offset int64 (the marker's) · last stable offset int64.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cordwood.batch.header import (
    CONTROL_BIT,
    SEQUENCE_MODULUS,
    TRANSACTIONAL_BIT,
    BatchHeader,
    crc32c,
)
from cordwood.batch.records import Marker
from cordwood.errors import InvalidTransaction, OutOfOrderSequence, StaleProducer
from cordwood.model import NO_PRODUCER, NO_TIMESTAMP, Aborted
from cordwood.plural import plural

BATCHES_KEPT: Final = 5  # a Kafka client has at most five requests in flight
ABORTED_BYTES: Final = 34
_ABORTED: Final = struct.Struct(">hqqqq")
_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_SNAPSHOT_COUNT: Final = struct.Struct(">i")
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION: Final = 1
_NO_OFFSET: Final = -1


class Sent(NamedTuple):
    """One stored batch of a producer, kept to recognise a retry."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class Duplicate(NamedTuple):
    """Offsets of the stored batches that an append repeats."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class ProducerState:
    """The state of one producer id."""

    epoch: int = NO_PRODUCER
    sent: deque[Sent] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    seen_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_PRODUCER

    def last_sequence(self) -> int:
        """The last sequence stored in this epoch, or ``NO_PRODUCER``."""
        return self.sent[-1].last_sequence if self.sent else NO_PRODUCER

    def enter(self, epoch: int) -> None:
        """Begin a new epoch, whose sequences start again."""
        self.epoch = epoch
        self.sent.clear()


class WrongSnapshot(Exception):  # caught by each reader, which replays the log or reports damage
    """A snapshot or transaction index that is incomplete or damaged."""


class Producers:
    """The producers of one partition. Writer thread only, except ``last_sequence``."""

    def __init__(self) -> None:
        self._by_id: dict[int, ProducerState] = {}
        # Producer id → start of its open transaction, oldest first: they are added in log order.
        self._open: dict[int, int] = {}

    @property
    def known_count(self) -> int:
        """How many producers are known."""
        return len(self._by_id)

    def last_sequence(self, producer_id: int, epoch: int) -> int | None:
        """The last stored sequence of the producer in this epoch; None if unknown."""
        producer = self._by_id.get(producer_id)
        if producer is None or producer.epoch != epoch:
            return None
        sent = tuple(producer.sent)  # an atomic copy: the writer may change it
        return sent[-1].last_sequence if sent else None

    def active(self) -> list[tuple[int, ProducerState, int | None]]:
        """Every known producer, ordered by id, with the start of its open transaction."""
        return [(key, self._by_id[key], self._open.get(key)) for key in sorted(self._by_id)]

    def check(self, headers: Sequence[BatchHeader], *, strict: bool = True) -> Duplicate | None:
        """Check whether these batches may be appended; a ``Duplicate`` if all are stored already.

        Raises ``StaleProducer``, ``OutOfOrderSequence`` or ``InvalidTransaction``; changes nothing.
        """
        if not strict:
            self._check_gappy(headers)
            return None
        duplicates: list[Sent] = []
        pending: dict[int, tuple[int, int]] = {}  # epoch, sequence after earlier batches
        for header in headers:
            if header.producer_id < 0:
                continue
            producer = self._by_id.get(header.producer_id) or ProducerState()
            epoch, last = pending.get(
                header.producer_id, (producer.epoch, producer.last_sequence())
            )
            _check_epoch(header, epoch)
            if header.is_control:
                continue
            known = _find(producer, header)
            if known is not None:
                duplicates.append(known)
                continue
            self._check_transaction(header)
            if epoch != NO_PRODUCER:
                _check_sequence(header, epoch, last)
            pending[header.producer_id] = header.producer_epoch, header.last_sequence
        if not duplicates:
            return None
        if len(duplicates) < len(headers):
            raise OutOfOrderSequence("some of these batches are stored already and others are not")
        return Duplicate(
            duplicates[0].base_offset, duplicates[-1].last_offset, duplicates[-1].timestamp_ms
        )

    def _check_gappy(self, headers: Sequence[BatchHeader]) -> None:
        """Check epoch and transaction only: the sender has already dropped duplicates."""
        for header in headers:
            producer = self._by_id.get(header.producer_id)
            if producer is not None:
                _check_epoch(header, producer.epoch)
                if self._open and not header.is_control:
                    self._check_transaction(header)

    def _check_transaction(self, header: BatchHeader) -> None:
        begun = self._open.get(header.producer_id)
        if begun is not None and not header.is_transactional:
            raise InvalidTransaction(
                f"producer {header.producer_id} has an open transaction from offset {begun}; "
                "this batch is not part of one"
            )

    def check_markers(self, markers: Iterable[Marker | None]) -> None:
        """Raise ``StaleProducer`` if a marker comes from a superseded coordinator."""
        for marker in markers:
            producer = None if marker is None else self._by_id.get(marker.producer_id)
            if marker and producer and marker.coordinator_epoch < producer.coordinator_epoch:
                raise StaleProducer(
                    f"producer {marker.producer_id}: a marker has coordinator epoch "
                    f"{marker.coordinator_epoch}, lower than the last one, "
                    f"{producer.coordinator_epoch}"
                )

    def update(
        self, header: BatchHeader, now_ms: int, marker: Marker | None = None
    ) -> Aborted | None:
        """Record a stored batch; returns the transaction that it aborts, if it is its marker."""
        if header.producer_id < 0:
            return None
        producer = self._by_id.get(header.producer_id)
        if producer is None:
            producer = self._by_id[header.producer_id] = ProducerState()
        if producer.epoch != header.producer_epoch:
            producer.enter(header.producer_epoch)
        producer.seen_ms = now_ms
        attributes = header.attributes
        if attributes & CONTROL_BIT:
            return self._end(header, producer, marker) if marker is not None else None
        first, base_offset = header.base_sequence, header.base_offset
        if first >= 0:
            delta = header.last_offset_delta
            last = (first + delta) % SEQUENCE_MODULUS
            sent = Sent(first, last, base_offset, base_offset + delta, header.max_timestamp_ms)
            producer.sent.append(sent)
        if attributes & TRANSACTIONAL_BIT:
            self._open.setdefault(header.producer_id, base_offset)
        return None

    def _end(self, header: BatchHeader, producer: ProducerState, marker: Marker) -> Aborted | None:
        first_offset = self._open.pop(header.producer_id, None)
        producer.coordinator_epoch = marker.coordinator_epoch
        if first_offset is None or marker.is_commit:
            return None
        stable = self.first_unstable()
        return Aborted(
            header.producer_id,
            first_offset,
            header.last_offset,
            header.end_offset if stable is None else stable,
        )

    def first_unstable(self) -> int | None:
        """Where the oldest open transaction begins; None if no transaction is open."""
        return next(iter(self._open.values()), None)

    def expire(self, now_ms: int, idle_ms: int) -> int:
        """Forget producers idle for longer, unless in a transaction; returns how many."""
        idle = [
            producer_id
            for producer_id, producer in self._by_id.items()
            if producer_id not in self._open and now_ms - producer.seen_ms > idle_ms
        ]
        for producer_id in idle:
            del self._by_id[producer_id]
        return len(idle)

    # --- the snapshot -----------------------------------------------------------------------

    def encode_snapshot(self) -> bytes:
        """The bytes of a ``.snapshot``, with each producer's last batch only, as in Kafka."""
        body = bytearray(_SNAPSHOT_COUNT.pack(len(self._by_id)))
        for producer_id, producer in self._by_id.items():
            last = producer.sent[-1] if producer.sent else None
            body += _SNAPSHOT_ENTRY.pack(
                producer_id,
                producer.epoch,
                last.last_sequence if last else NO_PRODUCER,
                last.last_offset if last else _NO_OFFSET,
                last.last_offset - last.base_offset if last else 0,
                producer.seen_ms,
                producer.coordinator_epoch,
                self._open.get(producer_id, _NO_OFFSET),
            )
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + bytes(body)

    @classmethod
    def from_snapshot(cls, data: bytes) -> Producers:
        """Parse a snapshot; raises ``WrongSnapshot``."""
        head_bytes = _SNAPSHOT_HEAD.size + _SNAPSHOT_COUNT.size
        if len(data) < head_bytes:
            raise WrongSnapshot("the snapshot is incomplete")
        version, crc = _SNAPSHOT_HEAD.unpack_from(data)
        (count,) = _SNAPSHOT_COUNT.unpack_from(data, _SNAPSHOT_HEAD.size)
        if version != _SNAPSHOT_VERSION or crc != crc32c(data[_SNAPSHOT_HEAD.size :]):
            raise WrongSnapshot(f"the snapshot (version {version}) does not match its checksum")
        if len(data) != head_bytes + count * _SNAPSHOT_ENTRY.size:
            raise WrongSnapshot(
                f"the snapshot states {plural(count, 'producer')}, which does not match its size"
            )
        producers = cls()
        begun: list[tuple[int, int]] = []
        for entry in _SNAPSHOT_ENTRY.iter_unpack(data[head_bytes:]):
            producers._by_id[entry[0]] = _parse_producer(entry)
            if entry[-1] != _NO_OFFSET:
                begun.append((entry[-1], entry[0]))
        producers._open = {producer_id: offset for offset, producer_id in sorted(begun)}
        return producers


def _parse_producer(entry: tuple[int, ...]) -> ProducerState:
    _, epoch, last_sequence, last_offset, offset_delta, seen_ms, coordinator_epoch, _ = entry
    producer = ProducerState(epoch=epoch, seen_ms=seen_ms, coordinator_epoch=coordinator_epoch)
    if last_sequence != NO_PRODUCER:
        first_sequence = (last_sequence - offset_delta) % SEQUENCE_MODULUS
        base_offset = last_offset - offset_delta
        producer.sent.append(Sent(first_sequence, last_sequence, base_offset, last_offset, seen_ms))
    return producer


def encode_aborted(aborted: Iterable[Aborted]) -> bytes:
    """The bytes of a ``.txnindex``."""
    return b"".join(_ABORTED.pack(0, *entry) for entry in aborted)


def parse_aborted(data: bytes) -> list[Aborted]:
    """The entries of a ``.txnindex``; raises ``WrongSnapshot`` if it is invalid."""
    if len(data) % ABORTED_BYTES:
        raise WrongSnapshot(f"{len(data)} bytes are not a whole number of aborted transactions")
    entries = list(_ABORTED.iter_unpack(data))
    if any(version or first > last for version, _, first, last, _ in entries):
        raise WrongSnapshot("the entries are not aborted transactions")
    return [Aborted(*entry[1:]) for entry in entries]


def _find(producer: ProducerState, header: BatchHeader) -> Sent | None:
    """The stored batch that this one repeats, if it is among the last five."""
    if header.producer_epoch != producer.epoch:
        return None
    wanted = header.base_sequence, header.last_sequence
    return next((sent for sent in producer.sent if sent[:2] == wanted), None)


def _check_epoch(header: BatchHeader, epoch: int) -> None:
    if header.producer_epoch < epoch:
        raise StaleProducer(
            f"producer {header.producer_id} now has epoch {epoch}, but this batch has "
            f"{header.producer_epoch}: another instance has taken over"
        )


def _check_sequence(header: BatchHeader, epoch: int, last_sequence: int) -> None:
    if header.producer_epoch != epoch:
        expected = 0  # a new epoch starts at 0
    elif last_sequence == NO_PRODUCER:
        return  # this epoch has only markers so far
    else:
        expected = (last_sequence + 1) % SEQUENCE_MODULUS
    if header.base_sequence != expected:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} epoch {header.producer_epoch}: expected sequence "
            f"{expected}, but got {header.base_sequence}"
        )

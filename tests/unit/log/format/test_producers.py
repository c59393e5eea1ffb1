"""Producer sequences and transactions, and the files that store them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from cordwood.batch.header import BatchHeader, crc32c, parse_header
from cordwood.batch.records import Marker
from cordwood.errors import InvalidTransaction, OutOfOrderSequence, StaleProducer
from cordwood.log.format.producers import (
    ABORTED_BYTES,
    Duplicate,
    Producers,
    WrongSnapshot,
    encode_aborted,
    parse_aborted,
)
from cordwood.model import Aborted
from support.logs import NOW_MS, a_batch


def sent(
    sequence: int, count: int = 1, *, offset: int = 0, epoch: int = 0, **fields: Any
) -> BatchHeader:
    """The header of a batch from producer 7, unless ``producer_id`` is given."""
    data = a_batch(
        *[b"x"] * count,
        producer_id=fields.pop("producer_id", 7),
        producer_epoch=epoch,
        base_sequence=sequence,
        **fields,
    )
    return parse_header(data)._replace(base_offset=offset)


def marker_of(offset: int, *, commit: bool, epoch: int = 0, term: int = 0) -> Marker:
    return Marker(offset, 7, epoch, commit, term)


def end(producers: Producers, offset: int, *, commit: bool, producer_id: int = 7) -> Aborted | None:
    """Apply a transaction marker at ``offset``."""
    header = sent(-1, offset=offset, is_transactional=True, is_control=True,
                  producer_id=producer_id)  # fmt: skip
    marker = Marker(offset, producer_id, 0, commit, 0)
    return producers.update(header, NOW_MS, marker)


def test_sequences_follow_each_other():
    """A batch must start at the sequence after the last stored one."""
    producers = Producers()
    assert producers.check([sent(0, 3)]) is None
    producers.update(sent(0, 3, offset=10), NOW_MS)
    assert producers.check([sent(3)]) is None
    for wrong in (4, 2, 100):
        with pytest.raises(OutOfOrderSequence, match="expected sequence 3"):
            producers.check([sent(wrong)])


def test_a_sequence_wraps_after_two_to_the_31():
    """Sequence 0 follows sequence 2**31 - 1."""
    producers = Producers()
    producers.update(sent(2**31 - 2, 2, offset=0), NOW_MS)
    assert producers.last_sequence(7, 0) == 2**31 - 1
    assert producers.check([sent(0)]) is None
    producers.update(sent(2**31 - 1, 3, offset=2), NOW_MS)
    assert producers.last_sequence(7, 0) == 1
    assert producers.check([sent(2)]) is None


def test_a_repeated_batch_answers_with_its_first_offsets():
    """A repeat of one of the last five batches returns its stored offsets.

    A repeat of an older batch is out of order.
    """
    producers = Producers()
    for i in range(7):
        producers.update(sent(2 * i, 2, offset=100 + 2 * i), NOW_MS)
    assert producers.check([sent(12, 2)]) == Duplicate(112, 113, NOW_MS)
    assert producers.check([sent(4, 2)]) == Duplicate(104, 105, NOW_MS)
    with pytest.raises(OutOfOrderSequence):
        producers.check([sent(2, 2)])


def test_half_of_a_batch_is_no_duplicate():
    """A duplicate must match the whole sequence range of a stored batch."""
    producers = Producers()
    producers.update(sent(0, 2, offset=0), NOW_MS)
    with pytest.raises(OutOfOrderSequence):
        producers.check([sent(0, 1)])


def test_several_batches_of_one_append_follow_each_other():
    """Each batch of an append is checked against the one before it; a check changes no state."""
    producers = Producers()
    producers.update(sent(0, offset=0), NOW_MS)
    assert producers.check([sent(1), sent(2, 2), sent(4)]) is None
    with pytest.raises(OutOfOrderSequence):
        producers.check([sent(1), sent(3)])
    with pytest.raises(OutOfOrderSequence, match="stored already"):
        producers.check([sent(0), sent(1)])
    assert producers.last_sequence(7, 0) == 0


def test_an_old_epoch_is_fenced():
    """A batch is refused if its producer epoch is older than the stored one."""
    producers = Producers()
    producers.update(sent(0, epoch=3), NOW_MS)
    with pytest.raises(StaleProducer, match="epoch 3"):
        producers.check([sent(1, epoch=2)])


def test_a_new_epoch_begins_at_zero():
    """A new producer epoch starts at sequence 0, whatever the last sequence of the old epoch."""
    producers = Producers()
    producers.update(sent(5, epoch=3), NOW_MS)
    assert producers.check([sent(0, epoch=4)]) is None
    with pytest.raises(OutOfOrderSequence):
        producers.check([sent(6, epoch=4)])
    producers.update(sent(0, epoch=4), NOW_MS)
    assert producers.last_sequence(7, 3) is None
    assert producers.last_sequence(7, 4) == 0


def test_an_unknown_producer_may_begin_anywhere():
    """An unknown producer may start at any sequence: its state may have expired."""
    assert Producers().check([sent(41)]) is None


def test_the_line_protocol_may_skip_numbers():
    """Without ``strict``, sequences may have gaps, but an old epoch is still refused.

    The listener of the line protocol removes duplicates itself.
    """
    producers = Producers()
    producers.update(sent(0, epoch=1), NOW_MS)
    assert producers.check([sent(10, epoch=1), sent(30, epoch=1)], strict=False) is None
    with pytest.raises(StaleProducer):
        producers.check([sent(10, epoch=0)], strict=False)


def test_batches_nobody_numbered_are_not_remembered():
    """A batch with producer id -1 leaves no state."""
    producers = Producers()
    header = parse_header(a_batch(b"x"))
    assert producers.check([header]) is None
    producers.update(header, NOW_MS)
    assert producers.known_count == 0


def test_an_open_transaction_holds_the_last_stable_offset():
    """The oldest open transaction limits the last stable offset until its marker is written."""
    producers = Producers()
    producers.update(sent(0, offset=10, is_transactional=True), NOW_MS)
    producers.update(sent(0, offset=11, is_transactional=True, producer_id=8), NOW_MS)
    producers.update(sent(1, offset=12, is_transactional=True), NOW_MS)
    assert producers.first_unstable() == 10
    assert end(producers, 13, commit=True) is None
    assert producers.first_unstable() == 11
    assert end(producers, 14, commit=False, producer_id=8) == Aborted(8, 11, 14, 15)
    assert producers.first_unstable() is None


def test_an_abort_remembers_how_far_all_was_decided():
    """An abort stores the last stable offset: the start of the oldest open transaction."""
    producers = Producers()
    producers.update(sent(0, offset=10, is_transactional=True), NOW_MS)
    producers.update(sent(0, offset=11, is_transactional=True, producer_id=8), NOW_MS)
    assert end(producers, 12, commit=False, producer_id=8) == Aborted(8, 11, 12, 10)


def test_a_marker_without_a_transaction_aborts_nothing():
    """A marker has no effect in a partition that received no records of the transaction."""
    assert end(Producers(), 5, commit=False) is None


def test_plain_batches_are_refused_within_a_transaction():
    """A producer with an open transaction may not send batches outside the transaction."""
    producers = Producers()
    producers.update(sent(0, offset=0, is_transactional=True), NOW_MS)
    with pytest.raises(InvalidTransaction):
        producers.check([sent(1)])


def test_a_marker_of_an_old_coordinator_is_refused():
    """A marker is refused if its coordinator epoch is older than the last one."""
    producers = Producers()
    header = sent(-1, is_transactional=True, is_control=True)
    producers.update(header, NOW_MS, marker_of(0, commit=True, term=5))
    producers.check_markers([None, marker_of(1, commit=True, term=5)])
    with pytest.raises(StaleProducer):
        producers.check_markers([marker_of(1, commit=True, term=4)])


def test_idle_producers_are_forgotten_unless_in_a_transaction():
    """Idle producers expire; the time counts from their last append."""
    producers = Producers()
    producers.update(sent(0, offset=0, is_transactional=True), NOW_MS)
    producers.update(sent(0, offset=1, producer_id=8), NOW_MS)
    producers.update(sent(0, offset=2, producer_id=9), NOW_MS + 50)
    assert producers.expire(NOW_MS + 100, 100) == 0
    assert producers.expire(NOW_MS + 101, 100) == 1
    assert producers.last_sequence(8, 0) is None
    assert producers.last_sequence(7, 0) == 0
    assert producers.expire(NOW_MS + 1000, 100) == 1
    assert producers.known_count == 1


def test_a_snapshot_is_kafkas():
    """A snapshot has Kafka's format: version 1, a CRC-32C, and 46 bytes per producer."""
    producers = Producers()
    producers.update(sent(5, 3, offset=40, epoch=2, is_transactional=True), NOW_MS)
    data = producers.encode_snapshot()
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 7, 2, 7, 42, 2, NOW_MS, -1, 40)
    assert data == struct.pack(">hI", 1, crc32c(body)) + body


def test_a_snapshot_brings_the_state_back():
    """A snapshot restores each producer's last batch, epoch and open transaction."""
    producers = Producers()
    producers.update(sent(0, offset=50, is_transactional=True, producer_id=9), NOW_MS)
    producers.update(sent(2**31 - 1, 3, offset=60, is_transactional=True), NOW_MS)
    end(producers, 63, commit=True, producer_id=9)
    producers.update(sent(1, offset=70, is_transactional=True, producer_id=9), NOW_MS)
    again = Producers.from_snapshot(producers.encode_snapshot())
    assert again.encode_snapshot() == producers.encode_snapshot()
    assert again.first_unstable() == 60
    assert again.check([sent(2**31 - 1, 3, is_transactional=True)]) == Duplicate(60, 62, NOW_MS)
    assert again.check([sent(2, is_transactional=True)]) is None


def test_a_damaged_snapshot_is_refused():
    """A snapshot with any changed or missing byte is refused."""
    producers = Producers()
    producers.update(sent(0), NOW_MS)
    data = producers.encode_snapshot()
    for i in range(len(data)):
        wrong = bytearray(data)
        wrong[i] ^= 0x10
        with pytest.raises(WrongSnapshot):
            Producers.from_snapshot(bytes(wrong))
        with pytest.raises(WrongSnapshot):
            Producers.from_snapshot(data[:i])


def test_aborted_transactions_are_34_bytes_each():
    """An entry is version 0 and four numbers, as in Kafka; invalid entries are refused."""
    entries = [Aborted(7, 1, 5, 6), Aborted(8, 2, 9, 10)]
    data = encode_aborted(entries)
    assert data[:ABORTED_BYTES] == struct.pack(">hqqqq", 0, 7, 1, 5, 6)
    assert parse_aborted(data) == entries
    for wrong in (data[:-1], b"\x01" + data[1:], struct.pack(">hqqqq", 0, 7, 5, 1, 6)):
        with pytest.raises(WrongSnapshot):
            parse_aborted(wrong)

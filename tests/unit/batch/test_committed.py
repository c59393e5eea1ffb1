"""What a read_committed reader gets from stored batches."""

import pytest

from cordwood.batch.header import patch, seal
from cordwood.batch.records import decode_committed, encode_batch, encode_marker
from cordwood.errors import CorruptBatch
from cordwood.model import Record


def batch(offset, value, producer_id=-1, *, transactional=False):
    return encode_batch(
        [Record(offset, 0, None, value)],
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        is_transactional=transactional,
    )


def marker(offset, producer_id, *, commit):
    data = bytearray(
        encode_marker(
            commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
        )
    )
    patch(data, 0, offset, 0)
    return bytes(data)


def values(data, aborted):
    return [record.value for record in decode_committed(data, aborted)]


def test_records_of_an_aborted_transaction_are_left_out():
    """Records of an aborted transaction are skipped from its first offset to its abort marker.

    Records of other producers are returned.
    """
    log = (
        batch(0, b"plain")
        + batch(1, b"void", 7, transactional=True)
        + batch(2, b"other", 8, transactional=True)
        + marker(3, 7, commit=False)
        + marker(4, 8, commit=True)
        + batch(5, b"next", 7, transactional=True)
        + marker(6, 7, commit=True)
    )
    assert values(log, [(7, 1)]) == [b"plain", b"other", b"next"]


def test_markers_are_never_records():
    """Markers are never returned as records, and committed records are all returned."""
    log = batch(0, b"a", 7, transactional=True) + marker(1, 7, commit=True) + batch(2, b"b")
    assert values(log, []) == [b"a", b"b"]


def test_a_marker_whose_offsets_cannot_be_is_refused():
    """A marker with invalid offsets raises CorruptBatch, although its records are not read."""
    data = bytearray(marker(3, 7, commit=True))
    data[23:27] = (-5).to_bytes(4, "big", signed=True)  # last offset delta
    seal(data, 0, len(data))
    with pytest.raises(CorruptBatch):
        decode_committed(bytes(data), [])

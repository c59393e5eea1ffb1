"""A bundle is proved only by comparing its records with the log's records."""

from __future__ import annotations

import io
import struct
from dataclasses import replace

import pytest

from cordwood.batch.header import parse_headers
from cordwood.batch.records import encode_batch, encode_marker
from cordwood.decide.archive import Span
from cordwood.errors import CorruptionError, OffsetOutOfRange
from cordwood.log.format.bundle_writer import write_bundle
from cordwood.log.lifecycle.archive_proof import Unproven, prove_bundle
from cordwood.log.read.snapshot import ReadSlice
from cordwood.model import Codec, Header, Record, TimestampType, TopicPartition

TP = TopicPartition("t", 0)
WHOLE = Span(0, 12)


class StoredLog:
    """A log of encoded batches; a read returns at most two of them."""

    def __init__(self, *batches, log_start_offset=0):
        self.batches = batches
        self.log_start_offset = log_start_offset

    def read(self, offset, max_bytes, *, end_offset=None):
        assert max_bytes > 0
        if offset < self.log_start_offset:
            raise OffsetOutOfRange("gone")
        found = []
        for data in self.batches:
            (header,) = parse_headers(data)
            if header.last_offset >= offset and header.base_offset < end_offset:
                found.append((header, data))
        found = found[:2]
        first = found[0][0].base_offset if found else offset
        after = found[-1][0].last_offset + 1 if found else end_offset
        data = b"".join(each for _, each in found)
        return ReadSlice(data, first, after, self.log_start_offset, end_offset, end_offset)


def record(offset, value=b"value", **changes):
    found = Record(offset, 1_000 + offset, b"key", value, (Header("h", b"content"),))
    return replace(found, **changes)


def batch(*records, **options):
    return bytes(encode_batch(records, **options))


def marker(offset, *, commit=True, producer_id=7):
    data = bytearray(
        encode_marker(
            commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
        )
    )
    struct.pack_into(">q", data, 0, offset)
    return bytes(data)


def a_bundle(*batches, span=WHOLE):
    file = io.BytesIO()
    write_bundle(file, TP, span, [b"".join(batches)], lines=True)
    return io.BytesIO(file.getvalue())


def prove(bundle, log, span=WHOLE):
    return prove_bundle(bundle, TP, span, log)


FOUR = [batch(*(record(offset) for offset in range(at, at + 3))) for at in (0, 3, 6, 9)]


def test_a_bundle_of_the_logs_own_batches_is_proved():
    """The proof's counts and times come from the compared records."""
    proof = prove(a_bundle(*FOUR), StoredLog(*FOUR))
    assert proof == (12, 1_000, 1_011, False, 0)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("span", [(1, 5), (4, 5), (0, 8), (2, 12)])
def test_a_bundle_that_begins_and_ends_inside_batches_is_proved(span, codec):
    """A bundle may start or end inside a batch of the log; the partial batch is re-encoded."""
    log = [batch(*map(record, range(at, at + 4)), codec=codec) for at in (0, 4, 8)]
    cut = Span(*span)
    assert prove(a_bundle(*log, span=cut), StoredLog(*log), cut).records == cut.end - cut.start


CHANGES = {
    "value": {"value": b"other"},
    "key": {"key": b"kez"},
    "no key": {"key": None},
    "time": {"timestamp_ms": 1_005},
    "header": {"headers": (Header("h", b"contemt"),)},
    "header name": {"headers": (Header("i", b"content"),)},
    "no header": {"headers": ()},
    "no value": {"value": None},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("span", [WHOLE, Span(3, 5), Span(4, 6)])
def test_one_changed_record_refutes_a_bundle(change, span):
    """One changed field of one record refutes a bundle whose counts and checksums are valid."""
    changed = batch(record(3), record(4, **CHANGES[change]), record(5))
    with pytest.raises(CorruptionError, match="another record than the log at offset 4"):
        prove(a_bundle(FOUR[0], changed, *FOUR[2:], span=span), StoredLog(*FOUR), span)


def test_records_that_changed_places_refute_a_bundle():
    """Records in a different order than in the log refute a bundle."""
    log = [batch(record(0, b"a"), record(1, b"b"))]
    forged = batch(record(0, b"b"), record(1, b"a"))
    with pytest.raises(CorruptionError, match="another record than the log at offset 0"):
        prove(a_bundle(forged), StoredLog(*log))


@pytest.mark.parametrize(
    "batches",
    [
        [*FOUR[:3]],
        [*FOUR[1:]],
        [FOUR[0], *FOUR[2:]],
        [FOUR[0], batch(record(3), record(5)), *FOUR[2:]],
        [batch(*map(record, range(12)))],
        [],
    ],
)
def test_a_bundle_without_a_record_of_the_log_is_refuted(batches):
    """A bundle with missing records, or with other batch boundaries than the log, is refuted."""
    with pytest.raises(CorruptionError):
        prove(a_bundle(*batches), StoredLog(*FOUR))


@pytest.mark.parametrize(
    "options",
    [
        {"producer_id": 8, "producer_epoch": 0, "base_sequence": 5},
        {"producer_id": 7, "producer_epoch": 1, "base_sequence": 5},
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": 6},
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": 5, "is_transactional": True},
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": 5, "leader_epoch": 2},
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": 5, "is_control": True},
        {
            "producer_id": 7,
            "producer_epoch": 0,
            "base_sequence": 5,
            "timestamp_type": TimestampType.APPEND,
        },
    ],
)
def test_a_changed_header_of_a_batch_refutes_a_bundle(options):
    """A changed batch header refutes a bundle, because it determines producer and transaction."""
    log = batch(record(0), producer_id=7, producer_epoch=0, base_sequence=5)
    with pytest.raises(CorruptionError, match="a different batch header"):
        prove(a_bundle(batch(record(0), **options)), StoredLog(log))


def transactional(*offsets):
    return batch(
        *map(record, offsets),
        producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True,
    )  # fmt: skip


def test_a_commit_that_became_an_abort_refutes_a_bundle():
    """A changed or missing transaction marker refutes a bundle."""
    log = [transactional(0, 1), marker(2)]
    assert prove(a_bundle(*log), StoredLog(*log)).transactional
    with pytest.raises(CorruptionError, match="a different transaction marker"):
        prove(a_bundle(log[0], marker(2, commit=False)), StoredLog(*log))
    with pytest.raises(
        CorruptionError, match="lacks the record or marker that the log has at offset 2"
    ):
        prove(a_bundle(log[0]), StoredLog(*log))


def test_a_marker_the_log_does_not_have_proves_nothing():
    """A marker at an offset that compaction emptied leaves the bundle unproven."""
    log = [transactional(0, 1), marker(4)]
    forged = a_bundle(log[0], marker(3, commit=False), log[1])
    with pytest.raises(Unproven, match="transaction marker at offset 3"):
        prove(forged, StoredLog(*log))


def test_a_log_that_was_compacted_since_proves_the_bundle_it_was_made_from():
    """A log that was compacted later still proves the bundle made from it.

    Records that only the bundle still has are counted as unproven.
    """
    thinned = [
        batch(record(1), base_offset=0, last_offset_delta=2, delete_horizon_ms=99),
        batch(base_offset=3, last_offset_delta=2),  # all records removed
        batch(record(9), record(11)),
    ]
    proof = prove(a_bundle(*FOUR), StoredLog(*thinned))
    assert (proof.records, proof.unproven_records) == (12, 9)
    forged = batch(record(0), record(1, b"other"), record(2))
    with pytest.raises(CorruptionError, match="another record than the log at offset 1"):
        prove(a_bundle(forged, *FOUR[1:]), StoredLog(*thinned))


def test_what_the_log_no_longer_starts_with_needs_no_proof():
    """Records below the log start are counted as unproven; all others are compared."""
    log = StoredLog(*FOUR[2:], log_start_offset=6)
    other = batch(*(record(offset, b"other") for offset in range(3)))
    assert prove(a_bundle(other, *FOUR[1:]), log).unproven_records == 6
    assert prove(a_bundle(marker(0), *FOUR[1:]), log).records == 9
    with pytest.raises(CorruptionError):
        prove(a_bundle(*FOUR[:2], other, FOUR[3]), log)


def test_a_log_start_that_moves_meanwhile_ends_nothing():
    """The proof succeeds if the log start advances while the bundle is read."""

    class Moving(StoredLog):
        def read(self, offset, max_bytes, *, end_offset=None):
            found = super().read(offset, max_bytes, end_offset=end_offset)
            self.log_start_offset = 9
            return found

    assert prove(a_bundle(*FOUR), Moving(*FOUR)).records == 12


def test_a_damaged_log_proves_nothing():
    """If a batch of the log is damaged, the bundle is unproven."""
    damaged = bytearray(FOUR[1])
    damaged[-1] ^= 1
    with pytest.raises(Unproven, match="the log is damaged"):
        prove(a_bundle(*FOUR), StoredLog(FOUR[0], bytes(damaged), *FOUR[2:]))


def test_small_batches_are_compared_in_runs_and_one_by_one_alike():
    """Comparing runs of small batches gives the same result as comparing them one by one."""
    log = [batch(record(offset)) for offset in range(12)]
    assert prove(a_bundle(*log), StoredLog(*log)).unproven_records == 0
    for at in range(12):
        forged = [*log]
        forged[at] = batch(record(at, b"other"))
        with pytest.raises(CorruptionError, match=f"at offset {at};"):
            prove(a_bundle(*forged), StoredLog(*log))


@pytest.mark.parametrize("span", [WHOLE, Span(1, 11), Span(3, 5)])
def test_a_log_that_was_compressed_since_proves_the_bundle_it_was_made_from(span):
    """Batches that compression merged hold the records of several batches of the bundle."""
    singles = [batch(record(offset)) for offset in range(12)]
    merged = [
        batch(*map(record, range(7)), codec=Codec.ZSTD),
        batch(*map(record, range(7, 12)), codec=Codec.ZSTD),
    ]
    count = span.end - span.start
    assert prove(a_bundle(*singles, span=span), StoredLog(*merged), span)[0:5:4] == (count, 0)
    for at in (span.start, span.end - 1):
        forged = [*singles]
        forged[at] = batch(record(at, b"other"))
        with pytest.raises(CorruptionError, match=f"at offset {at};"):
            prove(a_bundle(*forged, span=span), StoredLog(*merged), span)
        del forged[at]
        with pytest.raises(CorruptionError, match="lacks the record"):
            prove(a_bundle(*forged, span=span), StoredLog(*merged), span)


def test_a_merged_batch_that_spans_two_reads_of_the_bundle_is_proved():
    """The part of a batch that later reads of the bundle hold is compared with those."""
    large = [b"%d" % at * (3 << 19) for at in range(6)]
    singles = [batch(record(at, value)) for at, value in enumerate(large)]
    merged = batch(*(record(at, value) for at, value in enumerate(large)), codec=Codec.ZSTD)
    span = Span(0, 6)
    assert prove(a_bundle(*singles, span=span), StoredLog(merged), span).records == 6
    with pytest.raises(CorruptionError, match=r"lacks the record or marker .* at offset 5"):
        prove(a_bundle(*singles[:5], span=span), StoredLog(merged), span)


def test_batches_of_a_producer_do_not_prove_one_batch():
    """Only batches without a producer id are merged, so others are a different log."""
    options = {"producer_id": 7, "producer_epoch": 0}
    log = batch(record(0), record(1), base_sequence=0, **options)
    parts = [batch(record(at), base_sequence=at, **options) for at in (0, 1)]
    with pytest.raises(CorruptionError):
        prove(a_bundle(*parts), StoredLog(log))

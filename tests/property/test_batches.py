"""Properties of batch bytes: round trips, kernels against the plain oracle, damage and cuts."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.column_encoder import encode_columns
from cordwood.batch.header import (
    CRC_START,
    HEADER_BYTES,
    check_batches,
    parse_header,
    parse_headers,
    seal,
)
from cordwood.batch.header_table import WalkEnd, walk_batches
from cordwood.batch.lines import (
    LineProducer,
    encode_blocks,
    encode_lines,
    encode_lines_plain,
    load_kernels,
)
from cordwood.batch.records import decode_batch, decode_committed, encode_batch
from cordwood.errors import BatchTooLarge, CorruptBatch, InvalidRecord
from cordwood.model import Record
from support.batches import batch_options, record_lists, records_of, sample_records


@pytest.fixture(autouse=True, scope="module")
def warmed():
    """Compile the kernels, because these tests compare them with the plain oracle."""
    load_kernels()


# --- round trips ----------------------------------------------------------------------------


@given(record_lists(min_size=0), batch_options(), st.integers(0, 2**20))
def test_decoding_undoes_encoding(records, options, extra):
    """Records, offset span and header survive, for all attributes and codecs."""
    base = records[0].offset if records else 5
    span = (records[-1].offset - base if records else 0) + extra
    data = encode_batch(records, base_offset=base, last_offset_delta=span, **options)
    header = parse_header(data)
    assert decode_batch(b"##" + data, 2) == records
    assert (header.base_offset, header.last_offset_delta) == (base, span)
    assert header.leader_epoch == options["leader_epoch"]
    assert header.is_transactional == options["is_transactional"]
    assert header.has_delete_horizon == (options["delete_horizon_ms"] is not None)
    assert header.producer_id == options.get("producer_id", -1)


@given(st.lists(st.tuples(record_lists(max_size=5), batch_options()), max_size=5))
def test_kernels_decode_what_the_oracle_decodes(parts):
    """Decoding many batches in one call returns the same records as the plain oracle."""
    data = b"".join(encode_batch(records, **options) for records, options in parts)
    columns = decode_columns(data)
    assert records_of(columns) == decode_committed(data)
    assert columns.size_bytes == len(data)


@given(st.lists(st.tuples(record_lists(max_size=5), batch_options()), min_size=1, max_size=5))
def test_kernels_encode_what_the_oracle_encodes(parts):
    """Encoding decoded columns with the same headers restores the same bytes."""
    data = b"".join(encode_batch(records, **options) for records, options in parts)
    columns = decode_columns(data)
    assert encode_columns(columns, columns.batches) == data


@given(st.lists(record_lists(max_size=6), min_size=1, max_size=4), st.data())
def test_a_range_is_what_filtering_would_leave(parts, data):
    """Decoding with an offset range returns the same rows as filtering after decoding."""
    encoded = b"".join(encode_batch(records) for records in parts)
    offsets = sorted({record.offset for records in parts for record in records} | {0})
    start, end = data.draw(st.sampled_from(offsets)), data.draw(st.sampled_from(offsets))
    found = records_of(decode_columns(encoded, start_offset=start, end_offset=end))
    assert found == [r for r in decode_committed(encoded) if start <= r.offset < end]


@given(record_lists(), st.data())
def test_skipped_offsets_are_what_filtering_would_leave_out(records, data):
    """Offsets to skip may be present, or lie between or around the records."""
    offsets = {near for r in records for near in (r.offset - 1, r.offset, r.offset + 1)}
    skipped = data.draw(st.sets(st.sampled_from(sorted(offsets))) if offsets else st.just(set()))
    encoded = encode_batch(records) if records else b""
    found = records_of(decode_columns(encoded, skipped=np.array(sorted(skipped), np.int64)))
    assert found == [r for r in records if r.offset not in skipped]


@given(record_lists(min_size=1), st.data())
def test_dropping_rows_and_rewriting_keeps_the_rest(records, data):
    """Rewriting any subset of the records keeps the batch header, as compaction requires."""
    keep = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    )
    columns = decode_columns(encode_batch(records))
    columns.batches.counts[:] = int(keep.sum())
    rewritten = encode_columns(columns.chosen(keep), columns.batches)
    assert decode_batch(rewritten) == [r for r, kept in zip(records, keep, strict=True) if kept]
    assert parse_header(rewritten).last_offset == records[-1].offset


# --- damage ---------------------------------------------------------------------------------

SAMPLE = encode_batch(sample_records(3), producer_id=5, producer_epoch=1, base_sequence=9)
OUTSIDE_CRC = {*range(8), *range(12, 16)}  # base offset and leader epoch, which the broker sets


@pytest.mark.parametrize("position", range(len(SAMPLE)))
def test_any_flipped_byte_is_found(position):
    """Every flipped bit is found, except in the base offset and the leader epoch."""
    for bit in range(8):
        data = bytearray(SAMPLE)
        data[position] ^= 1 << bit
        if position in OUTSIDE_CRC:
            assert check_batches(data, 1 << 20)
        else:
            with pytest.raises((CorruptBatch, InvalidRecord, BatchTooLarge)):
                check_batches(data, 1 << 20)
            assert walk_batches(data).end is not WalkEnd.CLEAN


@given(st.binary(max_size=300), st.integers(-3, 60), st.integers(-3, 1000))
def test_any_body_is_read_alike_or_refused_alike(body, count, last_offset_delta):
    """Kernels and oracle agree on random bytes with a valid checksum; neither crashes nor loops."""
    data = bytearray(encode_batch([], base_offset=7) + body)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[23:27] = last_offset_delta.to_bytes(4, "big", signed=True)
    data[57:61] = count.to_bytes(4, "big", signed=True)
    seal(data, 0, len(data))
    try:
        expected = decode_batch(data)
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            decode_columns(data)
    else:
        assert records_of(decode_columns(data)) == expected


@given(record_lists(max_size=4), batch_options(), st.data())
def test_damaged_bodies_are_read_alike_or_refused_alike(records, options, data):
    """For a damaged batch with a recomputed checksum, kernels and oracle agree."""
    encoded = bytearray(encode_batch(records, **options))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(CRC_START, len(encoded)))
        noise = data.draw(st.binary(max_size=2))
        encoded[position : position + data.draw(st.integers(0, 2))] = noise
    if len(encoded) < HEADER_BYTES:
        return
    encoded[8:12] = (len(encoded) - 12).to_bytes(4, "big")
    seal(encoded, 0, len(encoded))
    try:
        expected = decode_committed(encoded)
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            decode_columns(encoded)
    else:
        assert records_of(decode_columns(encoded)) == expected


@given(st.binary(max_size=400))
def test_noise_is_never_taken_for_batches(noise):
    """Every reader returns an error or nothing for random bytes."""
    with contextlib.suppress(CorruptBatch, InvalidRecord, BatchTooLarge):
        assert check_batches(noise, 1 << 20) == [] == list(noise)
    with contextlib.suppress(CorruptBatch):
        assert len(decode_columns(noise)) == 0
    walk = walk_batches(noise)
    assert walk.valid_bytes == 0


@given(st.integers(0, 3 * len(SAMPLE)))
def test_a_walk_keeps_exactly_the_whole_batches(cut):
    """A log cut at any byte keeps the whole batches before the cut."""
    walk = walk_batches((3 * SAMPLE)[:cut])
    assert len(walk.batches) == cut // len(SAMPLE)
    assert walk.valid_bytes == cut // len(SAMPLE) * len(SAMPLE)
    assert walk.end is (WalkEnd.TORN if cut % len(SAMPLE) else WalkEnd.CLEAN)


# --- lines ----------------------------------------------------------------------------------

field = st.one_of(st.binary(max_size=12), st.sampled_from([b"test.probe", b"17", b"0", b"k" * 250]))
number = st.one_of(
    st.integers(0, 40).map(b"%d".__mod__),
    st.integers(2**31 - 5, 2**31 + 5).map(b"%d".__mod__),
    st.sampled_from([b"", b"-1", b"007", b"9223372036854775807", b"9223372036854775808"]),
)
good_line = st.builds(
    lambda key, n, payload: b"|".join([key, b"1700", n, payload]),
    st.sampled_from([b"a", b"test.probe", b"k" * 249]),
    number,
    st.binary(max_size=200),
)
any_line = st.one_of(good_line, st.lists(field, max_size=5).map(b"|".join), st.binary(max_size=30))
lines = st.lists(
    st.tuples(any_line, st.sampled_from([b"\n", b"\r\n"])).map(
        lambda pair: pair[0].replace(b"\n", b"") + pair[1]
    ),
    max_size=20,
)
producers = st.one_of(
    st.none(),
    st.builds(
        LineProducer,
        st.integers(0, 2**62),
        st.integers(0, 2**15 - 1),
        st.one_of(st.none(), st.integers(0, 40), st.integers(2**31 - 5, 2**31 - 1)),
    ),
)


@given(lines, producers, st.sampled_from([70, 200, 1 << 20]))
def test_the_line_kernel_is_its_twin_byte_for_byte(some, producer, batch_bytes_max):
    """Kernel and plain encoder agree on records, refusals, duplicates and the last ``n``."""
    chunk = b"".join(some)
    options = {"producer": producer, "batch_bytes_max": batch_bytes_max}
    assert encode_lines(chunk, 5, **options) == encode_lines_plain(chunk, 5, **options)


@given(st.lists(st.tuples(lines, producers), min_size=1, max_size=6))
def test_blocks_encoded_together_are_what_each_is_alone(blocks):
    """Encoding the lines of many producers in one call gives each the same result as alone."""
    given_blocks = [(b"".join(some), producer) for some, producer in blocks]
    alone = [encode_lines_plain(chunk, 5, producer=producer) for chunk, producer in given_blocks]
    assert encode_blocks(given_blocks, 5).each() == alone


@given(lines, producers, st.data())
def test_where_a_chunk_is_cut_does_not_matter(some, producer, data):
    """Lines in one chunk or in several give the same records, refusals and producer state."""
    whole = encode_lines(b"".join(some), 5, producer=producer)
    records: list[Record] = []
    rejected, duplicates, position = [], 0, 0
    rest = list(some)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        chunk, rest = b"".join(rest[:size]), rest[size:]
        part = encode_lines(chunk, 5, producer=producer)
        records += decode_committed(part.data)
        rejected += [(position + start, position + end, why) for start, end, why in part.rejected]
        duplicates += part.duplicates
        position += len(chunk)
        if producer is not None:
            producer = producer._replace(last_n=part.last_n)
    assert [(r.key, r.value, r.headers) for r in records] == [
        (r.key, r.value, r.headers) for r in decode_committed(whole.data)
    ]
    assert (rejected, duplicates) == (whole.rejected, whole.duplicates)
    assert producer is None or producer.last_n == whole.last_n


@given(st.lists(st.integers(0, 30), max_size=40))
def test_headers_alone_rebuild_the_producers_state(numbers):
    """A record's ``n`` is its batch's base sequence plus its delta; the last ``n`` is the state."""
    chunk = b"".join(b"k|1|%d|x\n" % n for n in numbers)
    batch = encode_lines(chunk, 5, producer=LineProducer(1, 0, None))
    stored = [int(record.headers[1].value) for record in decode_committed(batch.data)]
    headers = parse_headers(batch.data)
    rebuilt = [header.base_sequence + i for header in headers for i in range(header.count)]
    assert rebuilt == stored == sorted(set(stored))
    assert batch.last_n == (headers[-1].last_sequence if headers else None)
    again = encode_lines(chunk, 5, producer=LineProducer(1, 0, batch.last_n))
    assert again.count == 0, "a resend stores nothing twice"

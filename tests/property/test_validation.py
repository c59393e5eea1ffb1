"""The two record validators agree, and accept exactly the batches that readers can decode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.batch.header import HEADER_BYTES, parse_header, seal
from cordwood.batch.kernels.loader import load_kernels
from cordwood.batch.record_parser import Fault
from cordwood.batch.records import decode_batch, encode_batch
from cordwood.batch.refused_records import RecordRules, find_by_kernel, find_plainly
from cordwood.batch.validation import check_body, walk_by_kernel, walk_plainly
from cordwood.errors import CorruptBatch, InvalidRecord
from cordwood.model import Codec, Record
from support.batches import headers, small_bytes, timestamps


@pytest.fixture(scope="module", autouse=True)
def warmed():
    """Compile the kernels before Hypothesis measures time."""
    load_kernels()


contents = st.tuples(timestamps, small_bytes, small_bytes, headers)


def records_of(found) -> list[Record]:
    return [Record(offset, *content) for offset, content in enumerate(found)]


@given(st.lists(contents, min_size=1, max_size=40), st.sampled_from(Codec))
def test_both_walks_find_what_the_records_say(found, codec):
    """Both walks return the oldest and newest timestamp and the first record without a key."""
    records = records_of(found)
    data = encode_batch(records, codec=codec)
    times = [record.timestamp_ms for record in records]
    keyless = [at for at, record in enumerate(records) if record.key is None]
    expected = (
        Fault.NONE, len(records) - 1, min(times), max(times), keyless[0] if keyless else -1,
    )  # fmt: skip
    assert check_body(data, 0, parse_header(data), 1 << 20) == expected
    body = encode_batch(records)[HEADER_BYTES:]
    for walk in (walk_plainly, walk_by_kernel):
        assert walk(body, len(records), parse_header(data).base_timestamp_ms) == expected


@given(st.lists(contents, min_size=1, max_size=6), st.integers(-1, 1), st.data())
def test_both_walks_refuse_alike_what_was_damaged(found, more, data):
    """For damaged bodies, both walks report the same fault at the same record."""
    count = len(found) + more
    encoded = encode_batch(records_of(found))
    body = bytearray(encoded[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(body)))
        noise = data.draw(st.binary(max_size=3))
        body[position : position + data.draw(st.integers(0, 3))] = noise
    base_ms = data.draw(timestamps)
    assert walk_plainly(body, count, base_ms) == walk_by_kernel(body, count, base_ms)


@given(st.binary(max_size=200), st.integers(-2, 30))
def test_both_walks_refuse_alike_what_never_was_a_body(body, count):
    """For random bytes, both walks return the same result without crashing."""
    assert walk_plainly(body, count, 0) == walk_by_kernel(body, count, 0)


@given(st.lists(contents, min_size=1, max_size=5), st.sampled_from(Codec), st.data())
def test_what_passes_is_what_every_reader_can_decode(found, codec, data):
    """The check accepts a damaged batch exactly if it decodes with consecutive offsets."""
    encoded = bytearray(encode_batch(records_of(found), codec=codec))
    for _ in range(data.draw(st.integers(1, 2))):
        position = data.draw(st.integers(HEADER_BYTES, len(encoded)))
        encoded[position : position + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2)
        )
    encoded[8:12] = (len(encoded) - 12).to_bytes(4, "big")
    seal(encoded, 0, len(encoded))
    try:
        decoded = [record.offset for record in decode_batch(encoded)]
    except CorruptBatch:
        decoded = []
    assert is_accepted(encoded) == (decoded == list(range(len(found))))


def is_accepted(batch) -> bool:
    """Return whether the check passes; a body that may inflate past the limit does not."""
    try:
        return check_body(batch, 0, parse_header(batch), 1 << 24) is not None
    except InvalidRecord:
        return False


@given(
    st.lists(contents, min_size=1, max_size=20),
    st.sampled_from([Codec.NONE, Codec.LZ4]),
    st.builds(RecordRules, st.booleans(), timestamps, timestamps),
)
def test_both_paths_find_the_same_refused_records(found, codec, rules):
    """The kernel and plain Python list the same records, and none if the rules allow all."""
    data = encode_batch(records_of(found), codec=codec)
    expected = find_plainly(data, rules, 1 << 20)
    assert find_by_kernel(data, rules, 1 << 20) == expected
    assert find_plainly(data, RecordRules(needs_keys=False), 1 << 20) == ([], [])

"""The kernel formats the same lines as the plain implementation, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.batch.records import encode_batch
from cordwood.batch.subscriber_lines import format_batches
from cordwood.errors import CorruptBatch
from cordwood.model import Codec, Header, Record
from cordwood.protocol.line.framing import Framing
from cordwood.protocol.line.records import encode_records, parse_record

awkward = st.text(alphabet="ab\\|\n\r\0é", max_size=12).map(str.encode)
fields = st.one_of(st.none(), awkward, st.binary(max_size=300))
header_names = st.one_of(st.sampled_from(["ts", "n", "", "x", "tsn"]), st.text(max_size=3))
numbers = st.one_of(st.sampled_from([b"0", b"007", b"9" * 19, b"9" * 20, b"-1"]), fields)
headers = st.lists(st.builds(Header, header_names, numbers), max_size=4).map(tuple)
record_lists = st.lists(
    st.tuples(st.integers(-1, 2**52), fields, fields, headers), min_size=1, max_size=6
).map(lambda rows: [Record(offset, *row) for offset, row in enumerate(rows)])


@given(
    records=record_lists,
    start=st.integers(0, 7),
    framing=st.sampled_from(Framing),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
    base=st.sampled_from([0, 9, 10**12]),
    partition=st.sampled_from([None, 0, 7, 2**31 - 1]),
)
def test_kernel_writes_what_the_plain_way_writes(
    records: list[Record],
    start: int,
    framing: Framing,
    codec: Codec,
    base: int,
    partition: int | None,
):
    """Kernel and plain output are equal for any records, framing, start offset and partition."""
    moved = [replace(record, offset=base + record.offset) for record in records]
    data = encode_batch(moved, codec=codec, base_offset=base)
    wanted = [record for record in moved if record.offset >= base + start]
    lines = format_batches(
        data, base + start, is_framed=framing is Framing.FRAMES, partition=partition
    )
    assert lines == encode_records(wanted, framing, partition)


def test_lines_of_many_batches_are_read_back():
    """The client parses the lines that the kernel writes."""
    records = [Record(n, 17, b"k%d" % n, b"p\n%d" % n, ()) for n in range(1000)]
    data = b"".join(encode_batch([r], base_offset=r.offset) for r in records)
    text = format_batches(data, 500, is_framed=False)
    found = [parse_record(line, Framing.TEXT) for line in text.split(b"\n")[:-1]]
    assert [(line.seq, line.payload) for line in found] == [
        (n + 1, b"p\n%d" % n) for n in range(500, 1000)
    ]


def test_damaged_batch_is_refused():
    """A wrong checksum raises CorruptBatch and yields no line."""
    data = bytearray(encode_batch([Record(0, 17, None, b"x" * 50, ())]))
    data[-3] ^= 1
    with pytest.raises(CorruptBatch):
        format_batches(bytes(data), 0, is_framed=False)

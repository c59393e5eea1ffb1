"""Records and batches for tests: strategies, and decoded columns as plain records."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from cordwood.batch.columns import Columns
from cordwood.batch.header import seal
from cordwood.batch.records import encode_batch
from cordwood.model import Codec, Header, Record

INT64 = st.integers(-(2**63), 2**63 - 1)
small_bytes = st.one_of(st.none(), st.binary(max_size=40), st.just(b"x" * 300))
headers = st.lists(
    st.builds(Header, st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=12))), max_size=3
).map(tuple)
timestamps = st.one_of(st.integers(0, 2**42), INT64)


@st.composite
def record_lists(draw, *, min_size=1, max_size=12, base_offset=None):
    """Generate records as compaction may leave them: offsets with gaps, any nulls, any times."""
    count = draw(st.integers(min_size, max_size))
    offset = draw(st.integers(0, 2**40)) if base_offset is None else base_offset
    records = []
    for _ in range(count):
        offset += draw(st.one_of(st.just(1), st.integers(1, 2**20)))
        records.append(
            Record(offset, draw(timestamps), draw(small_bytes), draw(small_bytes), draw(headers))
        )
    return records


@st.composite
def batch_options(draw):
    """Generate every header option of ``encode_batch``."""
    options = {
        "codec": draw(st.sampled_from(Codec)),
        "leader_epoch": draw(st.integers(0, 2**31 - 1)),
        "is_transactional": draw(st.booleans()),
        "delete_horizon_ms": draw(st.one_of(st.none(), st.integers(0, 2**42))),
    }
    if options["is_transactional"] or draw(st.booleans()):
        options |= {
            "producer_id": draw(st.integers(0, 2**63 - 1)),
            "producer_epoch": draw(st.integers(0, 2**15 - 1)),
            "base_sequence": draw(st.integers(0, 2**31 - 1)),
        }
    return options


def records_of(columns: Columns) -> list[Record]:
    """Convert fully decoded columns to records."""
    found = []
    for row in range(len(columns)):
        first, end = (int(bound) for bound in columns.headers.rows[row : row + 2])
        found.append(
            Record(
                int(columns.offsets[row]),
                int(columns.timestamps_ms[row]),
                columns.keys[row],
                columns.values[row],
                tuple(
                    Header(
                        columns.headers.names[header].decode("utf-8", "surrogateescape"),
                        columns.headers.contents[header],
                    )
                    for header in range(first, end)
                ),
            )
        )
    return found


def sample_records(count: int, *, start: int = 0) -> list[Record]:
    """Return ordinary records with consecutive offsets."""
    return [
        Record(offset, 1_700_000_000_000 + offset, b"key-%d" % offset, b"value of %d" % offset * 5)
        for offset in range(start, start + count)
    ]


def batch_of(body: bytes, count: int = 1, last_offset_delta: int = 0) -> bytes:
    """Return a batch with a valid checksum around any body."""
    data = bytearray(encode_batch([], last_offset_delta=last_offset_delta) + body)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 57, count)
    seal(data, 0, len(data))
    return bytes(data)


# Batches with a valid checksum but impossible lengths, counts or deltas.
LIES = {
    "count above the bytes": batch_of(b"\0" * 10, count=2),
    "count far above the bytes": batch_of(b"\0" * 10, count=2**31 - 1),
    "negative count": batch_of(b"", count=-1),
    "bytes left over": batch_of(bytes.fromhex("0c 00 00 00 01 01 00 ff")),
    "bytes without records": batch_of(b"\0", count=0),
    "record length past the end": batch_of(bytes.fromhex("7e 00 00 00 01 01 00")),
    "negative record length": batch_of(bytes.fromhex("01 00 00 00 01 01 00")),
    "record length without end": batch_of(b"\xff" * 12),
    "key length past the record": batch_of(bytes.fromhex("0c 00 00 00 7e 01 00")),
    "key length of -2": batch_of(bytes.fromhex("0c 00 00 00 03 01 00")),
    "value length past the record": batch_of(bytes.fromhex("0c 00 00 00 01 7e 00")),
    "header count past the record": batch_of(bytes.fromhex("0c 00 00 00 01 01 7e")),
    "negative header count": batch_of(bytes.fromhex("0c 00 00 00 01 01 01")),
    "header without name": batch_of(bytes.fromhex("10 00 00 00 01 01 02 01 01")),
    "record longer than its fields": batch_of(bytes.fromhex("0e 00 00 00 01 01 00 00")),
    "offset delta past the batch": batch_of(bytes.fromhex("0c 00 00 02 01 01 00")),
    "negative offset delta": batch_of(bytes.fromhex("0c 00 00 01 01 01 00")),
    "offsets that do not rise": batch_of(bytes.fromhex("0c 00 00 00 01 01 00") * 2, 2, 1),
    "timestamp delta of eleven bytes": batch_of(
        bytes.fromhex("20 00" + "80" * 10 + "00" + "00 01 01 00")
    ),
    "number above 32 bits": batch_of(bytes.fromhex("14 00 00 80 80 80 80 7f 01 01 00"), 1, 5),
}

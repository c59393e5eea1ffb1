"""Records and batches for tests: strategies, and views of columns as plain records."""

from __future__ import annotations

from hypothesis import strategies as st

from cordwood.batch.columns import Columns
from cordwood.model import Codec, Header, Record, TimestampType

INT64 = st.integers(-(2**63), 2**63 - 1)
small_bytes = st.one_of(st.none(), st.binary(max_size=40), st.just(b"x" * 300))
headers = st.lists(
    st.builds(Header, st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=12))), max_size=3
).map(tuple)
timestamps = st.one_of(st.integers(0, 2**42), INT64)


@st.composite
def record_lists(draw, *, min_size=1, max_size=12, base_offset=None):
    """Records as compaction may leave them: rising offsets with gaps, any nulls, any times."""
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
    """Everything a header may say, for ``encode_batch``."""
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
    """Fully decoded columns as records, one by one."""
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
    """Ordinary records with contiguous offsets."""
    return [
        Record(offset, 1_700_000_000_000 + offset, b"key-%d" % offset, b"value of %d" % offset * 5)
        for offset in range(start, start + count)
    ]


__all__ = [
    "INT64",
    "Codec",
    "TimestampType",
    "batch_options",
    "headers",
    "record_lists",
    "records_of",
    "sample_records",
    "small_bytes",
    "timestamps",
]

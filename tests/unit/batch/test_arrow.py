"""Columns to and from Arrow: Spark's Kafka schema as output, binary or string arrays as input."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from cordwood.batch.arrow import (
    SPARK_COLUMNS,
    arrow_batch,
    arrow_batches,
    arrow_schema,
    columns_from_arrow,
    spans_from_arrow,
    wanted_columns,
)
from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.column_encoder import encode_columns
from cordwood.batch.records import decode_committed, encode_batch
from cordwood.model import Codec, Header, Record, TimestampType
from support.batches import sample_records

RECORDS = [
    Record(4, 1_700_000_000_000, b"k", b"v", (Header("a", b"1"), Header("b", None))),
    Record(5, 1_700_000_000_001, None, None),
    Record(8, 1_700_000_000_002, b"", b"", (Header("c", b""),)),
]


def test_rows_have_the_shape_of_sparks_kafka_source():
    """Names, types and values match Spark's Kafka source; null and empty stay distinct."""
    batch = arrow_batch(decode_columns(encode_batch(RECORDS)), "orders", 3)
    batch.validate(full=True)
    assert batch.schema == arrow_schema()
    assert batch.schema.names == list(SPARK_COLUMNS)
    when = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
    assert batch.to_pylist() == [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 3,
            "offset": record.offset,
            "timestamp": when + dt.timedelta(milliseconds=index),
            "timestampType": 0,
            "headers": [{"key": h.key, "value": h.value} for h in record.headers],
        }
        for index, record in enumerate(RECORDS)
    ]


@pytest.mark.parametrize("names", [["offset"], ["value", "key"], ["timestampType", "topic"], []])
def test_only_named_columns_are_made_in_their_order(names):
    """Only the named columns are returned, in that order."""
    data = encode_batch(RECORDS, timestamp_type=TimestampType.APPEND)
    columns = decode_columns(data, wanted=wanted_columns(names))
    assert arrow_batch(columns, "t", 0, names).schema.names == names


def test_no_rows_are_an_empty_batch():
    """An empty input gives an empty batch with the same schema."""
    batch = arrow_batch(decode_columns(b""), "t", 0)
    assert (batch.num_rows, batch.schema) == (0, arrow_schema())


def test_absurd_timestamps_do_not_wrap():
    """Timestamps that do not fit in microseconds are clamped and do not wrap around."""
    records = [Record(0, -(2**63), None, None), Record(1, 2**63 - 1, None, None)]
    batch = arrow_batch(decode_columns(encode_batch(records)), "t", 0, ["timestamp"])
    first, last = batch.column(0).cast(pa.int64()).to_pylist()
    assert first < -(9 * 10**18)
    assert last > 9 * 10**18


def test_batches_are_bounded_by_rows_and_bytes():
    """Batches are limited by rows and bytes, lose no rows, and hold a large record alone."""
    records = [Record(o, 0, None, b"v" * (10 if o != 5 else 500)) for o in range(12)]
    columns = decode_columns(encode_batch(records))
    batches = list(arrow_batches(columns, "t", 0, ["offset"], rows_max=4, bytes_max=100))
    assert [batch.num_rows for batch in batches] == [4, 1, 1, 4, 2]
    assert pa.Table.from_batches(batches).column("offset").to_pylist() == list(range(12))
    few = list(arrow_batches(columns, "t", 0, ["offset"], bytes_max=100))
    assert [batch.num_rows for batch in few] == [5, 1, 6], "by bytes alone, too"


def test_arrow_rows_become_records_again():
    """Records converted to Arrow, back and encoded are unchanged."""
    batch = arrow_batch(decode_columns(encode_batch(RECORDS, codec=Codec.ZSTD)), "t", 0)
    columns = columns_from_arrow(
        offsets=np.array(batch.column("offset")),
        timestamps_ms=np.array([record.timestamp_ms for record in RECORDS], np.int64),
        keys=batch.column("key"),
        values=batch.column("value"),
        headers=batch.column("headers"),
    )
    assert decode_committed(encode_columns(columns)) == RECORDS


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_every_kind_of_bytes_is_taken_as_it_lies(kind):
    """All binary and string types are accepted, also slices of arrays."""
    array = pa.array(["zero", "one", None, "", "four"], kind)
    expected = [b"zero", b"one", None, b"", b"four"]
    for start in range(5):
        spans = spans_from_arrow(array.slice(start))
        assert [spans[row] for row in range(len(spans))] == expected[start:]
    assert len(spans_from_arrow(array.slice(5))) == 0


def test_a_column_of_nulls_has_no_buffer_to_point_into():
    """A column of Arrow's null type, such as a literal NULL in SQL, gives nulls."""
    assert [spans_from_arrow(pa.nulls(2))[row] for row in range(2)] == [None, None]


def test_a_null_list_of_headers_is_no_headers():
    """A null list of headers equals an empty list, also in slices of list arrays."""
    kind = arrow_schema().field("headers").type
    array = pa.array([[("a", b"1")], None, [], [("b", None), ("c", b"2")]], kind)
    columns = columns_from_arrow(
        offsets=np.arange(3, dtype=np.int64),
        timestamps_ms=np.zeros(3, np.int64),
        headers=array.slice(1),
    )
    assert [record.headers for record in decode_committed(encode_columns(columns))] == [
        (),
        (),
        (Header("b", None), Header("c", b"2")),
    ]


def test_columns_that_were_not_wanted_cannot_be_shown():
    """Showing a column that was not decoded fails an assertion that names the column."""
    columns = decode_columns(encode_batch(sample_records(1)), wanted=frozenset())
    with pytest.raises(AssertionError, match="key was not decoded"):
        arrow_batch(columns, "t", 0, ["key"])

"""Two independent implementations read our batches, and we read theirs.

The implementations are aiokafka's compiled record classes and kafka-python's pure Python ones. The
tests cover all five codecs, headers, and null and empty keys and values.
"""

import warnings

import aiokafka.record.default_records as aiokafka_records
import pytest

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.column_encoder import encode_columns
from cordwood.batch.header import check_batches
from cordwood.batch.lines import LineProducer, encode_lines_plain
from cordwood.batch.records import decode_batch, encode_batch
from cordwood.model import Codec, Header, Record
from support.batches import records_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised by the library itself on import
    import kafka.record.default_records as kafka_python_records
    from kafka import codec as kafka_python_codec

RECORDS = [
    Record(0, 1_700_000_000_000, b"k", b"v" * 500),
    Record(1, 1_700_000_000_005, None, b"no key"),
    Record(2, 1_700_000_000_003, b"gone", None),
    Record(3, 1_700_000_000_009, b"", b""),
    Record(
        4, 1_700_000_000_009, b"h", b"x", (Header("a", b"1"), Header("b", b""), Header("c", None))
    ),
]


def can(library, codec: Codec) -> bool:
    """Return whether the library can use the codec here; kafka-python needs extra packages."""
    if library is aiokafka_records or codec in {Codec.NONE, Codec.GZIP}:
        return True
    return bool(getattr(kafka_python_codec, f"has_{codec.name.lower()}")())


CASES = [
    pytest.param(library, codec, id=f"{name}-{codec.name.lower()}")
    for name, library in [("aiokafka", aiokafka_records), ("kafka-python", kafka_python_records)]
    for codec in Codec
    if can(library, codec)
]


def test_all_five_codecs_are_among_the_cases():
    """At least one independent implementation supports each codec."""
    assert {case.values[1] for case in CASES} == set(Codec)
    assert {case.values[0] for case in CASES} == {aiokafka_records, kafka_python_records}


def built(library, codec: Codec) -> bytes:
    """Return a batch encoded by the other implementation."""
    builder = library.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec.value,
        is_transactional=0,
        producer_id=77,
        producer_epoch=3,
        base_sequence=9,
        batch_size=1 << 20,
    )
    for record in RECORDS:
        headers = [(header.key, header.value) for header in record.headers]
        builder.append(record.offset, record.timestamp_ms, record.key, record.value, headers)
    return bytes(builder.build())


def read(library, data: bytes) -> list[Record]:
    """Decode our batch with the other implementation."""
    batch = library.DefaultRecordBatch(data)
    assert batch.validate_crc()
    return [
        Record(
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            tuple(Header(key, value) for key, value in record.headers),
        )
        for record in batch
    ]


@pytest.mark.parametrize(("library", "codec"), CASES)
def test_we_read_theirs(library, codec):
    """Their batches are accepted, and both of our decoders return the same records."""
    data = built(library, codec)
    (header,) = check_batches(data, 1 << 20)
    assert (header.codec, header.producer_id, header.last_sequence) == (codec, 77, 13)
    assert decode_batch(data) == RECORDS
    assert records_of(decode_columns(data)) == RECORDS


@pytest.mark.parametrize(("library", "codec"), CASES)
def test_they_read_ours(library, codec):
    """They decode batches of our plain encoder and of our kernel."""
    data = encode_batch(RECORDS, codec=codec, producer_id=5, producer_epoch=0, base_sequence=0)
    assert read(library, data) == RECORDS
    columns = decode_columns(data)
    assert read(library, bytes(encode_columns(columns, columns.batches))) == RECORDS


@pytest.mark.parametrize("library", [aiokafka_records, kafka_python_records])
def test_they_read_compacted_batches(library):
    """They decode compacted batches with gaps and a delete horizon to the same records."""
    kept = [RECORDS[1], RECORDS[3]]
    data = encode_batch(
        kept, base_offset=0, last_offset_delta=4, delete_horizon_ms=1_800_000_000_000
    )
    assert read(library, data) == kept


@pytest.mark.parametrize("library", [aiokafka_records, kafka_python_records])
def test_they_read_lines(library):
    """They decode batches that were encoded from lines."""
    lines = encode_lines_plain(
        b"test.probe|1699|1|one\ntest.probe|1700|2|a|b\n", 55, producer=LineProducer(4, 0, None)
    )
    assert read(library, bytes(lines.data)) == [
        Record(0, 55, b"test.probe", b"one", (Header("ts", b"1699"), Header("n", b"1"))),
        Record(1, 55, b"test.probe", b"a|b", (Header("ts", b"1700"), Header("n", b"2"))),
    ]

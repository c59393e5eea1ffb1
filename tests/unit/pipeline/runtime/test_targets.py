"""Staged batches fit ``max.message.bytes`` of their topic, for every codec."""

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.header import check_batches
from cordwood.batch.records import decode_batch, encode_batch
from cordwood.errors import BatchTooLarge
from cordwood.model import Codec, Header, Record
from cordwood.pipeline.runtime.broker_api import TargetTopic
from cordwood.pipeline.runtime.targets import Targets, _halved, encode_fitting


def columns_of(records):
    return decode_columns(encode_batch(records))


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 90)), min_size=1, max_size=60),
    st.sampled_from(list(Codec)),
    st.integers(700, 2000),
)
def test_every_batch_fits_and_every_record_is_there(rows, codec, bytes_max):
    """Every batch fits the limit and no record is lost, even if the data does not compress."""
    records = [
        Record(i, i, b"k", os.urandom(size), (Header("h", os.urandom(extra)),))
        for i, (size, extra) in enumerate(rows)
    ]
    data = encode_fitting(columns_of(records), codec, "t", bytes_max)
    found, position = [], 0
    for header in check_batches(data, bytes_max):
        found += decode_batch(data, position)
        position += header.size_bytes
    assert found == records


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_batches_fit_to_the_byte_whatever_the_limit_is(codec):
    """Batches fit any limit from the size of the largest record to the size of all records."""
    noise = random.Random(3)
    records = [Record(i, i, b"k", noise.randbytes(60 + 30 * i)) for i in range(5)]
    alone = max(len(encode_batch([record], codec=codec)) for record in records)
    together = len(encode_batch(records, codec=codec))
    for bytes_max in range(alone, together + 1):
        data = encode_fitting(columns_of(records), codec, "t", bytes_max)
        assert sum(header.count for header in check_batches(data, bytes_max)) == 5
        pieces = _halved(columns_of(records), codec, "t", bytes_max)
        assert max(map(len, pieces)) <= bytes_max


def test_a_record_that_fits_no_batch_is_named_with_its_size_topic_and_setting():
    """A record that fits in no batch is refused with its size, its topic and the setting."""
    records = [Record(0, 0, b"k", b"small"), Record(1, 0, b"k", b"x" * 1000)]
    with pytest.raises(
        BatchTooLarge, match=r"takes 107\d bytes .* max.message.bytes=1000 of topic t"
    ):
        encode_fitting(columns_of(records), Codec.NONE, "t", 1000)


def test_a_record_that_fits_once_compressed_is_taken():
    """The limit applies to the compressed batch."""
    records = [Record(0, 0, b"k", b"x" * 100_000)]
    assert len(encode_fitting(columns_of(records), Codec.ZSTD, "t", 1000)) < 1000


def test_a_dead_letter_is_never_too_large():
    """The dead letter topic takes batches up to 64 MiB, whatever its setting is."""
    known = {"dead": TargetTopic("id", 1, 10), "t": TargetTopic("id", 1, 10)}
    targets = Targets(known, dead_letter_topic="dead")
    assert targets.get("t").batch_bytes_max == 10
    assert targets.get("dead").batch_bytes_max == 64 << 20

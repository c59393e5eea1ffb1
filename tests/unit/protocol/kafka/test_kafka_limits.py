"""Limits on the elements, strings and tags of one message, checked before it is decoded."""

from __future__ import annotations

import pytest

from cordwood.errors import BadMessage, TooManyElements
from cordwood.protocol.kafka.codec import decode, encode
from cordwood.protocol.kafka.frames import parse_request
from cordwood.protocol.kafka.messages.commits import OffsetFetchRequest
from cordwood.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from cordwood.protocol.kafka.messages.partitions import TopicPartitions
from cordwood.protocol.kafka.primitives import STRING_BYTES_MAX, TAGS_MAX, encode_uvarint


def fetch_of(topics: int, partitions: int) -> bytes:
    parts = [FetchPartition(n, 0, partition_max_bytes=1) for n in range(partitions)]
    request = FetchRequest(
        -1, 0, 1, 1, 0, topics=[FetchTopic(f"t{n}", partitions=parts) for n in range(topics)]
    )
    return b"".join(encode(request, 11))


@pytest.mark.parametrize(("topics", "partitions"), [(1, 99), (10, 9), (100, 0)])
def test_elements_are_counted_over_all_arrays(topics, partitions):
    """The limit counts the elements of all arrays together, topics and partitions."""
    data = fetch_of(topics, partitions)
    elements = topics + topics * partitions
    assert len(decode(FetchRequest, 11, data, elements).topics) == topics
    with pytest.raises(TooManyElements, match=r"request\.elements\.max"):
        decode(FetchRequest, 11, data, elements - 1)


def test_numbers_count_as_elements():
    """Elements of an integer array count, too."""
    data = b"".join(encode(OffsetFetchRequest("g", [TopicPartitions("t", list(range(50)))]), 5))
    assert decode(OffsetFetchRequest, 5, data, 51)
    with pytest.raises(TooManyElements):
        decode(OffsetFetchRequest, 5, data, 50)


def test_a_crowd_is_refused_before_it_is_read():
    """An array that is too long is refused by its length, before its elements are decoded."""
    names = b"\xff" * 100_000  # not valid strings
    body = (100_000 // 2).to_bytes(4) + names
    with pytest.raises(TooManyElements):
        decode(MetadataRequest, 1, body, 1_000)


def test_a_string_is_no_longer_than_kafkas():
    """A string longer than Kafka's maximum is refused."""
    for size, is_fine in [(STRING_BYTES_MAX, True), (STRING_BYTES_MAX + 1, False)]:
        request = MetadataRequest([MetadataRequestTopic(name="n" * size)])
        data = b"".join(encode(request, 9))
        if is_fine:
            assert len(decode(MetadataRequest, 9, data).topics[0].name) == size
        else:
            with pytest.raises(BadMessage, match="does not fit"):
                decode(MetadataRequest, 9, data)


@pytest.mark.parametrize("count", [TAGS_MAX, TAGS_MAX + 1])
def test_tags_nobody_knows_are_few(count):
    """The number of unknown tags is limited, in the request header and in the body."""
    tags = encode_uvarint(count) + b"\x7f\x00" * count
    header = (3).to_bytes(2) + (9).to_bytes(2) + bytes(4) + b"\xff\xff"
    body = b"".join(encode(MetadataRequest([]), 9))
    assert body.endswith(b"\0")
    if count <= TAGS_MAX:
        request = parse_request(header + tags + body[:-1] + tags)
        assert decode(MetadataRequest, 9, request.body).topics == ()
        return
    with pytest.raises(BadMessage):
        parse_request(header + tags + body)
    with pytest.raises(BadMessage):
        decode(MetadataRequest, 9, body[:-1] + tags)

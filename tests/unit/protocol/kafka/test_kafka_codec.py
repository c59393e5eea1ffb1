"""The Kafka codec, compared with kio for every message and version."""

from __future__ import annotations

import random
from itertools import pairwise
from uuid import UUID

import pytest
from kio.schema.index import schema_name_map

from cordwood.errors import BadMessage
from cordwood.protocol.kafka.codec import decode, encode, explain
from cordwood.protocol.kafka.encoding import COPY_BYTES_MAX
from cordwood.protocol.kafka.layout import fields_of
from cordwood.protocol.kafka.messages.fetch import FetchedPartition, FetchedTopic, FetchResponse
from cordwood.protocol.kafka.messages.groups import HeartbeatRequest, JoinGroupResponse
from cordwood.protocol.kafka.messages.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from cordwood.protocol.kafka.messages.partitions import CurrentLeader
from cordwood.protocol.kafka.messages.produce import (
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from cordwood.protocol.kafka.primitives import encode_uvarint, parse_uvarint
from cordwood.protocol.kafka.schema import APIS, api_table, api_versions
from support.kio_oracle import kio_bytes, kio_class, kio_reads, kio_versions, random_entity

DIRECTIONS = ("request", "response")
SERVED = [
    pytest.param(api, version, direction, id=f"{api.name}-v{version}-{direction}")
    for api in APIS
    for version in kio_versions(api)
    for direction in DIRECTIONS
]
ROUNDS = 12


@pytest.mark.parametrize(("api", "version", "direction"), SERVED)
def test_bytes_of_kio_come_back_byte_for_byte(api, version, direction):
    """Messages that kio encoded are decoded and encoded again to the same bytes."""
    ours = api.request if direction == "request" else api.response
    theirs = kio_class(api.key, version, direction)
    assert theirs.__flexible__ == api.is_flexible(version)
    rng = random.Random(f"{api.name} {version} {direction}")
    for _ in range(ROUNDS):
        data = kio_bytes(random_entity(theirs, rng))
        message = decode(ours, version, data)
        assert b"".join(encode(message, version)) == data
        assert kio_bytes(kio_reads(theirs, data)) == data


@pytest.mark.parametrize(("api", "version", "direction"), SERVED)
def test_cut_short_is_refused_at_every_byte(api, version, direction):
    """A truncated message raises ``BadMessage``, wherever it is cut."""
    ours = api.request if direction == "request" else api.response
    rng = random.Random(f"cut {api.name} {version} {direction}")
    data = kio_bytes(random_entity(kio_class(api.key, version, direction), rng))
    for end in {*range(min(len(data), 40)), *rng.sample(range(len(data)), min(len(data), 40))}:
        with pytest.raises(BadMessage):
            decode(ours, version, data[:end])


def test_table_is_what_kafka_calls_it():
    """API names and keys agree with kio, keys ascend, and versions lie within Kafka's."""
    assert all(a.key < b.key for a, b in pairwise(APIS))
    for api in APIS:
        versions = kio_versions(api)
        assert set(versions) <= set(schema_name_map[_snake(api.name)])
        theirs = kio_class(api.key, versions[-1], "request")
        assert theirs.__name__ == api.request.__name__ == f"{api.name}Request"


def _snake(name):
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)[1:]


def test_produce_is_advertised_from_zero_and_served_from_three():
    """Produce is advertised from version 0, or old librdkafka would stop compressing.

    No other API advertises versions that it does not serve.
    """
    assert ("Produce", 0, 0, 13) in api_table()
    assert [api.name for api in APIS if api.advertised_version != api.first_version] == ["Produce"]


def test_api_versions_tell_the_table_and_no_features():
    """ApiVersions returns the API table and no features."""
    message = api_versions()
    assert [tuple(row) for row in message.api_keys] == [row[1:] for row in api_table()]
    assert message.finalized_features == ()
    assert message.supported_features == ()


def test_api_versions_5_adds_the_cluster_and_the_node_that_a_client_wants():
    """As in KIP-1242: a compact nullable string and an int32 after the software version."""
    wanted = ApiVersionsRequest("lib", "1", "abc", 7)
    assert b"".join(encode(wanted, 5)) == b"\x04lib\x021\x04abc\0\0\0\x07\0"
    unknown = ApiVersionsRequest("lib", "1")
    assert decode(ApiVersionsRequest, 5, b"\x04lib\x021\0\xff\xff\xff\xff\0") == unknown


def test_fields_a_version_lacks_decode_to_their_defaults():
    """A field that a version lacks is not encoded, and is decoded as its default."""
    sent = ProduceResponse(
        [ProducedTopic("t", partitions=[ProducedPartition(0, 0, 7, log_start_offset=5)])]
    )
    (topic,) = decode(ProduceResponse, 3, b"".join(encode(sent, 3))).topics
    assert topic.partitions[0].log_start_offset == -1
    (topic,) = decode(ProduceResponse, 5, b"".join(encode(sent, 5))).topics
    assert topic.partitions[0].log_start_offset == 5


def test_unknown_tags_are_passed_over():
    """Unknown tagged fields are ignored, whatever their size and number are."""
    plain = b"".join(encode(ApiVersionsRequest("librdkafka", "2.16"), 3))
    for extra in (b"", b"x", b"y" * 300):
        field = encode_uvarint(1000) + encode_uvarint(len(extra)) + extra
        data = plain[:-1] + encode_uvarint(2) + field + b"\x05\x00"
        assert decode(ApiVersionsRequest, 3, data) == ApiVersionsRequest("librdkafka", "2.16")


def test_unknown_tags_inside_a_struct_do_not_shift_what_follows():
    """Unknown tagged fields inside a struct do not shift the fields after it."""
    first, second = ProduceTopic("first", partitions=()), ProduceTopic("second", partitions=())
    body = b"".join(encode(ProduceRequest(None, -1, 7, (first, second)), 9))
    plain = b"\x06first\x01\x00"
    assert plain in body
    odd = body.replace(plain, plain[:-1] + b"\x02\x00\x03abc\x63\x00")
    assert decode(ProduceRequest, 9, odd).topics == (first, second)


def test_unknown_tags_stand_beside_known_ones():
    """A known tagged field is decoded next to an unknown one."""
    partition = ProducedPartition(0, 6, -1, current_leader=CurrentLeader(3, 9))
    body = b"".join(encode(ProduceResponse([ProducedTopic("t", partitions=[partition])]), 10))
    known = b"\x01\x00\x09" + (3).to_bytes(4) + (9).to_bytes(4) + b"\x00"
    assert known in body
    odd = body.replace(known, b"\x02" + known[1:] + b"\x63\x02ab")
    (topic,) = decode(ProduceResponse, 10, odd).topics
    assert topic.partitions == (partition,)


def test_a_tag_whose_size_lies_is_refused():
    """A tagged field with a wrong size is refused."""
    partition = ProducedPartition(0, 6, -1, current_leader=CurrentLeader(3, 9))
    body = b"".join(encode(ProduceResponse([ProducedTopic("t", partitions=[partition])]), 10))
    with pytest.raises(BadMessage, match="does not fit"):
        decode(ProduceResponse, 10, body.replace(b"\x01\x00\x09", b"\x01\x00\x08"))


@pytest.mark.parametrize("version", [7, 9])
def test_array_lengths_are_bounded_by_the_bytes_left(version):
    """An array length beyond the remaining bytes is refused before anything is allocated."""
    data = b"".join(encode(ProduceRequest(None, -1, 1000, []), version))
    assert data.endswith(b"\0\0\0\0" if version == 7 else b"\x01\0")
    lie = (2**31 - 1).to_bytes(4) if version == 7 else encode_uvarint(2**31)
    with pytest.raises(BadMessage, match="2147483647"):
        decode(ProduceRequest, version, data[: -4 if version == 7 else -2] + lie + b"\0")


@pytest.mark.parametrize("length", [b"\xff\xff", b"\xff\xfe", b"\x80\x00"])
def test_negative_lengths_are_refused_where_null_is_not_allowed(length):
    """A negative length is refused where null is not allowed."""
    data = b"".join(encode(HeartbeatRequest("g", 1, "m"), 0))
    with pytest.raises(BadMessage):
        decode(HeartbeatRequest, 0, length + data[2:])


def test_no_negative_length_but_minus_one_means_null():
    """Only the length -1 means null. Other negative lengths are refused."""
    data = b"".join(encode(ProduceRequest(None, -1, 1000, ()), 3))
    assert data.startswith(b"\xff\xff")
    assert decode(ProduceRequest, 3, data).transactional_id is None
    with pytest.raises(BadMessage, match="-2"):
        decode(ProduceRequest, 3, b"\xff\xfe" + data[2:])


def test_endless_varints_are_refused():
    """A varint of more than five bytes is refused."""
    with pytest.raises(BadMessage, match="varint"):
        decode(ApiVersionsRequest, 3, b"\xff" * 20)


def test_text_that_is_not_utf8_is_refused():
    """A string that is not UTF-8 is refused."""
    data = b"".join(encode(HeartbeatRequest("grp", 1, "m"), 0))
    with pytest.raises(BadMessage):
        decode(HeartbeatRequest, 0, data.replace(b"grp", b"g\xff\xfe"))


def test_bytes_after_the_message_are_passed_over():
    """Bytes after the end of a message are ignored, as in Kafka's broker."""
    data = b"".join(encode(HeartbeatRequest("g", 1, "m"), 0))
    assert decode(HeartbeatRequest, 0, data + b"\0\0") == HeartbeatRequest("g", 1, "m")


@pytest.mark.parametrize(("version", "name"), [(5, ""), (7, None)])
def test_null_is_empty_where_a_version_has_no_null(version, name):
    """Null is encoded as empty text in versions where the field is not nullable."""
    answer = JoinGroupResponse(error_code=79, protocol_name=None)
    assert decode(JoinGroupResponse, version, b"".join(encode(answer, version)))[4] == name


@pytest.mark.parametrize(("topics", "version", "seen"), [(None, 1, None), ((), 1, ()), ((), 0, ())])
def test_metadata_tells_all_topics_from_none(topics, version, seen):
    """A null list asks for all topics, and an empty list for none (from version 1)."""
    data = b"".join(encode(MetadataRequest(topics), version))
    assert decode(MetadataRequest, version, data).topics == seen


def test_topic_ids_are_uuids_in_requests_and_replies():
    """A topic id is 16 bytes on the wire and a UUID in the message."""
    topic_id = UUID("11223344-5566-7788-99aa-bbccddeeff00")
    request = MetadataRequest((MetadataRequestTopic(topic_id, None),))
    assert decode(MetadataRequest, 12, b"".join(encode(request, 12))) == request
    answer = MetadataResponse(topics=(MetadataTopic(0, "t", topic_id),))
    assert topic_id.bytes in b"".join(encode(answer, 12))


@pytest.mark.parametrize("version", [7, 11])
def test_produced_records_are_views_of_the_frame(version):
    """Decoded records are views of the frame: nothing is copied, and writes change the frame."""
    sent = ProduceRequest(
        None, -1, 1000, [ProduceTopic("t", partitions=[ProducePartition(0, b"batch" * 100)])]
    )
    frame = bytearray(b"".join(encode(sent, version)))
    records = decode(ProduceRequest, version, frame).topics[0].partitions[0].records
    assert records is not None
    assert records.obj is frame
    records[:5] = b"BATCH"
    assert b"BATCHbatch" in frame


@pytest.mark.parametrize("version", [11, 12])
def test_fetched_records_are_sent_as_they_are(version):
    """Large records are separate buffers in the response. Small ones are copied into it."""
    large, small = bytes(COPY_BYTES_MAX + 1), bytes(COPY_BYTES_MAX)
    partitions = [
        FetchedPartition(index, 0, 9, records=records)
        for index, records in enumerate((large, small, None, memoryview(large)))
    ]
    chunks = encode(FetchResponse(topics=[FetchedTopic("t", partitions=partitions)]), version)
    assert sum(chunk is large for chunk in chunks) == 1
    assert not any(chunk is small for chunk in chunks)
    (topic,) = decode(FetchResponse, version, b"".join(chunks)).topics
    assert [part.records for part in topic.partitions] == [large, small, None, large]


def test_every_message_states_its_fields_in_full():
    """Every message declares all of its fields, and tags ascend."""
    for api in APIS:
        for message in (api.request, api.response):
            fields = fields_of(message)
            tags = [field.tag for field in fields if field.tag is not None]
            assert tags == sorted(tags)
            assert [field.name for field in fields] == list(message._fields)


def test_explain_shows_the_source_that_runs():
    """``explain`` returns the source of the generated functions."""
    text = explain(0, 9)
    assert text.count("def decode") == text.count("def encode") == 2
    assert "records" in text


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16383, 16384, 2**31, 2**32, 2**35 - 1])
def test_varints_round_trip(value):
    """A varint has seven bits per byte, least significant first, and decodes to the same value."""
    data = encode_uvarint(value)
    assert parse_uvarint(memoryview(b"??" + data + b"!"), 2) == (value, 2 + len(data))

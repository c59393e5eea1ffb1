"""How a Kafka connection splits bytes into frames and parses their headers."""

from __future__ import annotations

import io
import random
import struct

import pytest
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2

from cordwood.errors import BadFrame, BadMessage
from cordwood.protocol.kafka.codec import decode
from cordwood.protocol.kafka.connection import (
    INBOX_BYTES,
    LARGE_BYTES_FIRST,
    LARGE_GROWTH,
    NEED_DATA,
    WHOLE_BYTES_MAX,
    KafkaConnection,
)
from cordwood.protocol.kafka.frames import (
    CONTROL_BYTES_MAX,
    Request,
    Unsupported,
    decode_request,
    encode_request,
    encode_response,
    parse_request,
    parse_response,
    unsupported_version_response,
)
from cordwood.protocol.kafka.messages.fetch import FetchedPartition, FetchedTopic, FetchResponse
from cordwood.protocol.kafka.messages.groups import HeartbeatRequest, HeartbeatResponse
from cordwood.protocol.kafka.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from cordwood.protocol.kafka.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.kafka.schema import APIS, api_versions
from support.kio_oracle import kio_bytes, kio_class, kio_reads, kio_versions

FRAME_MAX = 100 * 1024 * 1024


def produce_bytes(records, *, version=9, correlation_id=1):
    message = ProduceRequest(
        None, -1, 1000, [ProduceTopic("events", partitions=[ProducePartition(0, records)])]
    )
    return b"".join(encode_request(message, version, correlation_id, "client"))


def test_a_request_arrives_whole_with_its_header():
    """A request has the header and the body that the client encoded."""
    connection = KafkaConnection(FRAME_MAX)
    assert connection.next_request() is NEED_DATA
    connection.receive(b"".join(encode_request(HeartbeatRequest("g", 3, "m"), 4, 77, "me")))
    request = connection.next_request()
    assert request[:4] == (12, 4, 77, "me")
    assert decode_request(request) == HeartbeatRequest("g", 3, "m")
    assert connection.next_request() is NEED_DATA


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_request_headers_agree_with_kio(api):
    """Flexible API versions have request header version 2, the others version 1."""
    for version in kio_versions(api):
        header = kio_class(api.key, version, "request").__header_schema__
        assert header is (KioHeader2 if api.is_flexible(version) else KioHeader1)
        for client_id in ("rdkafka", "", None):
            message = header(
                request_api_key=api.key,
                request_api_version=version,
                correlation_id=9,
                client_id=client_id,
            )
            request = parse_request(kio_bytes(message) + b"body")
            assert request == Request(api.key, version, 9, client_id, memoryview(b"body"))


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_response_headers_agree_with_kio(api):
    """Flexible API versions have response header version 1, except ApiVersions, which has 0."""
    for version in kio_versions(api):
        theirs = kio_class(api.key, version, "response")
        tags = len(kio_bytes(theirs.__header_schema__(correlation_id=5))) - 4
        message = api_versions() if api.name == "ApiVersions" else _empty(api.response)
        request = Request(api.key, version, 5, None, memoryview(b""))
        data = b"".join(encode_response(request, message))
        assert int.from_bytes(data[:4]) == len(data) - 4
        kio_reads(theirs, data[8 + tags :])
        assert data[8 : 8 + tags] == bytes(tags)
        assert parse_response(api.key, version, data[4:])[0] == 5


def _empty(message_type):
    """Return a response with default fields, and empty lists where there is no default."""
    missing = len(message_type._fields) - len(message_type._field_defaults)
    return message_type(*[()] * missing)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 9, FRAME_MAX + 1, 2**31 - 1])
def test_lengths_no_request_can_have_are_refused(length):
    """An invalid frame length raises ``BadFrame`` on each call and names the setting."""
    connection = KafkaConnection(FRAME_MAX)
    connection.receive(length.to_bytes(4, signed=True))
    for _ in range(2):
        with pytest.raises(BadFrame, match=r"socket\.request\.max\.bytes"):
            connection.next_request()
    connection.receive(produce_bytes(b"too late"))
    connection.receive(b"GET / HTTP/1.1\r\n" * 5000)
    with pytest.raises(BadFrame):
        connection.next_request()


def test_requests_before_a_broken_length_are_still_served():
    """Requests before an invalid frame length are still returned."""
    connection = KafkaConnection(FRAME_MAX)
    connection.receive(produce_bytes(b"one") + produce_bytes(b"two") + b"\xff" * 8)
    assert [connection.next_request().correlation_id for _ in range(2)] == [1, 1]
    with pytest.raises(BadFrame):
        connection.next_request()


@pytest.mark.parametrize(
    "size", [INBOX_BYTES - 100, INBOX_BYTES, INBOX_BYTES + 1, LARGE_BYTES_FIRST, 3_000_000]
)
def test_large_frames_land_in_a_buffer_of_their_own(size):
    """A large frame is received into its own buffer, and its records are views of that buffer."""
    records = bytes(range(256)) * (size // 256) + bytes(size % 256)
    data = memoryview(produce_bytes(records) + produce_bytes(b"next", correlation_id=2))
    connection = KafkaConnection(FRAME_MAX)
    offered = []
    while data:
        directory = connection.get_buffer(65536)
        count = min(len(directory), len(data), 70_000)
        directory[:count] = data[:count]
        connection.buffer_updated(count)
        offered.append(directory.obj)
        data = data[count:]
    request = connection.next_request()
    got = decode(ProduceRequest, 9, request.body).topics[0].partitions[0].records
    assert got == records
    if size > INBOX_BYTES:
        assert any(got.obj is memory for memory in offered)
        assert len(memoryview(got.obj)) < size + 100
    assert connection.next_request().correlation_id == 2
    assert connection.next_request() is NEED_DATA


@pytest.mark.parametrize("packet", [1, 7, 1000, INBOX_BYTES, 10 * INBOX_BYTES])
def test_small_requests_across_the_end_of_the_inbox_are_whole(packet):
    """Small requests that cross the end of the receive buffer are complete."""
    sent = [bytes([n]) * (3000 + n) for n in range(20)]
    data = b"".join(produce_bytes(records) for records in sent)
    connection = KafkaConnection(FRAME_MAX)
    got = []
    for position in range(0, len(data), packet):
        connection.receive(data[position : position + packet])
        while (request := connection.next_request()) is not NEED_DATA:
            got.append(decode(ProduceRequest, 9, request.body).topics[0].partitions[0].records)
    assert got == sent


def test_a_request_keeps_its_bytes_while_others_arrive():
    """A request keeps its bytes when later requests reuse the receive buffer."""
    connection = KafkaConnection(FRAME_MAX)
    connection.receive(produce_bytes(b"A" * 5000))
    first = connection.next_request()
    for _ in range(20):
        connection.receive(produce_bytes(b"B" * 5000))
        connection.next_request()
    assert decode(ProduceRequest, 9, first.body).topics[0].partitions[0].records == b"A" * 5000


def test_an_announced_giant_costs_little_until_it_comes():
    """Memory for a large frame grows with the bytes received, by at most a factor of four."""
    connection = KafkaConnection(FRAME_MAX)
    connection.receive(FRAME_MAX.to_bytes(4) + bytes(10))
    assert len(connection.get_buffer()) < LARGE_BYTES_FIRST
    sent = 10
    while sent < 2 * LARGE_BYTES_FIRST * LARGE_GROWTH:
        connection.receive(bytes(50_000))
        sent += 50_000
        assert len(connection.get_buffer()) <= max(LARGE_BYTES_FIRST, sent * LARGE_GROWTH)


def test_memory_is_reserved_before_it_is_allocated():
    """Memory is reserved before it is allocated, only for frames that exceed the receive buffer."""
    asked = []
    connection = KafkaConnection(FRAME_MAX, lambda size: not asked.append(size))
    connection.receive(produce_bytes(bytes(1_000)))
    assert connection.next_request().api_key == 0
    assert asked == []
    for size in (20_000, 400_000, 3_000_000):
        asked.clear()
        connection.receive(produce_bytes(bytes(size)))
        assert connection.next_request().api_key == 0
        assert sum(asked) == connection.frame_bytes
        assert asked[0] <= WHOLE_BYTES_MAX


@pytest.mark.parametrize("refused", range(4))
def test_a_frame_whose_memory_was_refused_continues_where_it_stopped(refused):
    """A frame whose reservation is refused waits and then continues without losing bytes."""
    verdicts = iter([True] * refused + [False] + [True] * 10)
    connection = KafkaConnection(FRAME_MAX, lambda _: next(verdicts))
    body = random.Random(refused).randbytes(5_000_000)
    rest = memoryview(produce_bytes(body) + produce_bytes(b"next"))
    while rest:
        was_waiting = connection.is_waiting
        directory = connection.get_buffer()
        count = min(len(directory), len(rest), 100 if was_waiting else 60_000)
        directory[:count] = rest[:count]
        connection.buffer_updated(count)
        rest = rest[count:]
        if was_waiting:
            connection.resume()
    first, second = connection.next_request(), connection.next_request()
    assert decode(ProduceRequest, 9, first.body).topics[0].partitions[0].records == body
    assert decode(ProduceRequest, 9, second.body).topics[0].partitions[0].records == b"next"


def test_a_request_without_records_is_refused_by_its_announcement():
    """An oversized request without records is refused as soon as its API key is known."""
    connection = KafkaConnection(FRAME_MAX)
    announced = struct.pack(">ihh", CONTROL_BYTES_MAX + 1, 3, 9)
    connection.receive(announced[:5])
    assert connection.next_request() is NEED_DATA
    connection.receive(announced[5:])
    with pytest.raises(BadMessage, match="Metadata is limited"):
        connection.next_request()


def test_only_produce_may_be_enormous():
    """Only Produce requests may exceed ``CONTROL_BYTES_MAX``."""
    connection = KafkaConnection(FRAME_MAX)
    connection.receive(produce_bytes(bytes(CONTROL_BYTES_MAX)))
    assert connection.next_request().api_key == 0
    body = HeartbeatRequest("g" * 30_000, 1, "m")
    frame = b"".join(encode_request(body, 4, 1, "c"))[4:] + bytes(CONTROL_BYTES_MAX)
    connection.receive(len(frame).to_bytes(4) + frame)
    with pytest.raises(BadMessage, match="Heartbeat"):
        connection.next_request()


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 14), (1, 19), (18, 6), (17, 0), (999, 0)])
def test_unsupported_requests_are_distinguished_from_garbage(key, version):
    """The header of an unsupported API or version is parsed, so that it can be logged."""
    header = KioHeader1(
        request_api_key=key, request_api_version=version, correlation_id=4, client_id="me"
    )
    request = parse_request(kio_bytes(header) + b"\xff" * 9)
    assert request == Unsupported(key, version, 4, "me")


def test_too_new_api_versions_is_answered_in_version_0():
    """An ApiVersions request that is too new gets error 35 and our versions, in version 0.

    Other unsupported requests get no response.
    """
    (data,) = unsupported_version_response(Unsupported(18, 9, 4, "me"))
    theirs = kio_reads(kio_class(18, 0, "response"), data[8:])
    assert data[4:8] == (4).to_bytes(4)
    assert theirs.error_code == 35
    assert (18, 0, 5) in {(k.api_key, k.min_version, k.max_version) for k in theirs.api_keys}
    assert unsupported_version_response(Unsupported(1, 99, 4, "me")) is None
    assert unsupported_version_response(Unsupported(17, 0, 4, "me")) is None


@pytest.mark.parametrize(
    "frame",
    [
        b"\0\x0c\0\x04\0\0\0\x01\0\x50short",  # client id longer than the frame
        b"\0\x0c\0\x04\0\0\0\x01\xff\xfe" + bytes(9),  # negative length other than -1
        b"\0\x0c\0\x04\0\0\0\x01\xff\xff",  # flexible, but no tag section
        b"\0\x0c\0\x04\0\0\0\x01\xff\xff\x01\x00\x70",  # tag longer than the frame
        b"\x03\xe7\0\x04\0\0\0\x01\0\x50short",  # the same for an unknown API
    ],
)
def test_broken_headers_are_refused(frame):
    """A malformed header raises ``BadMessage``."""
    with pytest.raises(BadMessage):
        parse_request(frame)


def test_client_ids_that_are_not_utf8_do_not_cost_the_connection():
    """Invalid UTF-8 in a client id is replaced, as in Kafka, and is not an error."""
    request = parse_request(b"\0\x0c\0\0\0\0\0\x01\0\x02\xff!")
    assert request.client_id == "\N{REPLACEMENT CHARACTER}!"


def test_a_fetch_reply_names_its_length_over_all_buffers():
    """The length prefix of a Fetch response counts all buffers, without copying the records."""
    records = bytes(100_000)
    partitions = [FetchedPartition(n, 0, 1, records=records) for n in range(3)]
    request = Request(1, 12, 5, None, memoryview(b""))
    message = FetchResponse(topics=[FetchedTopic("t", partitions=partitions)])
    buffers = encode_response(request, message)
    assert sum(buffer is records for buffer in buffers) == 3
    out = io.BytesIO()
    out.writelines(buffers)
    data = out.getvalue()
    assert int.from_bytes(data[:4]) == len(data) - 4
    correlation_id, read = parse_response(1, 12, data[4:])
    assert correlation_id == 5
    assert [p.records for p in read.topics[0].partitions] == [records] * 3


@pytest.mark.parametrize("frame", [b"", b"\0\0", b"\0\0\0\x01", b"\0\0\0\x01\xff", b"\0\0\0\x01\0"])
def test_broken_responses_are_refused(frame):
    """The client refuses a malformed response with ``BadMessage``."""
    with pytest.raises(BadMessage):
        parse_response(12, 4, frame)


def test_answers_must_be_of_the_api_asked():
    """Encoding a response of another API than the request's fails an assertion."""
    request = Request(18, 0, 1, None, memoryview(b""))
    with pytest.raises(AssertionError):
        encode_response(request, HeartbeatResponse())
    assert isinstance(api_versions(), ApiVersionsResponse)
    assert decode_request(request) == ApiVersionsRequest()

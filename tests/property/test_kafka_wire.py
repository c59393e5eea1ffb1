"""Kafka requests and messages that are split at any byte, damaged or random."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from cordwood.decide.groups.subscription import parse_subscription
from cordwood.errors import ProtocolError
from cordwood.protocol.kafka.codec import decode, encode
from cordwood.protocol.kafka.connection import NEED_DATA, KafkaConnection
from cordwood.protocol.kafka.frames import decode_request, encode_request
from cordwood.protocol.kafka.schema import APIS
from support.kio_oracle import kio_bytes, kio_class, kio_versions, random_entity

FRAME_MAX = 1_000_000
apis = st.sampled_from(APIS)
seeds = st.integers(0, 2**32)


def drain(connection):
    """Return every available request, and the error that ended the stream, if any."""
    events = []
    try:
        while (request := connection.next_request()) is not NEED_DATA:
            events.append((*request[:4], bytes(request[4]) if len(request) == 5 else None))
    except ProtocolError as error:
        events.append((type(error).__name__, str(error)))
    return events


@st.composite
def streams(draw):
    """Generate a few requests in sequence, sometimes followed by random bytes."""
    out = bytearray()
    for number in range(draw(st.integers(0, 4))):
        api = draw(apis)
        version = draw(st.sampled_from(kio_versions(api)))
        rng = random.Random(draw(seeds))
        theirs = kio_bytes(random_entity(kio_class(api.key, version, "request"), rng))
        message = decode(api.request, version, theirs)
        client_id = draw(st.none() | st.text(max_size=8))
        out += b"".join(encode_request(message, version, number, client_id))
        if draw(st.integers(0, 5)) == 0:  # a frame that takes the code path for large frames
            out += (40_000).to_bytes(4) + b"\0\0\0\x09" + bytes(39_996)
    return bytes(out + draw(st.just(b"") | st.binary(max_size=40)))


@given(streams(), st.lists(st.integers(1, 20_000), max_size=30), st.booleans())
def test_requests_do_not_depend_on_packet_boundaries(stream, sizes, eager):
    """Packet boundaries and the time of reading do not change the requests that are parsed."""
    whole = KafkaConnection(FRAME_MAX)
    whole.receive(stream)
    cut = KafkaConnection(FRAME_MAX)
    events = []
    position = 0
    for size in (*sizes, len(stream) + 1):
        cut.receive(stream[position : position + size])
        position += size
        if eager and not (events and len(events[-1]) == 2):
            events += drain(cut)
    if not (events and len(events[-1]) == 2):
        events += drain(cut)
    assert events == drain(whole)


@given(apis, st.sampled_from(("request", "response")), seeds, st.data())
def test_broken_messages_are_protocol_errors_or_messages(api, direction, seed, data):
    """A damaged message either decodes or raises ``ProtocolError``."""
    version = data.draw(st.sampled_from(kio_versions(api)))
    ours = api.request if direction == "request" else api.response
    rng = random.Random(seed)
    body = bytearray(kio_bytes(random_entity(kio_class(api.key, version, direction), rng)))
    for _ in range(20):
        broken = bytearray(body)
        for _ in range(rng.randint(1, 4)):
            _break(broken, rng)
        try:
            message = decode(ours, version, broken)
        except ProtocolError:
            continue
        again = b"".join(encode(message, version))
        assert decode(ours, version, again) == message


def _break(data, rng):
    position = rng.randrange(len(data) + 1)
    match rng.randrange(4):
        case 0:
            data[position : position + 1] = bytes((rng.choice((0, 1, 127, 128, 255)),))
        case 1:
            data[position : position + 4] = rng.choice(
                (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", rng.randbytes(4))
            )
        case 2:
            del data[position : position + rng.randint(1, 8)]
        case _:
            data[position:position] = rng.randbytes(rng.randint(1, 8))


@given(apis, st.binary(max_size=200), st.data())
def test_any_bytes_are_protocol_errors_or_messages(api, body, data):
    """Random bytes either decode or raise ``ProtocolError``."""
    version = data.draw(st.integers(api.first_version, api.last_version))
    for message_type in (api.request, api.response):
        try:
            decode(message_type, version, body)
        except ProtocolError:
            continue


@given(apis, st.binary(max_size=100), st.data())
def test_any_frame_is_a_protocol_error_or_a_request(api, tail, data):
    """Any frame received from a socket is parsed and decoded, or raises ``ProtocolError``."""
    version = data.draw(st.integers(-1, api.last_version + 1))
    head = api.key.to_bytes(2) + version.to_bytes(2, signed=True)
    connection = KafkaConnection(FRAME_MAX)
    connection.receive((len(head) + 4 + len(tail)).to_bytes(4) + head + bytes(4) + tail)
    try:
        request = connection.next_request()
        assert request is not NEED_DATA
        if len(request) == 5:
            decode_request(request)
    except ProtocolError:
        pass


@given(st.binary(max_size=60))
def test_any_bytes_are_a_subscription_or_unknown(data):
    """Malformed subscription bytes from a member parse as no subscription, without an exception."""
    assert all(isinstance(topic, str) for topic in parse_subscription(data) or ())

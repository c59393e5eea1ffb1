"""Properties of the line protocol for any bytes, split at any position."""

from contextlib import suppress
from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import ProtocolError
from cordwood.model import Header, Record
from cordwood.protocol.line.control import ControlConnection, Refused
from cordwood.protocol.line.framing import Framing, Splitter
from cordwood.protocol.line.ingress import Frames, IngressConnection, Lines
from cordwood.protocol.line.records import Line, encode_records, parse_record

LIMIT = 64

lines = st.binary(max_size=90).map(lambda line: line.replace(b"\n", b"") + b"\n")
frames = st.binary(max_size=90).map(Framing.FRAMES.encode)
commands = st.sampled_from(
    [b"GET_ACK\n", b"PUT t a b \n", b"QUIT\n", b"\n", b"HELLO p 1\n", b"HELLO\n", b"a|1|1|x\n"]
)
framed = commands.map(lambda command: Framing.FRAMES.encode(command[:-1]))
streams = st.one_of(
    st.lists(st.one_of(lines, commands), max_size=8).map(b"".join),
    st.lists(st.one_of(frames, framed), max_size=8).map(b"".join),
    st.binary(max_size=300),
)


@st.composite
def cut_streams(draw) -> tuple[bytes, list[bytes]]:
    """Return a byte stream, and the same stream split into packets."""
    data = draw(streams)
    data = data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    edges = [0, *cuts, len(data)]
    return data, [data[a:b] for a, b in pairwise(edges)]


def run_ingress(packets: list[bytes]) -> list[object]:
    """Return a connection's events until its end or error, with adjacent blocks joined."""
    connection = IngressConnection(LIMIT)
    found: list[object] = []
    try:
        for packet in packets:
            connection.receive(packet)
            assert len(connection._tail) <= max(LIMIT, 4096)
        connection.receive_eof()
        failure = None
    except ProtocolError as error:
        failure = str(error)
    while (event := connection.next_event()) is not None:
        if isinstance(event, Lines) and found and isinstance(found[-1], Lines):
            found[-1] = Lines(found[-1].block + bytes(event.block))
        elif isinstance(event, Lines):
            found.append(Lines(bytes(event.block)))
        elif isinstance(event, Frames) and found and isinstance(found[-1], Frames):
            found[-1] = Frames(found[-1].bodies + event.bodies)
        else:
            found.append(event)
    return [*found, connection.framing, failure]


def run_control(packets: list[bytes]) -> list[object]:
    """Return a connection's requests until its end or error; errors appear as name and text."""
    connection = ControlConnection(LIMIT)
    found: list[object] = []

    def drain() -> None:
        while (request := connection.next_request()) is not None:
            refused = isinstance(request, Refused)
            found.append((request.error.name, str(request.error)) if refused else request)

    try:
        for packet in packets:
            connection.receive(packet)
            drain()
        connection.receive_eof()
        drain()
    except ProtocolError as error:
        found.append(str(error))
    return [*found, connection.framing]


@given(cut_streams())
def test_requests_do_not_depend_on_packet_boundaries(stream):
    """Requests, their order, refusals and errors are the same for any packet boundaries."""
    data, packets = stream
    assert run_control(packets) == run_control([data])
    assert run_control([data[i : i + 1] for i in range(len(data))]) == run_control([data])


@given(cut_streams())
def test_ingress_events_do_not_depend_on_packet_boundaries(stream):
    """Lines, frames, HELLO and incomplete messages do not depend on packet boundaries."""
    data, packets = stream
    assert run_ingress(packets) == run_ingress([data])
    assert run_ingress([data[i : i + 1] for i in range(len(data))]) == run_ingress([data])


@given(st.lists(lines, min_size=1, max_size=8))
def test_no_byte_of_an_ingress_text_stream_is_lost(sent):
    """Joining the line blocks and the overlong lines restores the original stream."""
    connection = IngressConnection(LIMIT)
    connection.receive(b"first\n" + b"".join(sent))
    again = b""
    while (event := connection.next_event()) is not None:
        again += bytes(event.block) if isinstance(event, Lines) else event.kept + b"\n"
    assert again == b"first\n" + b"".join(sent)


@given(st.lists(st.binary(max_size=LIMIT), max_size=8), st.sampled_from(Framing))
def test_splitter_returns_the_messages_that_were_framed(bodies, framing):
    """Splitting encoded messages returns the original messages."""
    sent = [b.replace(b"\n", b"") for b in bodies] if framing is Framing.TEXT else bodies
    splitter = Splitter(framing, LIMIT)
    splitter.receive(b"".join(map(framing.encode, sent)))
    assert list(iter(splitter.next_message, None)) == sent
    assert splitter.take_half() == b""


@given(
    st.integers(0, 2**62),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=40),
    st.binary(max_size=10),
    st.none() | st.integers(0, 2**63),
    st.sampled_from(Framing),
    st.none() | st.integers(0, 2**31 - 1),
)
def test_records_round_trip_through_both_framings(
    offset, key, value, stamp, number, framing, partition
):
    """Any key, payload and producer timestamp survives; null and empty stay distinct."""
    headers = [Header("ts", stamp)] + ([] if number is None else [Header("n", b"%d" % number)])
    data = encode_records([Record(offset, 5, key, value, tuple(headers))] * 2, framing, partition)
    splitter = Splitter(framing, 1000)
    splitter.receive(data)
    bodies = list(iter(splitter.next_message, None))
    text = None if key is None else key.decode("utf-8", "surrogateescape")
    producer_ts = stamp.decode("utf-8", "surrogateescape")
    line = Line(offset + 1, 5, text, producer_ts, number, value, partition or 0)
    assert [parse_record(body, framing) for body in bodies] == [line, line]


@given(st.binary(max_size=60), st.sampled_from(Framing))
def test_parsing_any_bytes_as_a_record_raises_only_protocol_errors(body, framing):
    """Malformed records raise ``ProtocolError`` and nothing else."""
    with suppress(ProtocolError):
        assert isinstance(parse_record(body, framing), Line)


CORPUS = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # a TLS handshake
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x00\x00\x00\x14\x00\x12\x00\x03\x00\x00\x00\x01",  # a Kafka request
    b"\xff\xff\xff\xff",
    b"\x00" * 300,
    b"\n" * 300,
    b"\xff" * 300 + b"\n",
    b"abc\x00|1|1|x\n" * 20,
    b"\xff\xfeG\x00E\x00T\x00",  # UTF-16
    b"PUT " + b"t" * 300 + b" x\n",
    b"|" * 60 + b"\n",
]


@given(st.sampled_from(CORPUS), st.binary(max_size=20), st.integers(0, 300))
def test_foreign_protocols_end_in_replies_or_protocol_errors(data, noise, place):
    """Bytes of another protocol cause only replies and ``ProtocolError``."""
    spoiled = data[:place] + noise + data[place:]
    for run in (run_ingress, run_control):
        assert run([spoiled[i : i + 7] for i in range(0, len(spoiled), 7)]) == run([spoiled])


@pytest.mark.parametrize("make", [ControlConnection, IngressConnection])
@pytest.mark.parametrize("opening", [b"xxxx", (2**20).to_bytes(4, "little")])
def test_a_slow_drip_is_linear(make, opening):
    """Doubling the bytes about doubles the work, because received bytes are not scanned again."""

    def seconds(count: int) -> float:
        connection = make(2**21)
        take = getattr(connection, "next_request", None) or connection.next_event
        connection.receive(opening)
        started = process_time()
        for _ in range(count):
            connection.receive(b"x")
            take()
        return process_time() - started

    seconds(1000)
    assert seconds(80_000) < 16 * seconds(10_000) + 0.1

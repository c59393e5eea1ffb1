"""The Kafka listener closes connections that send invalid bytes and harms no other client.

During each test another client, the neighbour, produces; its records must arrive in order and
without long delays.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import struct
import threading
import time
from pathlib import Path

import confluent_kafka
import pytest

from cordwood.batch.records import encode_batch
from cordwood.client.kafka import KafkaClient
from cordwood.model import Record, TopicPartition
from cordwood.protocol.kafka.frames import encode_request, parse_response
from cordwood.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.kafka.messages.metadata import ApiVersionsRequest
from cordwood.server.listeners import Connection
from cordwood.testing import Broker
from support.kafka_clients import PATIENCE_S, create_topic
from support.lines import until
from support.recording import Recorder, converse, read_reply

UNSUPPORTED_VERSION = 35
API_VERSIONS = 18
CREATES = {19, 20, 37}  # topic creation: a mutated partition count may be a valid request
CLOSES_WITHIN_S = 5.0


class Neighbour:
    """A client that produces numbers while other clients misbehave, and reads them at the end."""

    def __init__(self, address: str) -> None:
        """Start producing immediately."""
        create_topic(address, "neighbour")
        self._address = address
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self.sent = 0
        self.waits_s: list[float] = []
        self._thread.start()

    def _produce(self) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self._address, "linger.ms": 0})
        while not self._ending.wait(0.005):
            started = time.monotonic()
            producer.produce("neighbour", b"%d" % self.sent)
            assert producer.flush(PATIENCE_S) == 0
            self.waits_s.append(time.monotonic() - started)
            self.sent += 1

    def end(self) -> None:
        """Check that every number is stored once, in order, each acknowledged within 3 seconds."""
        goal = self.sent + 2
        until(lambda: self.sent >= goal, "the neighbour is served", PATIENCE_S)
        self._ending.set()
        self._thread.join()
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._address, "group.id": "neighbour"}
        )
        consumer.assign([confluent_kafka.TopicPartition("neighbour", 0, 0)])
        found = consumer.consume(self.sent, timeout=PATIENCE_S)
        consumer.close()
        assert [int(message.value()) for message in found] == list(range(self.sent))
        assert max(self.waits_s) < 3


@pytest.fixture(scope="module")
def frames():
    """Requests recorded once from real clients."""
    recorder = Recorder()
    settings = {"advertised_kafka": recorder.address, "group_initial_rebalance_delay_ms": 0}
    with Broker(durability="os", **settings) as broker:
        recorder.target = broker.kafka
        converse(recorder.address)
        recorder.close()
    found = recorder.frames()
    apis = {struct.unpack_from(">h", frame, 4)[0] for frame in found}
    assert {0, 1, 2, 3, 8, 9, 10, 11, 13, 14, 18, 22} <= apis
    return [frame for frame in found if struct.unpack_from(">h", frame, 4)[0] not in CREATES]


@pytest.fixture
def broker():
    with Broker(durability="os") as running:
        yield running


@pytest.fixture
def neighbour(broker, caplog):
    """A running neighbour; at the end all its records are stored and the log has no error."""
    caplog.set_level(logging.INFO, "cordwood")
    living = Neighbour(broker.kafka)
    yield living
    living.end()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert not any(record.exc_info for record in caplog.records)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=CLOSES_WITHIN_S)


def is_closed_by_peer(listener: socket.socket) -> bool:
    """Read until the peer closes the connection; a timeout fails the test."""
    with contextlib.suppress(ConnectionError):
        while listener.recv(65_536):
            pass
    return True


def say(address: str, data: bytes) -> None:
    """Send the bytes, close the sending side, and wait until the listener closes."""
    with connect(address) as listener:
        with contextlib.suppress(ConnectionError):
            listener.sendall(data)
            listener.shutdown(socket.SHUT_WR)
        assert is_closed_by_peer(listener)


def mutate(frame: bytes, chance: random.Random) -> bytes:
    """Return the frame with one random kind of damage."""
    data = bytearray(frame)
    at = chance.randrange(len(data))
    match chance.randrange(6):
        case 0:  # flipped bits
            for _ in range(chance.randrange(1, 8)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 1:  # truncated, with the length field adjusted
            data = data[: max(14, at)]
            struct.pack_into(">i", data, 0, len(data) - 4)
        case 2:  # truncated, with the length field unchanged
            data = data[:at]
        case 3:  # a field overwritten with an extreme value
            at = chance.randrange(4, max(5, len(data) - 4))
            data[at : at + 4] = chance.choice(
                [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80" * 4]
            )
        case 4:  # random bytes inserted
            data[at:at] = chance.randbytes(chance.randrange(1, 30))
        case 5:  # random bytes from some position on
            data[at:] = chance.randbytes(len(data) - at)
    return bytes(data)


def test_mutated_requests_harm_only_their_own_connection(broker, neighbour, frames):
    """A mutated request is answered or its connection is closed within seconds."""
    chance = random.Random(seed := random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    for _ in range(300):
        chosen = chance.choices(frames, k=chance.randrange(1, 4))
        say(broker.kafka, b"".join(mutate(frame, chance) for frame in chosen))


def test_noise_is_closed(broker, neighbour):
    """The listener closes a connection that sends random bytes or HTTP."""
    chance = random.Random(seed := random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    for _ in range(100):
        say(broker.kafka, chance.randbytes(chance.randrange(1, 3000)))
    say(broker.kafka, b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 9, 2**31 - 1, 200_000_000])
def test_an_impossible_length_closes_at_once(broker, neighbour, length, caplog):
    """An invalid frame length closes the connection without waiting and logs one line."""
    with connect(broker.kafka) as listener:
        listener.sendall(struct.pack(">i", length))
        assert is_closed_by_peer(listener)
    lines = [r.getMessage() for r in caplog.records if "kafka.malformed" in r.getMessage()]
    assert len(lines) == 1
    assert str(length) in lines[0]


def test_large_announcements_cost_little_memory(broker, neighbour):
    """A hundred peers that announce 100 MB each but send 100 bytes cost less than 100 MB."""
    header = struct.pack(">ihhih", 100_000_000, 0, 9, 1, -1)
    before = resident_bytes()
    with contextlib.ExitStack() as listeners:
        for _ in range(100):
            listener = listeners.enter_context(connect(broker.kafka))
            listener.sendall(header + bytes(100))
        say(broker.kafka, api_versions(1))  # sent later, so the headers were read
        grown_bytes = resident_bytes() - before
    assert grown_bytes < 100_000_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def api_versions(correlation_id: int, version: int = 0) -> bytes:
    """An encoded ApiVersions request, which every broker answers."""
    if version > 4:
        return struct.pack(">ihhih", 10, API_VERSIONS, version, correlation_id, -1)
    return b"".join(encode_request(ApiVersionsRequest(), version, correlation_id, "abuse"))


def test_a_slow_drip_is_answered_in_the_end(broker, neighbour):
    """A request that arrives one byte at a time is answered."""
    with connect(broker.kafka) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(5):
            for byte in api_versions(number, 3):
                listener.sendall(bytes([byte]))
            assert parse_response(API_VERSIONS, 3, read_reply(listener))[0] == number


@pytest.mark.parametrize(("api", "version"), [(999, 0), (0, 99), (0, 2), (1, 19), (-1, -1), (6, 0)])
def test_an_unknown_api_or_version_closes_with_one_line(broker, neighbour, api, version, caplog):
    """The listener closes without a reply and logs the unsupported API and version."""
    with connect(broker.kafka) as listener:
        listener.sendall(struct.pack(">ihhih", 10, api, version, 7, -1))
        assert is_closed_by_peer(listener)
    lines = [r.getMessage() for r in caplog.records if "kafka.unsupported" in r.getMessage()]
    assert len(lines) == 1
    assert f"api={api} version={version}" in lines[0]


def test_an_unsupported_api_versions_request_gets_the_supported_range(broker, neighbour, caplog):
    """A too new ApiVersions request is answered in version 0 with UNSUPPORTED_VERSION (35).

    The reply lists the supported APIs and the connection stays usable. Nothing is logged: every
    newer client begins this way.
    """
    with connect(broker.kafka) as listener:
        listener.sendall(api_versions(1, 99) + api_versions(2, 0))
        first, second = (parse_response(API_VERSIONS, 0, read_reply(listener)) for _ in range(2))
    assert (first[0], first[1].error_code) == (1, UNSUPPORTED_VERSION)
    assert (second[0], second[1].error_code) == (2, 0)
    assert not [line for line in caplog.messages if "kafka.unsupported" in line]
    assert first[1].api_keys == second[1].api_keys


def test_a_peer_that_does_not_read_is_not_read_from(broker, neighbour):
    """The listener stops reading from a peer that reads no replies.

    Once the peer reads, all its requests are answered in order.
    """
    count = 20_000
    requests = b"".join(map(api_versions, range(count)))
    with connect(broker.kafka) as listener:
        sender = threading.Thread(target=listener.sendall, args=(requests,))
        sender.start()
        until(
            lambda: any(is_stopped(link) for link in list(links_of(broker))),
            "the listener stops writing",
            PATIENCE_S,
        )
        with listener.makefile("rb", 1_000_000) as replies:
            for number in range(count):
                (length,) = struct.unpack(">i", replies.read(4))
                assert struct.unpack_from(">i", replies.read(length))[0] == number
        sender.join()


def links_of(broker: Broker) -> set[Connection]:
    return broker.service.server.listeners["kafka"].connections


def is_stopped(link: Connection) -> bool:
    return not link.writable.is_set()


def test_a_client_that_vanishes_amid_a_long_poll_leaves_nothing_behind(broker, neighbour):
    """When a client disconnects during a long poll, its connection and memory are released."""
    create_topic(broker.kafka, "quiet")
    wanted = [FetchTopic("quiet", partitions=[FetchPartition(0, partition_max_bytes=1 << 20)])]
    poll = FetchRequest(-1, 60_000, 1, 1 << 20, 0, topics=wanted)
    asked = b"".join(encode_request(poll, 11, 1, "vanishing"))
    with connect(broker.kafka) as watching:
        watching.sendall(api_versions(1))
        read_reply(watching)
        memory = next(iter(links_of(broker))).transport.get_protocol()._shared.memory
        for _ in range(20):
            with connect(broker.kafka) as listener:
                listener.sendall(asked)
                until(lambda: memory.used_bytes > 0, "it is being answered", PATIENCE_S)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: memory.used_bytes == 0, "nothing counts against the others", PATIENCE_S)
    until(lambda: len(links_of(broker)) <= 2, "only the neighbour's are left", PATIENCE_S)


def test_a_peer_that_takes_no_replies_has_no_more_made_for_it(broker, neighbour):
    """The broker prepares few replies for a client that does not read.

    A hundred pipelined fetches of 1 MB each keep less than 4 MB of unsent replies.
    """
    create_topic(broker.kafka, "large")
    with KafkaClient(broker.kafka) as client:
        tp = TopicPartition("large", 0)
        for _ in range(4):
            record = Record(0, time.time_ns() // 1_000_000, None, bytes(900_000))
            client.produce(tp, encode_batch([record]))
    wanted = [FetchTopic("large", partitions=[FetchPartition(0, partition_max_bytes=1 << 20)])]
    fetch = FetchRequest(-1, 0, 1, 1 << 20, 0, topics=wanted)
    requests = b"".join(b"".join(encode_request(fetch, 11, n, "greedy")) for n in range(100))
    outgoing = broker.service.broker.outgoing
    before = resident_bytes()
    with connect(broker.kafka) as listener:
        listener.sendall(requests)
        until(lambda: any(map(is_stopped, list(links_of(broker)))), "it writes no more", PATIENCE_S)
        say(broker.kafka, api_versions(1))  # sent later, so the fetches were handled
        assert 0 < outgoing.unsent_bytes < 4_000_000
        assert resident_bytes() - before < 40_000_000
        for number in range(100):
            assert struct.unpack_from(">i", read_reply(listener))[0] == number
    until(lambda: outgoing.unsent_bytes == 0, "all is taken", PATIENCE_S)

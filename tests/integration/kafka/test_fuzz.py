"""Hostile frames at the Kafka listener neither exhaust memory nor stall another client.

Frames are random, mutated from valid requests, as costly as possible, or incomplete. The test
samples the resident memory of the broker process throughout. Another client, the neighbour,
produces one record at a time on its own connection; the test prints its p99 latency and checks
that every record is stored.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.batch.compression import compress
from cordwood.batch.header import HEADER_BYTES, seal
from cordwood.batch.records import decode_committed, encode_batch
from cordwood.client.kafka import KafkaClient
from cordwood.model import Codec, Record, TopicPartition
from cordwood.protocol.kafka.frames import encode_request
from cordwood.protocol.kafka.messages import commits as c
from cordwood.protocol.kafka.messages import fetch as f
from cordwood.protocol.kafka.messages import groups as g
from cordwood.protocol.kafka.messages import metadata as m
from cordwood.protocol.kafka.messages import offsets as o
from cordwood.protocol.kafka.messages import produce as p
from support.kafka_clients import create_topic
from support.lines import Served
from support.neighbours import assert_leaves_nothing, assert_not_stalled

SEED = int(os.environ.get("FUZZ_SEED", "0")) or random.SystemRandom().randrange(2**32)
MIB = 2**20
FRAME_MAX = 20 * MIB
BUDGET = 48 * MIB
INFLATED_MAX = 16 * MIB
CLOSES_WITHIN_S = 60.0
# The request budget plus one frame, a decompression bomb twice, replies and many connections.
GROWTH_MAX = BUDGET + FRAME_MAX + 2 * INFLATED_MAX + 220 * MIB


FETCHED = f.FetchTopic("t", partitions=[f.FetchPartition(0, partition_max_bytes=1 << 20)])


class Scales:
    """Samples the resident memory of a process and keeps the maximum."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._ending = threading.Event()
        self.most_bytes = 0
        self._thread = threading.Thread(target=self._weigh)
        self._thread.start()

    def _weigh(self) -> None:
        while not self._ending.wait(0.02):
            self.most_bytes = max(self.most_bytes, self._served.rss_bytes())

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


class Neighbour:
    """Produces numbers one after the other to its own topic."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._ending = threading.Event()
        self.waits_s: list[float] = []
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        try:
            with KafkaClient(self._address) as client:
                while not self._ending.wait(0.002):
                    now_ms = time.time_ns() // 1_000_000
                    record = Record(0, now_ms, None, b"%d" % len(self.waits_s))
                    began = time.perf_counter()
                    client.produce(TopicPartition("neighbour", 0), encode_batch([record]))
                    self.waits_s.append(time.perf_counter() - began)
        except Exception as error:  # noqa: BLE001 - reported by end()
            self.failure = error

    def end(self) -> list[int]:
        """Stop producing and return the numbers that are in the log."""
        self._ending.set()
        self._thread.join()
        assert self.failure is None, self.failure
        found: list[int] = []
        with KafkaClient(self._address) as client:
            tp = TopicPartition("neighbour", 0)
            while len(found) < len(self.waits_s):
                data = client.fetch({tp: len(found)}, max_wait_ms=500)[tp].records
                found += [int(record.value) for record in decode_committed(bytes(data))]
        return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    settings = {
        "kafka": "127.0.0.1:0",
        "durability": "os",
        "pipeline": "off",
        "socket_request_max_bytes": FRAME_MAX,
        "queued_max_request_bytes": BUDGET,
        "message_inflated_bytes_max": INFLATED_MAX,
    }
    with Served(tmp_path / "data", **settings) as running:
        create_topic(running.addresses["kafka"], "neighbour")
        create_topic(running.addresses["kafka"], "t")
        running.warm_up()
        yield running


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=CLOSES_WITHIN_S)


def say(address: str, data: bytes) -> None:
    """Send the bytes, close the sending side, and read until the listener closes."""
    with connect(address) as wire, contextlib.suppress(ConnectionError):
        wire.sendall(data)
        wire.shutdown(socket.SHUT_WR)
        while wire.recv(1 << 16):
            pass


def framed(message, version: int) -> bytes:
    return b"".join(encode_request(message, version, 7, "fuzz"))


def produced(batch: bytes, topic: str = "t") -> bytes:
    topics = [p.ProduceTopic(topic, partitions=[p.ProducePartition(0, batch)])]
    return framed(p.ProduceRequest(None, -1, 1000, topics), 9)


def with_body(body: bytes, count: int, codec: Codec) -> bytes:
    """A batch with a valid header and checksum around any body."""
    data = bytearray(encode_batch([Record(n, 1, None, b"") for n in range(count)])[:HEADER_BYTES])
    data += body
    struct.pack_into(">i", data, 8, len(data) - 12)
    data[22] = codec.value
    seal(data, 0, len(data))
    return bytes(data)


def costly(chance: random.Random) -> Iterator[bytes]:
    """Requests that would stall a broker without limits or exhaust its memory."""
    names = [f"no-{n}" for n in range(40_000)]
    numbers = [n % 3 for n in range(40_000)]
    yield framed(m.MetadataRequest([m.MetadataRequestTopic(name=n) for n in names], False), 9)
    yield framed(m.MetadataRequest([m.MetadataRequestTopic(name=n) for n in names * 3], False), 9)
    parts = [f.FetchPartition(n, partition_max_bytes=1 << 20) for n in numbers]
    fetch = f.FetchRequest(-1, 100, 1, 1 << 30, 0, topics=[f.FetchTopic("t", partitions=parts)])
    yield framed(fetch, 11)
    listed = [o.ListOffsetsPartition(n) for n in numbers]
    yield framed(o.ListOffsetsRequest(-1, 0, [o.ListOffsetsTopic("t", listed)]), 5)
    offsets = [c.OffsetCommitPartition(0, n) for n in range(40_000)]
    yield framed(
        c.OffsetCommitRequest("g", topics=[c.OffsetCommitTopic("t", partitions=offsets)]), 7
    )
    yield framed(g.DescribeGroupsRequest(names), 4)
    yield framed(g.FindCoordinatorRequest(coordinator_keys=names), 4)
    batch = encode_batch([Record(0, 1, None, b"x")])
    many = [p.ProducePartition(n, batch) for n in numbers[:15_000]]
    yield framed(p.ProduceRequest(None, -1, 1000, [p.ProduceTopic("t", partitions=many)]), 9)
    for codec in Codec:
        body = bytes(3 * INFLATED_MAX) if codec is not Codec.NONE else bytes(500_000)
        yield produced(with_body(compress(codec, body)[: MIB - 200], 3, codec))
        yield produced(with_body(chance.randbytes(2_000), 50, codec))
        yield produced(with_body(b"", 1, codec))
    for codec in (Codec.GZIP, Codec.ZSTD):  # concatenated streams: 512 MiB in one frame
        yield produced(with_body(compress(codec, bytes(INFLATED_MAX)) * 32, 3, codec))
    header = struct.pack(">hhih", 0, 9, 7, -1)
    tags = header + b"\xff\xff\xff\x07" + b"\x7f\x00" * (MIB // 2)  # claims millions of tags
    yield struct.pack(">i", len(tags)) + tags


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """Flip bits, write extreme lengths or replace the tail of a truncated frame with noise."""
    data = bytearray(frame[:5_000])
    struct.pack_into(">i", data, 0, len(data) - 4)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(4, len(data))
        match chance.randrange(3):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                huge = chance.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"])
                data[at : at + 4] = huge[: len(data) - at]
            case 2:
                data[at:] = chance.randbytes(len(data) - at)
    return bytes(data)


def half_frames(address: str, stack: contextlib.ExitStack) -> None:
    """Open 40 connections that announce the largest frame, send part of it and wait."""

    def fill(wire: socket.socket) -> None:
        wire.settimeout(1.0)
        with contextlib.suppress(OSError):  # the broker may stop reading or close
            wire.sendall(struct.pack(">ihhih", FRAME_MAX, 0, 9, 7, -1) + bytes(6 * MIB))

    wires = [stack.enter_context(connect(address)) for _ in range(40)]
    threads = [threading.Thread(target=fill, args=(wire,)) for wire in wires]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_no_input_fills_the_kafka_listener_or_stalls_another_connection(served):
    """Memory stays bounded, no traceback is logged and all the neighbour's records are stored."""
    print(f"seed {SEED} (FUZZ_SEED)")
    chance = random.Random(SEED)
    address = served.addresses["kafka"]
    neighbour = Neighbour(address)
    requests = list(costly(chance))
    before = served.rss_bytes()
    scales = Scales(served)
    try:
        for request in requests:
            say(address, request)
        for _ in range(100):
            frames = chance.choices(requests, k=3)
            say(address, b"".join(mutated(frame, chance) for frame in frames))
            say(address, chance.randbytes(chance.randrange(1, 3_000)))
        with contextlib.ExitStack() as stack:
            half_frames(address, stack)
            # A large request still succeeds: the broker closes connections that hold memory.
            say(address, produced(encode_batch([Record(0, 1, None, bytes(900_000))])))
    finally:
        scales.end()
        found = neighbour.end()
    waits = sorted(neighbour.waits_s)
    grown = scales.most_bytes - before
    print(
        f"neighbour: {len(waits)} produces, p50 {waits[len(waits) // 2] * 1000:.1f} ms, "
        f"p99 {waits[len(waits) * 99 // 100] * 1000:.1f} ms, worst {waits[-1] * 1000:.1f} ms; "
        f"broker: {before // MIB} MiB, {grown // MIB} MiB more at most"
    )
    assert found == list(range(len(waits)))
    assert_not_stalled(waits)
    assert grown < GROWTH_MAX
    assert "Traceback" not in served.log()
    assert "kafka.failed" not in served.log()
    assert served.stop() == 0


def test_malformed_frames_leave_nothing_in_memory(served):
    """Noise, invalid bodies and reset connections leave no memory allocated.

    The reset connection has an unanswered request, whose bytes count against the shared budget.
    """
    address = served.addresses["kafka"]
    body = struct.pack(">ihhih", 4_000, 3, 9, 7, -1) + b"\xff" * 3_990
    asked = framed(f.FetchRequest(-1, 60_000, 1, 1 << 20, 0, topics=[FETCHED]), 11)

    def step() -> None:
        say(address, b"\xff" * 2_000)
        say(address, body)
        with connect(address) as wire:
            wire.sendall(asked + body[:2_000])
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    assert_leaves_nothing(served.process.pid, step)
    assert served.stop() == 0

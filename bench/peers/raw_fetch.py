"""Fetch requests over a plain socket: batches are counted by their headers and discarded."""

from __future__ import annotations

import struct
import time

from bench.peers.client import Address, Pumped, connect
from cordwood.protocol.kafka.frames import encode_request
from cordwood.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic

VERSION = 4  # the first with batches as on disk, and the last without sessions
MIB = 2**20
_HEADER = struct.Struct(">qi")  # base offset, length
_FIXED = 12


def fetch(address: Address, topic: str, seconds: float) -> Pumped:
    """Fetch from the start of the topic repeatedly, one request of 1 MiB at a time."""
    found, offset = 0, 0
    with connect(address) as connection:
        began, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            connection.sendall(request(topic, offset))
            records = reply(connection, topic)
            following = next_offset(records, offset)
            found += following - offset
            offset = following if following > offset else 0
        return Pumped(found, time.perf_counter() - began, time.process_time() - cpu)


def request(topic: str, offset: int, size_bytes: int = MIB) -> bytes:
    one = FetchPartition(0, fetch_offset=offset, partition_max_bytes=size_bytes)
    wanted = [FetchTopic(topic, partitions=[one])]
    body = FetchRequest(-1, 500, 0, 50 * MIB, 0, topics=wanted)
    return b"".join(bytes(part) for part in encode_request(body, VERSION, 1, "bench"))


def reply(connection, topic: str) -> memoryview:
    """Return the records of the requested partition; at the end of the log they are empty."""
    size = int.from_bytes(exactly(connection, 4), "big")
    body = exactly(connection, size)
    # correlation, throttle, topics, name, partitions, partition | error, watermark, stable, aborted
    at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
    (error,) = struct.unpack_from(">h", body, at)
    assert error == 0, f"Fetch from {topic}: error {error}"
    aborted = struct.unpack_from(">i", body, at + 18)[0]
    at += 22 + max(aborted, 0) * 16
    return body[at + 4 :]


def exactly(connection, size: int) -> memoryview:
    buffer = memoryview(bytearray(size))
    position = 0
    while position < size:
        position += connection.recv_into(buffer[position:])
    return buffer


def next_offset(records: memoryview, offset: int) -> int:
    """Return the offset after the last whole batch; a reply may end with part of a batch."""
    position = 0
    while position + 27 <= len(records):
        base, length = _HEADER.unpack_from(records, position)
        if position + _FIXED + length > len(records):
            break
        offset = base + struct.unpack_from(">i", records, position + 23)[0] + 1
        position += _FIXED + length
    return offset

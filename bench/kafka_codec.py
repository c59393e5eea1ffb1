"""Measures microseconds to decode or encode a Kafka message, next to kio's if it is installed.

It covers small and large messages in classic and flexible versions, of a broker's most frequent
requests.
"""

from __future__ import annotations

import io
import timeit
from collections.abc import Callable, Iterator

from bench.rows import Row
from cordwood.protocol.kafka.codec import decode, encode
from cordwood.protocol.kafka.connection import KafkaConnection
from cordwood.protocol.kafka.frames import Request, encode_request, encode_response
from cordwood.protocol.kafka.messages import fetch, groups, metadata, produce

REPEATS = 7
SECONDS_PER_REPEAT = 0.05


def micros(call: Callable[[], object]) -> float:
    """Return the best of several means, which other processes affected least."""
    timer = timeit.Timer(call)
    number, elapsed = timer.autorange()
    number = max(1, round(number * SECONDS_PER_REPEAT / elapsed))
    return min(timer.repeat(REPEATS, number)) / number * 1e6


def produce_request(partitions: int, size: int) -> produce.ProduceRequest:
    given = [produce.ProducePartition(n, bytes(size)) for n in range(partitions)]
    return produce.ProduceRequest(
        None, -1, 30_000, [produce.ProduceTopic("events", partitions=given)]
    )


def fetch_request(partitions: int) -> fetch.FetchRequest:
    wanted = [fetch.FetchPartition(n, -1, 5, partition_max_bytes=2**20) for n in range(partitions)]
    return fetch.FetchRequest(
        -1, 500, 1, 2**26, 0, topics=[fetch.FetchTopic("events", partitions=wanted)]
    )


def produce_response(partitions: int) -> produce.ProduceResponse:
    stored = [produce.ProducedPartition(n, 0, 12_345, -1, 0) for n in range(partitions)]
    return produce.ProduceResponse([produce.ProducedTopic("events", partitions=stored)])


def fetch_response(partitions: int, size: int) -> fetch.FetchResponse:
    records = bytes(size)
    found = [
        fetch.FetchedPartition(n, 0, 9_999, 9_999, 0, records=records) for n in range(partitions)
    ]
    return fetch.FetchResponse(topics=[fetch.FetchedTopic("events", partitions=found)])


def metadata_response(partitions: int) -> metadata.MetadataResponse:
    led = [metadata.MetadataPartition(0, n, 1, 0, (1,), (1,)) for n in range(partitions)]
    topic = metadata.MetadataTopic(0, "events", partitions=led)
    broker = metadata.MetadataBroker(1, "localhost", 9092)
    return metadata.MetadataResponse(0, [broker], "cordwood", 1, [topic])


# name, API key, versions (classic and flexible), message
REQUESTS = (
    ("Produce 1 x 16 KB", 0, (7, 9), produce_request(1, 16_384)),
    ("Produce 100 x 1 KB", 0, (7, 9), produce_request(100, 1024)),
    ("Fetch 100 partitions", 1, (11, 12), fetch_request(100)),
    ("Heartbeat", 12, (3, 4), groups.HeartbeatRequest("group", 7, "member-1")),
)
RESPONSES = (
    ("Produce 1 partition", 0, (7, 9), produce_response(1)),
    ("Produce 100 partitions", 0, (7, 9), produce_response(100)),
    ("Fetch 100 x 1 KB", 1, (11, 12), fetch_response(100, 1024)),
    ("Fetch 100 x 1 MB", 1, (11, 12), fetch_response(100, 2**20)),
    ("Metadata 1000 partitions", 3, (8, 12), metadata_response(1000)),
)


def run() -> Iterator[Row]:
    for name, key, versions, message in REQUESTS:
        for version in versions:
            body = memoryview(bytearray(b"".join(encode(message, version))))
            yield Row(
                f"decode {name} v{version}",
                "ours",
                micros(lambda b=body, m=message, v=version: decode(type(m), v, b)),
                "µs",
            )
            yield from kio_decodes(f"decode {name} v{version}", key, version, bytes(body))
    for name, key, versions, message in RESPONSES:
        for version in versions:
            request = Request(key, version, 1, None, memoryview(b""))
            call = lambda r=request, m=message: encode_response(r, m)  # noqa: E731
            yield Row(f"encode {name} v{version}", "ours", micros(call), "µs")
            if "MB" not in name:
                body = b"".join(encode(message, version))
                yield from kio_encodes(f"encode {name} v{version}", key, version, body)
    yield from frames()


def frames() -> Iterator[Row]:
    """Measure from the socket's bytes to the typed message."""
    for name, size in (("16 KB", 16_384), ("1 MB", 2**20)):
        data = b"".join(encode_request(produce_request(1, size), 9, 1, "client"))
        connection = KafkaConnection(2**26)

        def call(connection=connection, data=data):
            connection.receive(data)
            request = connection.next_request()
            return decode(produce.ProduceRequest, 9, request.body)

        yield Row(f"receive and decode Produce {name} v9", "ours", micros(call), "µs")


def kio_decodes(name: str, key: int, version: int, body: bytes) -> Iterator[Row]:
    try:
        from kio.index import load_request_schema
        from kio.serial import entity_reader
    except ImportError:
        return
    reader = entity_reader(load_request_schema(key, version))
    yield Row(name, "kio", micros(lambda: reader(body, 0)), "µs")


def kio_encodes(name: str, key: int, version: int, body: bytes) -> Iterator[Row]:
    try:
        from kio.index import load_response_schema
        from kio.serial import entity_reader, entity_writer
    except ImportError:
        return
    schema = load_response_schema(key, version)
    message, _ = entity_reader(schema)(body, 0)
    writer = entity_writer(schema)
    yield Row(name, "kio", micros(lambda: writer(io.BytesIO(), message)), "µs")


if __name__ == "__main__":
    for row in run():
        print(f"{row.workload:45} {row.variant:5} {row.value:10.1f} {row.unit}")

"""Four Kafka clients with two functions each: send records, and read a number of records.

They are used as their users use them. kcat cannot send a binary batch with different headers for
each record, so it sends one record per process where that matters.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient, NewTopic

from cordwood.batch.header import BatchHeader, parse_headers

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PATIENCE_S = 20.0  # time limit for operations that take well under a second


class Sent(NamedTuple):
    """A record as a client was asked to send it, and as it should be read."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


def create_topic(address: str, name: str, partitions: int = 1, **config: object) -> str:
    """Create a topic with these settings (underscores for dots) and return its name."""
    admin = AdminClient({"bootstrap.servers": address})
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
    admin.create_topics([topic])[name].result(timeout=PATIENCE_S)
    return name


def stored_batches(data: Path, topic: str, partition: int = 0) -> list[BatchHeader]:
    """Return the batch headers in the partition's files, oldest first."""
    logs = sorted((data / f"{topic}-{partition}").glob("*.log"))
    return [header for log in logs for header in parse_headers(log.read_bytes())]


# --- confluent-kafka ------------------------------------------------------------------------


class Confluent:
    """librdkafka through its Python binding."""

    name = "confluent-kafka"

    def send(
        self,
        address: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        acks: int = -1,
        **config: object,
    ) -> None:
        """Send in one batch if the client allows it; raise the broker's error."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "acks": acks,
                "linger.ms": 50,
                "message.max.bytes": 8_000_000,
                "message.timeout.ms": int(PATIENCE_S * 1000),
                **config,
            }
        )
        errors = []
        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                timestamp=record.timestamp_ms,
                partition=0,
                on_delivery=lambda error, _: error and errors.append(error),
            )
        assert producer.flush(PATIENCE_S) == 0, "not delivered in time"
        if errors:
            raise confluent_kafka.KafkaException(errors[0])

    def read(self, address: str, topic: str, count: int, *, offset: int = 0) -> list[Sent]:
        """Read that many records of partition 0 from an offset on."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
        try:
            found = consumer.consume(count, timeout=PATIENCE_S)
            for message in found:
                assert message.error() is None, message.error()
            return [
                Sent(m.value(), m.key(), tuple(m.headers() or ()), m.timestamp()[1]) for m in found
            ]
        finally:
            consumer.close()


# --- kafka-python ---------------------------------------------------------------------------


class KafkaPython:
    """The pure Python client."""

    name = "kafka-python"

    def send(
        self,
        address: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        acks: int = -1,
        **config: object,
    ) -> None:
        """Send in one batch if the client allows it; raise the broker's error."""
        producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == -1 else acks,
            enable_idempotence=acks == -1,
            linger_ms=50,
            max_request_size=8_000_000,
            **config,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp_ms,
                    partition=0,
                )
                for record in records
            ]
            producer.flush(PATIENCE_S)
            for future in sent:
                future.get(PATIENCE_S)
        finally:
            producer.close(timeout=PATIENCE_S)

    def read(self, address: str, topic: str, count: int, *, offset: int = 0) -> list[Sent]:
        """Read that many records of partition 0 from an offset on."""
        consumer = kafka.KafkaConsumer(bootstrap_servers=address, max_partition_fetch_bytes=2**23)
        tp = kafka.TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, offset)
        found: list[Sent] = []
        deadline = time.monotonic() + PATIENCE_S
        try:
            while len(found) < count and time.monotonic() < deadline:
                for records in consumer.poll(500, max_records=count - len(found)).values():
                    found += [Sent(r.value, r.key, tuple(r.headers), r.timestamp) for r in records]
        finally:
            consumer.close()
        return found


# --- aiokafka -------------------------------------------------------------------------------


class AioKafka:
    """The asyncio client."""

    name = "aiokafka"

    def send(
        self,
        address: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        acks: int = -1,
        **config: object,
    ) -> None:
        """Send in one batch if the client allows it; raise the broker's error."""

        async def send() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == -1 else acks,
                linger_ms=50,
                max_request_size=8_000_000,
                **config,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        timestamp_ms=record.timestamp_ms,
                        partition=0,
                    )
                    for record in records
                ]
                await producer.flush()
                await asyncio.gather(*sent)
            finally:
                await producer.stop()

        asyncio.run(asyncio.wait_for(send(), PATIENCE_S))

    def read(self, address: str, topic: str, count: int, *, offset: int = 0) -> list[Sent]:
        """Read that many records of partition 0 from an offset on."""

        async def read() -> list[Sent]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=address, max_partition_fetch_bytes=2**23
            )
            await consumer.start()
            try:
                tp = aiokafka.TopicPartition(topic, 0)
                consumer.assign([tp])
                consumer.seek(tp, offset)
                found = [await consumer.getone() for _ in range(count)]
                return [Sent(m.value, m.key, tuple(m.headers), m.timestamp) for m in found]
            finally:
                await consumer.stop()

        return asyncio.run(asyncio.wait_for(read(), PATIENCE_S))


# --- kcat -----------------------------------------------------------------------------------


def kcat(*arguments: str, given: bytes = b"") -> bytes:
    """Run kcat and return its output."""
    done = subprocess.run(
        ["kcat", *arguments], input=given, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


class Kcat:
    """The kcat command; it sends text only and cannot set timestamps."""

    name = "kcat"

    def send(
        self,
        address: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        acks: int = -1,
    ) -> None:
        """Send keyed text records without nulls and headers."""
        lines = b"".join(b"%s\x1f%s\x1e" % (record.key, record.value) for record in records)
        setting = ["-z", codec, "-X", f"acks={acks}", "-X", "linger.ms=50"]
        kcat(
            "-P", "-b", address, "-t", topic, "-p", "0", "-K", "\\x1f", "-D", "\\x1e", *setting,
            given=lines,
        )  # fmt: skip

    def read(self, address: str, topic: str, count: int, *, offset: int = 0) -> list[Sent]:
        """Read that many records of partition 0; header values must not contain commas."""
        printed = kcat(
            "-C", "-b", address, "-t", topic, "-p", "0", "-o", str(offset), "-c", str(count), "-q",
            "-f", "%K %S %T %h\\n%k%s",
        )  # fmt: skip
        return list(_parse_kcat(printed))


def _parse_kcat(printed: bytes) -> Iterator[Sent]:
    position = 0
    while position < len(printed):
        end = printed.index(b"\n", position)
        key_size, value_size, timestamp, *headers = printed[position:end].decode().split(" ")
        position = end + 1
        key = value = None
        if int(key_size) >= 0:
            key = printed[position : position + int(key_size)]
            position += int(key_size)
        if int(value_size) >= 0:
            value = printed[position : position + int(value_size)]
            position += int(value_size)
        pairs = [pair.partition("=") for pair in ",".join(headers).split(",") if pair]
        yield Sent(value, key, tuple((n, v.encode()) for n, _, v in pairs), int(timestamp))


LIBRARIES = (Confluent(), KafkaPython(), AioKafka())

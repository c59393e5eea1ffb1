"""Send and read single records with librdkafka (confluent-kafka), as most applications do."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from cordwood.errors import UnavailableError
from cordwood.lab.loadtest.clients import PATIENCE_S, measure, settle
from cordwood.lab.loadtest.results import BATCH_BYTES, Load, Report, Results, make_values
from cordwood.model import Codec, TopicPartition
from cordwood.plural import plural
from cordwood.tls import ClientTls

NAME: Final = "librdkafka"
_SOME_RECORDS: Final = 1_000  # between two polls for delivery reports
_QUEUE_RECORDS: Final = 100_000  # time in the client's queue counts as latency


def is_installed() -> bool:
    """Whether confluent-kafka is installed; it is not a dependency of cordwood."""
    return find_spec("confluent_kafka") is not None


def produce(kafka: str, topic: str, load: Load, report: Report) -> Results:
    """Each client fills a partition; a wait is from ``produce()`` to the delivery report."""
    from confluent_kafka import Producer

    values = make_values(load.size_bytes)

    def fill(partition: int, share: int) -> list[float]:
        tp = TopicPartition(topic, partition)
        delivered = _Delivered(tp, report)
        producer = Producer(_settings(kafka, load))
        for number in range(share):
            value = values[number % len(values)]
            while not _is_taken(producer, tp, value, delivered):
                producer.poll(0.1)
            if number % _SOME_RECORDS == 0:
                producer.poll(0)
        if producer.flush(PATIENCE_S):
            raise UnavailableError(f"{tp} lacks records after {PATIENCE_S:.0f} s")
        if load.acks == 0:
            settle(kafka, tp, share, load.tls)
            return []
        return delivered.waits_s

    return measure("produce", NAME, load, fill)


def consume(kafka: str, topic: str, load: Load, report: Report) -> Results:
    """Each client reads its partition from the start."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    def drain(partition: int, share: int) -> list[float]:
        consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": topic,
                "enable.auto.commit": False,
                **_tls_settings(load.tls),
            }
        )
        consumer.assign([Place(topic, partition, 0)])
        left = share
        while left > 0:
            found = len(consumer.consume(min(_SOME_RECORDS, left), timeout=PATIENCE_S))
            if not found:
                raise UnavailableError(f"{topic}-{partition} ends {plural(left, 'record')} early")
            report(found)
            left -= found
        consumer.close()
        return []  # the client prefetches, so there is no latency per record

    return measure("consume", NAME, load, drain)


class _Delivered:
    """Delivery callback of one client; collects the latency of each record."""

    def __init__(self, tp: TopicPartition, report: Report) -> None:
        self.waits_s: list[float] = []
        self._tp = tp
        self._report = report

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None:
            raise UnavailableError(f"{self._tp} was not written: {error}")
        self.waits_s.append(message.latency())
        self._report(1)


def _settings(kafka: str, load: Load) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka,
        "acks": load.acks,
        "compression.type": "none" if load.codec is Codec.NONE else load.codec.name.lower(),
        "linger.ms": 5,
        "batch.size": BATCH_BYTES,
        "queue.buffering.max.messages": _QUEUE_RECORDS,
        **_tls_settings(load.tls),
    }


def _tls_settings(tls: ClientTls | None) -> dict[str, str]:
    """The client's files by librdkafka's names."""
    if tls is None:
        return {}
    files = {
        "ssl.ca.location": tls.ca,
        "ssl.certificate.location": tls.cert,
        "ssl.key.location": tls.key or tls.cert,
    }
    return {"security.protocol": "ssl", **{name: path for name, path in files.items() if path}}


def _is_taken(producer: Any, tp: TopicPartition, value: bytes, delivered: _Delivered) -> bool:
    """Whether the client accepted the record; False if its queue is full."""
    try:
        producer.produce(tp.topic, value, partition=tp.partition, on_delivery=delivered)
    except BufferError:
        return False
    return True

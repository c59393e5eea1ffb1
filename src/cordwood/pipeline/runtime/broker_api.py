"""The jobs' blocking client for the broker's HTTP API: bindings, readers, topics, deliveries.

Every request may safely be sent twice, so while the broker is unavailable a request is repeated
until a deadline. The address of the HTTP listener is either given or looked up with Kafka's
DescribeConfigs, as it may change when the broker restarts.

Knows nothing of records or of Spark.
"""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from cordwood.client.broker_listeners import ListenerAddress
from cordwood.client.http import ANSWER_S, connect, send
from cordwood.client.kafka import KafkaClient
from cordwood.errors import UnavailableError
from cordwood.protocol.api.archive import ArchivedTopic, Bundle, ListBundles, RecordBundles
from cordwood.protocol.api.call import Call
from cordwood.protocol.api.deliveries import Deliver, ListDeliveries, UploadFile
from cordwood.protocol.api.readers import ChangeReader, ListReaders
from cordwood.protocol.api.status import BrokerStatus, GetBrokerStatus
from cordwood.protocol.api.topics import ListTopics, TopicDetail
from cordwood.tls import ClientTls

R = TypeVar("R")

TIMEOUT_S: Final = 60.0  # how long a job waits for an unavailable broker before it gives up
_PAUSE_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address of a broker: of its Kafka listener or its HTTP listener; picklable.

    ``tls`` is how to connect to both; without it, connections are not encrypted.
    """

    servers: str | None = None
    http: str | None = None
    tls: ClientTls | None = None

    def __str__(self) -> str:
        """The address for messages."""
        return self.http or self.servers or "nowhere"


class TargetTopic(NamedTuple):
    """A topic to write to; without an id, the first delivery creates it."""

    id: str
    partitions: int
    batch_bytes_max: int


class BrokerApi:
    """A connection to the HTTP listener, opened on first use; not thread-safe."""

    def __init__(
        self,
        where: BrokerAddress,
        *,
        timeout_s: float = TIMEOUT_S,
        answer_s: float = ANSWER_S,
        for_parent: bool = False,
    ) -> None:
        """``timeout_s`` limits the wait for an unavailable broker, ``answer_s`` one response.

        ``for_parent``: also stop waiting when the parent process has ended.
        """
        self._answer_s = answer_s
        self.where = where
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._parent = os.getppid() if for_parent else None

    # --- requests of jobs ---------------------------------------------------------------------

    def call(self, request: Call[R], data: bytes | None = None) -> R:
        """Send a request and repeat it while the broker is unavailable, until the deadline."""
        deadline = time.monotonic() + self._timeout_s
        for pause_s in _pauses():
            try:
                return send(self._connect(), request, data)
            except UnavailableError:
                self.close()
                is_orphan = self._parent not in {None, os.getppid()}
                if is_orphan or time.monotonic() + pause_s > deadline:
                    raise
                time.sleep(pause_s)
        raise AssertionError("pauses never end")

    def status(self) -> BrokerStatus:
        """The broker's status: data directory, settings, ingress and dead-letter topics."""
        return self.call(GetBrokerStatus())

    def partition_counts(self) -> dict[str, int]:
        """Every topic's number of partitions."""
        return {name: topic.partitions for name, topic in self.targets().items()}

    def targets(self) -> dict[str, TargetTopic]:
        """Every topic with what a job needs to write to it."""
        return {
            topic.name: TargetTopic(topic.id, topic.partition_count, topic.max_message_bytes)
            for topic in self.call(ListTopics(brief="1")).topics
        }

    def topic(self, name: str) -> TopicDetail:
        """A topic with its settings, partitions and segments."""
        return self.call(ListTopics(name)).topics[0]

    def archive(self, topic: str) -> ArchivedTopic:
        """The bundles of a topic, and the cursors to store in its archive."""
        return self.call(ListBundles(topic))

    def register(self, topic: str, reader: str) -> None:
        """Register a named reader that RECLAIM waits for; creates the topic if it is missing."""
        self.call(ChangeReader("register", topic, reader, create=True))

    def advance(self, topic: str, partition: int, reader: str, offset: int) -> None:
        """Advance a reader's cursor."""
        self.call(ChangeReader("advance", topic, reader, partition, offset))

    def reset(self, topic: str, partition: int, reader: str, offset: int) -> None:
        """Set a reader's cursor to any offset."""
        self.call(ChangeReader("reset", topic, reader, partition, offset))

    def positions(self, topic: str, reader: str) -> dict[int, int]:
        """A registered reader's cursors by partition."""
        rows = self.call(ListReaders(topic)).readers
        return {row.partition: row.seq for row in rows if row.reader == reader}

    def next_batch(self, query: str) -> int:
        """The number of the batch that the query delivers next; 0 if it has delivered none."""
        row = self.call(ListDeliveries(query)).deliveries.get(query)
        return 0 if row is None or row.batch is None else row.batch + 1

    def upload(self, job: str, name: str, data: bytes) -> None:
        """Stage a file by uploading it."""
        self.call(UploadFile(job, name), data)

    def deliver(self, delivery: Deliver) -> bool:
        """Append staged files exactly once; returns False if the batch was already delivered."""
        return self.call(delivery).delivered

    def record_bundle(
        self, topic: str, partition: int, bundle: Bundle, *, answer_s: float
    ) -> str | None:
        """Report a bundle to the broker; returns why the broker could not verify it, or None.

        The broker reads the whole bundle before it responds, so ``answer_s`` replaces the timeout.
        """
        before_s, self._answer_s = self._answer_s, answer_s
        self.close()  # the next connection uses the new timeout
        try:
            return self.call(RecordBundles(topic, partition, (bundle,))).unverified
        finally:
            self._answer_s = before_s
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            address = self.where.http or find_http(self.where)
            self._connection = connect(address, self._answer_s, self.where.tls)
        return self._connection


def find_http(where: BrokerAddress) -> ListenerAddress:
    """The address of the HTTP listener, from the first Kafka server that answers."""
    for server in (each.strip() for each in (where.servers or "").split(",")):
        try:
            with KafkaClient(server, timeout_s=ANSWER_S, tls=where.tls) as client:
                return client.listener("http")
        except UnavailableError:
            continue
    raise UnavailableError(
        f"the broker at {where.servers or 'no address'} does not reply; is it running?"
    )


def _pauses() -> Iterator[float]:
    yield from _PAUSE_S
    while True:
        yield _PAUSE_S[-1]

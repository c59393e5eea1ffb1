"""The jobs' blocking client for the broker's HTTP API: bindings, readers, topics, deliveries.

Every request may safely be sent twice, so while the broker is unavailable a request is repeated
until a deadline. The address of the HTTP listener is either given or looked up with Kafka's
DescribeConfigs, as it may change when the broker restarts.

Knows nothing of records or of Spark.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from cordwood.client.http import ANSWER_S, connect, exchange
from cordwood.client.kafka import KafkaClient
from cordwood.errors import RequestError, UnavailableError

TIMEOUT_S: Final = 60.0  # how long a job waits for an unavailable broker before it gives up
_PAUSE_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address of a broker: of its Kafka listener or its HTTP listener; picklable."""

    servers: str | None = None
    http: str | None = None

    def __str__(self) -> str:
        """The address for messages."""
        return self.http or self.servers or "nowhere"


class TargetTopic(NamedTuple):
    """A topic to write to; without an id, the first delivery creates it."""

    id: str
    partitions: int
    batch_bytes_max: int


class Part(NamedTuple):
    """A staged file of whole batches for one partition, as listed in a delivery."""

    topic: str
    partition: int
    file: str
    sha256: str  # of the file; the broker appends nothing if it does not match
    topic_id: str = ""  # of the topic it was staged for; empty if that did not exist yet


class Cursor(NamedTuple):
    """A reader's cursor after a delivery, and where it must be before (``start``)."""

    reader: str
    topic: str
    partition: int
    start: int
    offset: int
    topic_id: str = ""  # of the topic that was read


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
        self._where = where
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._parent = os.getppid() if for_parent else None

    # --- requests of jobs ---------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The broker's status: data directory, settings, ingress and dead-letter topics."""
        return self._ask("GET", "/api/status")

    def partition_counts(self) -> dict[str, int]:
        """Every topic's number of partitions."""
        found = self._ask("GET", "/api/topics", brief="1")["topics"]
        return {topic["name"]: topic["partition_count"] for topic in found}

    def targets(self) -> dict[str, TargetTopic]:
        """Every topic with what a job needs to write to it."""
        found = self._ask("GET", "/api/topics", brief="1")["topics"]
        return {
            row["name"]: TargetTopic(row["id"], row["partition_count"], row["max_message_bytes"])
            for row in found
        }

    def bindings(self) -> list[dict[str, str]]:
        """All bindings of routing keys."""
        return cast("list[dict[str, str]]", self._ask("GET", "/api/routes")["routes"])

    def set_binding(self, kind: str, key: str, topic: str) -> None:
        """Bind a routing key to a topic."""
        self._ask("POST", "/api/routes", {"kind": kind, "key": key, "topic": topic})

    def remove_binding(self, kind: str, key: str) -> None:
        """Remove a binding."""
        self._ask("DELETE", "/api/routes", kind=kind, key=key)

    def register(self, topic: str, reader: str) -> None:
        """Register a named reader that RECLAIM waits for; creates the topic if it is missing."""
        said = {"action": "register", "topic": topic, "reader": reader, "create": True}
        self._ask("POST", "/api/readers", said)

    def advance(self, topic: str, partition: int, reader: str, offset: int) -> None:
        """Advance a reader's cursor."""
        said = {"topic": topic, "partition": partition, "reader": reader, "offset": offset}
        self._ask("POST", "/api/readers", {"action": "advance", **said})

    def positions(self, topic: str, reader: str) -> dict[int, int]:
        """A registered reader's cursors by partition."""
        found = self._ask("GET", "/api/readers", topic=topic)["readers"]
        return {row["partition"]: row["seq"] for row in found if row["reader"] == reader}

    def last_batch(self, query: str) -> int | None:
        """The number of the last batch that the query delivered; None if there is none."""
        found = self._ask("GET", "/api/deliveries", query=query)["deliveries"]
        return cast("int | None", found[query]["batch"]) if query in found else None

    def upload(self, job: str, name: str, data: bytes | bytearray) -> None:
        """Stage a file by uploading it."""
        self._ask("PUT", "/api/staging", bytes(data), job=job, name=name)

    def discard(self, job: str) -> None:
        """Delete the files that a job has staged."""
        self._ask("DELETE", "/api/staging", job=job)

    def deliver(
        self,
        query: str,
        batch: int,
        job: str,
        parts: list[Part],
        cursors: list[Cursor],
        *,
        once: bool = False,
    ) -> bool:
        """Append staged files exactly once; returns False if the batch was already delivered.

        ``once``: the query has only this batch, so the broker may forget it soon.
        """
        said = {
            "query": query,
            "batch": batch,
            "job": job,
            "parts": [part._asdict() for part in parts],
            "cursors": [cursor._asdict() for cursor in cursors],
            "once": once,
        }
        return bool(self._ask("POST", "/api/deliveries", said)["delivered"])

    def topic(self, name: str) -> dict[str, Any]:
        """A topic with its settings, partitions and segments."""
        return cast("dict[str, Any]", self._ask("GET", "/api/topics", name=name)["topics"][0])

    def cut(self, topic: str) -> None:
        """Seal the active segments of a topic now."""
        self._ask("POST", "/api/cut", {"topic": topic})

    def archive(self, topic: str) -> dict[str, Any]:
        """The bundles of a topic, and the cursors to store in its archive."""
        return self._ask("GET", "/api/archive", topic=topic)

    def record_bundle(
        self, topic: str, partition: int, bundle: dict[str, Any], *, answer_s: float
    ) -> str | None:
        """Report a bundle to the broker; returns why the broker could not verify it, or None.

        The broker reads the whole bundle before it responds, so ``answer_s`` replaces the timeout.
        """
        said = {"topic": topic, "partition": partition, "bundles": [bundle]}
        before_s, self._answer_s = self._answer_s, answer_s
        self.close()  # the next connection uses the new timeout
        try:
            return cast("str | None", self._ask("POST", "/api/archive", said)["unverified"])
        finally:
            self._answer_s = before_s
            self.close()

    def replays(self) -> list[dict[str, Any]]:
        """Every replay of dead letters."""
        return cast("list[dict[str, Any]]", self._ask("GET", "/api/replays")["replays"])

    def record_replay(self, replay: str, record: dict[str, Any]) -> None:
        """Store the progress of a replay."""
        self._ask("POST", "/api/replays", {"id": replay, "record": record})

    def reset(self, topic: str, partition: int, reader: str, offset: int) -> None:
        """Set a reader's cursor to any offset."""
        said = {"topic": topic, "partition": partition, "reader": reader, "offset": offset}
        self._ask("POST", "/api/readers", {"action": "reset", **said})

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """Send a GET request to a path of the API."""
        return self._ask("GET", path, None, **params)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST request; the broker may receive it twice."""
        return self._ask("POST", path, dict(body))

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- internal -----------------------------------------------------------------------------

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | bytes | None = None, **params: str
    ) -> dict[str, Any]:
        """Send a request and repeat it while the broker is unavailable, until the deadline."""
        deadline = time.monotonic() + self._timeout_s
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        for pause_s in _pauses():
            try:
                return exchange(self._connect(), method, path, params, data)
            except UnavailableError:
                self.close()
                is_orphan = self._parent not in {None, os.getppid()}
                if is_orphan or time.monotonic() + pause_s > deadline:
                    raise
                time.sleep(pause_s)
        raise AssertionError("pauses never end")

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            address = self._where.http or find_http(self._where.servers or "")
            self._connection = connect(address, self._answer_s)
        return self._connection


def find_http(servers: str) -> str:
    """The address of the HTTP listener, from the first Kafka server that answers."""
    for server in (each.strip() for each in servers.split(",")):
        try:
            with KafkaClient(server, timeout_s=ANSWER_S) as client:
                found = client.addresses()
        except UnavailableError:
            continue
        if "http" not in found:
            raise RequestError(
                f"the broker at {server} has no HTTP listener, which staged work needs; "
                "serve with --http"
            )
        return found["http"]
    raise UnavailableError(
        f"the broker at {servers or 'no address'} does not answer; is it running?"
    )


def _pauses() -> Iterator[float]:
    yield from _PAUSE_S
    while True:
        yield _PAUSE_S[-1]

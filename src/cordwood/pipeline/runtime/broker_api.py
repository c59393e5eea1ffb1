"""The broker as a job asks it, over HTTP: bindings, readers, topics, and the gate for staged work.

Blocking and small. Everything asked for here may be asked twice, so while the broker is away a
request is simply sent again, until a deadline. The HTTP listener is given, or found: Kafka's
DescribeConfigs tells the address it is bound to, which may be another one after a restart.

Knows no record, and nothing of Spark.
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

TIMEOUT_S: Final = 60.0  # how long a broker may be away before a job gives up
_PAUSE_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """How a broker is found: by its Kafka listener, or by its HTTP listener; picklable."""

    servers: str | None = None
    http: str | None = None

    def __str__(self) -> str:
        """As messages name it."""
        return self.http or self.servers or "nowhere"


class TargetTopic(NamedTuple):
    """A topic to write to; without an id it is created when the first batch is delivered."""

    id: str
    partitions: int
    batch_bytes_max: int


class Part(NamedTuple):
    """A staged file of whole batches for one partition, as the gate is told of it."""

    topic: str
    partition: int
    file: str
    sha256: str  # of the file: what the broker appends has it, or nothing is appended
    topic_id: str = ""  # of the topic it was staged for, if that was there


class Cursor(NamedTuple):
    """How far a reader comes with a delivery, and where it must have stood before."""

    reader: str
    topic: str
    partition: int
    start: int
    offset: int
    topic_id: str = ""  # of the topic that was read


class BrokerApi:
    """One connection to the HTTP listener, opened when first needed; one per thread."""

    def __init__(
        self,
        where: BrokerAddress,
        *,
        timeout_s: float = TIMEOUT_S,
        answer_s: float = ANSWER_S,
        for_parent: bool = False,
    ) -> None:
        """``timeout_s`` bounds how long an absent broker is waited for, ``answer_s`` one answer.

        ``for_parent``: nor is it waited for once the process that started this one is gone.
        """
        self._answer_s = answer_s
        self._where = where
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._parent = os.getppid() if for_parent else None

    # --- what jobs ask ------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What the broker is: its data directory, topics for lines and dead letters."""
        return self._ask("GET", "/api/status")

    def partition_counts(self) -> dict[str, int]:
        """Every topic's number of partitions."""
        found = self._ask("GET", "/api/topics", brief="1")["topics"]
        return {topic["name"]: topic["partition_count"] for topic in found}

    def targets(self) -> dict[str, TargetTopic]:
        """Every topic as a job that writes to it must know it."""
        found = self._ask("GET", "/api/topics", brief="1")["topics"]
        return {
            row["name"]: TargetTopic(row["id"], row["partition_count"], row["max_message_bytes"])
            for row in found
        }

    def bindings(self) -> list[dict[str, str]]:
        """Every binding of a routing key."""
        return cast("list[dict[str, str]]", self._ask("GET", "/api/routes")["routes"])

    def set_binding(self, kind: str, key: str, topic: str) -> None:
        """Bind a key."""
        self._ask("POST", "/api/routes", {"kind": kind, "key": key, "topic": topic})

    def remove_binding(self, kind: str, key: str) -> None:
        """Take a binding away."""
        self._ask("DELETE", "/api/routes", kind=kind, key=key)

    def register(self, topic: str, reader: str) -> None:
        """RECLAIM waits for this reader from now on; the topic is made if it is missing."""
        said = {"action": "register", "topic": topic, "reader": reader, "create": True}
        self._ask("POST", "/api/readers", said)

    def advance(self, topic: str, partition: int, reader: str, offset: int) -> None:
        """Move a reader's cursor on."""
        said = {"topic": topic, "partition": partition, "reader": reader, "offset": offset}
        self._ask("POST", "/api/readers", {"action": "advance", **said})

    def positions(self, topic: str, reader: str) -> dict[int, int]:
        """A registered reader's cursors by partition."""
        found = self._ask("GET", "/api/readers", topic=topic)["readers"]
        return {row["partition"]: row["seq"] for row in found if row["reader"] == reader}

    def last_batch(self, query: str) -> int | None:
        """The last batch the query delivered."""
        found = self._ask("GET", "/api/deliveries", query=query)["deliveries"]
        return cast("int | None", found[query]["batch"]) if query in found else None

    def upload(self, job: str, name: str, data: bytes | bytearray) -> None:
        """Stage a file through the listener."""
        self._ask("PUT", "/api/staging", bytes(data), job=job, name=name)

    def discard(self, job: str) -> None:
        """Forget what a job staged."""
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
        """Have staged files appended, once; False when that batch was delivered before.

        ``once``: the query has this one batch, so the broker need not remember it for long.
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
        """What of a topic is in bundles, and the cursors that belong in an archive."""
        return self._ask("GET", "/api/archive", topic=topic)

    def record_bundle(
        self, topic: str, partition: int, bundle: dict[str, Any], *, answer_s: float
    ) -> str | None:
        """Tell of a bundle; why the broker could not read it itself, if it could not.

        The broker reads it before it answers, which may take long.
        """
        said = {"topic": topic, "partition": partition, "bundles": [bundle]}
        before_s, self._answer_s = self._answer_s, answer_s
        self.close()  # the next connection waits for so long
        try:
            return cast("str | None", self._ask("POST", "/api/archive", said)["unverified"])
        finally:
            self._answer_s = before_s
            self.close()

    def replays(self) -> list[dict[str, Any]]:
        """Every replay of dead letters."""
        return cast("list[dict[str, Any]]", self._ask("GET", "/api/replays")["replays"])

    def record_replay(self, replay: str, record: dict[str, Any]) -> None:
        """What a replay has done so far."""
        self._ask("POST", "/api/replays", {"id": replay, "record": record})

    def reset(self, topic: str, partition: int, reader: str, offset: int) -> None:
        """Put a reader's cursor anywhere."""
        said = {"topic": topic, "partition": partition, "reader": reader, "offset": offset}
        self._ask("POST", "/api/readers", {"action": "reset", **said})

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """What a path of the API answers."""
        return self._ask("GET", path, None, **params)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Do what the body says; it may come to the broker twice."""
        return self._ask("POST", path, dict(body))

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- within -------------------------------------------------------------------------------

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | bytes | None = None, **params: str
    ) -> dict[str, Any]:
        """The answer, however often it takes while the broker is away."""
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
    """The HTTP listener of the first Kafka server that answers."""
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

"""A blocking Kafka client on our own codec, limited to what the command line needs.

It uses one connection to one broker and sends one request at a time. Applications should use a real
Kafka client; this one exists so that the command line needs none installed. Error codes are raised
as our own errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, cast

from cordwood.client.effects import parse_address
from cordwood.client.kafka_connection import ClientConnection, Reply
from cordwood.codes import Code
from cordwood.config import MIB
from cordwood.errors import (
    CordwoodError,
    ProtocolError,
    RequestError,
    UnavailableError,
    UnknownReader,
    UnknownTopic,
)
from cordwood.model import TopicPartition
from cordwood.protocol.kafka.messages.commits import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from cordwood.protocol.kafka.messages.configs import (
    ConfigChange,
    ConfigChanges,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from cordwood.protocol.kafka.messages.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from cordwood.protocol.kafka.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from cordwood.protocol.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from cordwood.protocol.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from cordwood.protocol.kafka.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from cordwood.protocol.kafka.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopic,
    CreateTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    GrowTopic,
)

EARLIEST: Final = -2
LATEST: Final = -1
ONE_REPLICA: Final = 1
_TOPIC, _BROKER = 2, 4  # kinds of config resources
_SET, _DELETE = 0, 1  # kinds of config changes
_TIMEOUT_MS: Final = 30_000
_FETCH_BYTES: Final = 4 * MIB
_VERSIONS: Final = {OffsetFetchRequest: 7, ListGroupsRequest: 4, FetchRequest: 11}


class Committed(NamedTuple):
    """A group's cursor on a partition."""

    partition: TopicPartition
    offset: int


class KafkaClient:
    """A connection to one broker, opened on first use."""

    def __init__(self, bootstrap: str, *, timeout_s: float = 30.0) -> None:
        self._address = parse_address(bootstrap)
        self._connection = ClientConnection(
            self._address, client_id="cordwood", timeout_s=timeout_s, versions=_VERSIONS
        )

    # --- topics ---------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> list[MetadataTopic]:
        """Return all topics, or those named; never creates one. Raises if a name does not exist."""
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(wanted, allow_auto_topic_creation=False)
        topics = self.ask(request, MetadataResponse).topics
        for topic in topics:
            if topic.error_code == UnknownTopic.code:
                raise UnknownTopic(f"there is no topic {topic.name}; `cordwood topic list` has all")
            _check(topic.error_code, f"topic {topic.name}")
        return sorted(topics, key=lambda topic: topic.name or "")

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic, in order."""
        found = self.topics([topic])[0]
        return sorted(TopicPartition(topic, part.partition) for part in found.partitions)

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic."""
        settings = [CreateTopicConfig(key, value) for key, value in config.items()]
        topic = CreateTopic(name, partitions, ONE_REPLICA, configs=settings)
        reply = self.ask(CreateTopicsRequest([topic], _TIMEOUT_MS), CreateTopicsResponse)
        for created in reply.topics:
            _check(created.error_code, f"topic {name}", created.error_message)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        request = DeleteTopicsRequest([DeleteTopic(name)], timeout_ms=_TIMEOUT_MS)
        for deleted in self.ask(request, DeleteTopicsResponse).topics:
            _check(deleted.error_code, f"topic {name}", deleted.error_message)

    def add_partitions(self, name: str, count: int) -> None:
        """Raise the partition count to ``count``."""
        request = CreatePartitionsRequest([GrowTopic(name, count)], _TIMEOUT_MS, False)
        for grown in self.ask(request, CreatePartitionsResponse).results:
            _check(grown.error_code, f"topic {name}", grown.error_message)

    def topic_config(self, name: str) -> Sequence[DescribedConfig]:
        """Every setting of a topic, with the source of its value."""
        return self._configs(_TOPIC, name)

    def broker_config(self) -> Sequence[DescribedConfig]:
        """Every setting of the broker."""
        return self._configs(_BROKER, "1")

    def addresses(self) -> dict[str, str]:
        """Return the addresses of the broker's other listeners, from its settings.

        A listener bound to every address is reached at the host name that this client uses.
        """
        shown = {config.name: config.value or "" for config in self.broker_config()}
        listeners = ("http", "control", "ingress")
        is_on = {listener: shown.get(listener) not in {None, "", "off"} for listener in listeners}
        found = {
            listener: shown[listener].split(",")[0] for listener in listeners if is_on[listener]
        }
        return {listener: self._reachable(address) for listener, address in found.items()}

    def _reachable(self, address: str) -> str:
        host, port = parse_address(address)
        if host not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
            return address
        mine = self._address.host
        return f"[{mine}]:{port}" if ":" in mine else f"{mine}:{port}"

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change settings, all or none; None restores the default."""
        wanted = [
            ConfigChange(key, _DELETE if value is None else _SET, value)
            for key, value in changes.items()
        ]
        request = IncrementalAlterConfigsRequest([ConfigChanges(_TOPIC, name, wanted)], False)
        for altered in self.ask(request, IncrementalAlterConfigsResponse).results:
            _check(altered.error_code, f"topic {name}", altered.error_message)

    def _configs(self, kind: int, name: str) -> Sequence[DescribedConfig]:
        resource = DescribeConfigsResource(kind, name, None)
        reply = self.ask(DescribeConfigsRequest([resource]), DescribeConfigsResponse)
        for described in reply.results:
            _check(described.error_code, name, described.error_message)
            return described.configs
        raise ProtocolError(f"the broker did not describe {name}")

    # --- records --------------------------------------------------------------------------

    def offset(self, tp: TopicPartition, at: int) -> int | None:
        """The offset for ``EARLIEST``, ``LATEST`` or a time in ms; None if no record is so late."""
        wanted = ListOffsetsTopic(tp.topic, [ListOffsetsPartition(tp.partition, timestamp_ms=at)])
        reply = self.ask(ListOffsetsRequest(-1, topics=[wanted]), ListOffsetsResponse)
        part = reply.topics[0].partitions[0]
        _check(part.error_code, f"partition {tp}")
        return None if part.offset < 0 else part.offset

    def fetch(
        self, wanted: Mapping[TopicPartition, int], *, max_wait_ms: int, committed: bool = False
    ) -> dict[TopicPartition, FetchedPartition]:
        """Fetch complete batches from each offset; waits for data, at most ``max_wait_ms``."""
        topics: dict[str, list[FetchPartition]] = {}
        for tp, offset in wanted.items():
            part = FetchPartition(
                tp.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
            )
            topics.setdefault(tp.topic, []).append(part)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=4 * _FETCH_BYTES,
            isolation_level=int(committed),
            topics=[FetchTopic(name, parts) for name, parts in topics.items()],
        )
        reply = self.ask(request, FetchResponse)
        found = {
            TopicPartition(topic.name, part.partition): part
            for topic in reply.topics
            for part in topic.partitions
        }
        for tp, fetched in found.items():
            _check(fetched.error_code, f"partition {tp} at offset {wanted[tp]}")
        return found

    def produce(self, tp: TopicPartition, batch: bytes, *, acks: int = -1) -> int:
        """Append a batch, durable on return; return its first offset.

        With ``acks`` 0 there is no reply: it returns -1 after the batch is sent.
        """
        topic = ProduceTopic(tp.topic, [ProducePartition(tp.partition, memoryview(batch))])
        request = ProduceRequest(None, acks, _TIMEOUT_MS, [topic])
        if acks == 0:
            self._send(request)
            return -1
        reply = self.ask(request, ProduceResponse)
        part = reply.topics[0].partitions[0]
        _check(part.error_code, f"partition {tp}", part.error_message)
        return part.base_offset

    # --- groups ---------------------------------------------------------------------------

    def groups(self) -> Sequence[ListedGroup]:
        """Every consumer group."""
        reply = self.ask(ListGroupsRequest(), ListGroupsResponse)
        _check(reply.error_code, "groups")
        return sorted(reply.groups, key=lambda group: group.group_id)

    def describe_group(self, group: str) -> DescribedGroup:
        """A group's state and members."""
        described = self.ask(DescribeGroupsRequest([group]), DescribeGroupsResponse).groups[0]
        _check(described.error_code, f"group {group}")
        if described.state == "Dead":  # Kafka's answer for an unknown group
            raise UnknownReader(f"there is no group {group}; `cordwood group list` has all")
        return described

    def committed(self, group: str) -> list[Committed]:
        """Every cursor of a group."""
        reply = self.ask(OffsetFetchRequest(group, None), OffsetFetchResponse)
        _check(reply.error_code, f"group {group}")
        found = [
            Committed(TopicPartition(topic.name, part.partition), part.offset)
            for topic in reply.topics
            for part in topic.partitions
        ]
        return sorted(found)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Move a group's cursors; the group must have no members."""
        topics: dict[str, list[OffsetCommitPartition]] = {}
        for tp, offset in offsets.items():
            topics.setdefault(tp.topic, []).append(OffsetCommitPartition(tp.partition, offset))
        wanted = [OffsetCommitTopic(name, parts) for name, parts in topics.items()]
        reply = self.ask(OffsetCommitRequest(group, topics=wanted), OffsetCommitResponse)
        for topic in reply.topics:
            for part in topic.partitions:
                _check(part.error_code, f"group {group} on {topic.name}-{part.partition}")

    def delete_group(self, group: str) -> None:
        """Delete a group and its cursors."""
        for deleted in self.ask(DeleteGroupsRequest([group]), DeleteGroupsResponse).results:
            _check(deleted.error_code, f"group {group}")

    # --- connection -----------------------------------------------------------------------

    def ask(self, request: tuple[Any, ...], reply: type[Reply]) -> Reply:
        """Send one request and read its reply; raise ``UnavailableError`` if there is none."""
        try:
            return self._connection.ask(request, reply)
        except OSError as error:
            raise self._lost(error) from None

    def _send(self, request: tuple[Any, ...]) -> None:
        """Send a request that has no reply."""
        try:
            self._connection.send(request)
        except OSError as error:
            raise self._lost(error) from None

    def _lost(self, error: OSError) -> UnavailableError:
        host, port = self._address
        return UnavailableError(
            f"no broker answers at {host}:{port} ({error.strerror or error}); start one with "
            "`cordwood serve`, or name another with --broker HOST:PORT"
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        """For ``with``; connects on first use."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def _check(code: int, what: str, said: str | None = None) -> None:
    """Raise the error for a Kafka error code, with the broker's message if there is one."""
    if code != Code.NONE:
        kind = _by_code().get(code, RequestError)
        raise kind(said or f"{what}: {Code(code).name.lower().replace('_', ' ')}")


def _by_code() -> dict[int, type[CordwoodError]]:
    """Map Kafka error codes to the first of our request errors that has the code."""
    found: dict[int, type[CordwoodError]] = {}
    for kind in cast(list[type[CordwoodError]], RequestError.__subclasses__()):
        found.setdefault(kind.code, kind)
    return found

"""A blocking Kafka client on our own codec, limited to what the command line and Spark need.

It uses one connection to one broker and sends one request at a time. Applications should use a real
Kafka client; this one exists so that ours needs none installed. Error codes are raised as our own
errors; only ``fetch_each``, ``offset_each`` and ``commit_each`` return them, one per partition, for
a caller that looks for another leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

from cordwood.address import Address, parse_address
from cordwood.client.broker_listeners import ListenerAddress, choose_listener
from cordwood.client.kafka_connection import ClientConnection, Reply, Tls
from cordwood.codes import Code
from cordwood.config import MIB
from cordwood.errors import (
    CordwoodError,
    ProtocolError,
    RequestError,
    UnavailableError,
    UnknownReader,
    UnknownTopic,
    error_classes,
)
from cordwood.model import TopicPartition
from cordwood.protocol.kafka.messages.commits import (
    CommittedPartition,
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
from cordwood.protocol.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
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
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
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
    ListedPartitionOffset,
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

T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1
ONE_REPLICA: Final = 1
_TOPIC, _BROKER = 2, 4  # kinds of config resources
_SET, _DELETE = 0, 1  # kinds of config changes
_TIMEOUT_MS: Final = 30_000
_FETCH_BYTES: Final = 4 * MIB
_VERSIONS: Final = {  # old enough for every broker, new enough for the fields used here
    MetadataRequest: 10,  # the first version with topic ids
    ListOffsetsRequest: 5,
    FetchRequest: 11,
    ProduceRequest: 9,
    OffsetCommitRequest: 7,
    OffsetFetchRequest: 7,
    FindCoordinatorRequest: 2,
    ListGroupsRequest: 4,
    DescribeGroupsRequest: 5,
}
_ADVICE: Final = "start one with `cordwood serve`, or name another with --broker HOST:PORT"


class GroupStatus(NamedTuple):
    """The state of a group and the number of its members."""

    state: str
    members: int


class Committed(NamedTuple):
    """A group's cursor on a partition."""

    partition: TopicPartition
    offset: int


class KafkaClient:
    """A connection to one broker, opened on first use."""

    def __init__(
        self,
        bootstrap: str | Address,
        *,
        timeout_s: float = 30.0,
        client_id: str = "cordwood",
        advice: str = _ADVICE,
        tls: Tls = None,
    ) -> None:
        """``advice`` ends the error of a broker that does not answer; ``tls``: connect with TLS."""
        self._address = parse_address(bootstrap)
        self._advice = advice
        self._uses_tls = tls is not None
        self._connection = ClientConnection(
            self._address, client_id=client_id, timeout_s=timeout_s, versions=_VERSIONS, tls=tls
        )

    # --- topics ---------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> list[MetadataTopic]:
        """Return all topics, or those named; never creates one. Raises if a name does not exist."""
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(wanted, allow_auto_topic_creation=False)
        topics = self.ask(request, MetadataResponse).topics
        for topic in topics:
            if topic.error_code == UnknownTopic.code:
                raise UnknownTopic(
                    f"there is no topic {topic.name}; `cordwood topic list` shows all topics"
                )
            _check(topic.error_code, f"topic {topic.name}")
        return sorted(topics, key=lambda topic: topic.name or "")

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic, in order."""
        described = self.topics([topic])[0]
        return sorted(TopicPartition(topic, part.partition) for part in described.partitions)

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

    def broker_config(self) -> Sequence[DescribedConfig]:
        """Every setting of the broker."""
        resource = DescribeConfigsResource(_BROKER, "1", None)
        reply = self.ask(DescribeConfigsRequest([resource]), DescribeConfigsResponse)
        for described in reply.results:
            _check(described.error_code, "the broker's settings", described.error_message)
            return described.configs
        raise ProtocolError("the broker did not describe its settings")

    def listener(self, name: str) -> ListenerAddress:
        """Return where this client reaches the broker's ``http``, ``control`` or ``ingress``."""
        settings = {config.name: config.value or "" for config in self.broker_config()}
        return choose_listener(name, settings, self._address, uses_tls=self._uses_tls)

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change settings, all or none; None restores the default."""
        wanted = [
            ConfigChange(key, _DELETE if value is None else _SET, value)
            for key, value in changes.items()
        ]
        request = IncrementalAlterConfigsRequest([ConfigChanges(_TOPIC, name, wanted)], False)
        for altered in self.ask(request, IncrementalAlterConfigsResponse).results:
            _check(altered.error_code, f"topic {name}", altered.error_message)

    # --- records --------------------------------------------------------------------------

    def offset(self, tp: TopicPartition, at: int) -> int | None:
        """The offset for ``EARLIEST``, ``LATEST`` or a time in ms; None if no record is so late."""
        part = self.offset_each({tp: at})[tp]
        _check(part.error_code, f"partition {tp}")
        return None if part.offset < 0 else part.offset

    def offset_each(
        self, times: Mapping[TopicPartition, int], *, committed: bool = False
    ) -> dict[TopicPartition, ListedPartitionOffset]:
        """The offsets for ``EARLIEST``, ``LATEST`` or times in ms, each with its error code."""
        asked = _by_topic(
            (tp, ListOffsetsPartition(tp.partition, timestamp_ms=at)) for tp, at in times.items()
        )
        wanted = [ListOffsetsTopic(name, parts) for name, parts in asked.items()]
        request = ListOffsetsRequest(-1, int(committed), wanted)
        return _by_partition(self.ask(request, ListOffsetsResponse).topics)

    def fetch(
        self, wanted: Mapping[TopicPartition, int], *, max_wait_ms: int, committed: bool = False
    ) -> dict[TopicPartition, FetchedPartition]:
        """Fetch complete batches from each offset; waits for data, at most ``max_wait_ms``."""
        fetched = self.fetch_each(
            wanted, max_wait_ms=max_wait_ms, committed=committed, partition_bytes=_FETCH_BYTES
        )
        for tp, part in fetched.items():
            _check(part.error_code, f"partition {tp} at offset {wanted[tp]}")
        return fetched

    def fetch_each(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        max_wait_ms: int,
        committed: bool,
        partition_bytes: int,
    ) -> dict[TopicPartition, FetchedPartition]:
        """Fetch like ``fetch``, but return error codes."""
        asked = _by_topic(
            (
                tp,
                FetchPartition(
                    tp.partition, fetch_offset=offset, partition_max_bytes=partition_bytes
                ),
            )
            for tp, offset in wanted.items()
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=4 * partition_bytes,
            isolation_level=int(committed),
            topics=[FetchTopic(name, partitions=parts) for name, parts in asked.items()],
        )
        return _by_partition(self.ask(request, FetchResponse).topics)

    def produce(self, tp: TopicPartition, batch: bytes, *, acks: int = -1) -> int:
        """Append a batch, durable on return; return its first offset.

        With ``acks`` 0 there is no reply: it returns -1 after the batch is sent.
        """
        topic = ProduceTopic(
            tp.topic, partitions=[ProducePartition(tp.partition, memoryview(batch))]
        )
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

    def describe_group(self, group: str) -> GroupStatus:
        """A group's state and members, whichever protocol they speak."""
        classic = self.ask(DescribeGroupsRequest([group]), DescribeGroupsResponse).groups[0]
        _check(classic.error_code, f"group {group}")
        if classic.state != "Dead":  # Kafka's answer for a group that is unknown, or not classic
            return GroupStatus(classic.state, len(classic.members))
        if all(each.group_id != group for each in self.groups()):
            raise UnknownReader(
                f"there is no group {group}; `cordwood group list` shows all groups"
            )
        request = ConsumerGroupDescribeRequest([group])
        described = self.ask(request, ConsumerGroupDescribeResponse).groups[0]
        _check(described.error_code, f"group {group}", described.error_message)
        return GroupStatus(described.group_state, len(described.members))

    def committed(self, group: str) -> list[Committed]:
        """Every cursor of a group."""
        reply = self.ask(OffsetFetchRequest(group, None), OffsetFetchResponse)
        _check(reply.error_code, f"group {group}")
        return sorted(
            Committed(tp, part.offset) for tp, part in _by_partition(reply.topics).items()
        )

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Move a group's cursors; the group must have no members."""
        for tp, part in self.commit_each(group, offsets).items():
            _check(part.error_code, f"group {group} on {tp}")

    def commit_each(
        self, group: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, CommittedPartition]:
        """Move a group's cursors like ``commit``, but return error codes."""
        asked = _by_topic(
            (tp, OffsetCommitPartition(tp.partition, offset)) for tp, offset in offsets.items()
        )
        wanted = [OffsetCommitTopic(name, partitions=parts) for name, parts in asked.items()]
        reply = self.ask(OffsetCommitRequest(group, topics=wanted), OffsetCommitResponse)
        return _by_partition(reply.topics)

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
            f"no broker replies at {host}:{port} ({error.strerror or error}); {self._advice}"
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


def _by_topic(parts: Iterable[tuple[TopicPartition, T]]) -> dict[str, list[T]]:
    """Collect the partitions of a request by topic, in order."""
    topics: dict[str, list[T]] = {}
    for tp, part in parts:
        topics.setdefault(tp.topic, []).append(part)
    return topics


def _by_partition(topics: Iterable[Any]) -> dict[TopicPartition, Any]:
    """The partitions of a reply; each topic has a name and partitions, each with its number."""
    return {
        TopicPartition(topic.name, part.partition): part
        for topic in topics
        for part in topic.partitions
    }


def _check(code: int, what: str, message: str | None = None) -> None:
    """Raise the error for a Kafka error code, with the broker's message if there is one."""
    if code != Code.NONE:
        kind = _by_code().get(code, RequestError)
        raise kind(message or f"{what}: {Code(code).name.lower().replace('_', ' ')}")


def _by_code() -> dict[int, type[CordwoodError]]:
    """Map Kafka error codes to the first of our request errors that has the code."""
    kinds = [kind for kind in error_classes() if RequestError in kind.__bases__]
    return {kind.code: kind for kind in reversed(kinds)}

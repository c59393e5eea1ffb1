"""Partitions, their error codes and their leaders: what Kafka's schemas repeat in many messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.protocol.kafka.primitives import Int16, Int32, Str


class TopicPartitions(NamedTuple):
    """Some partitions of one topic."""

    name: Str
    partitions: Sequence[Int32]


class PartitionResult(NamedTuple):
    """The error code of one partition; 0 is success."""

    partition: Int32
    error_code: Int16


class TopicResults(NamedTuple):
    """The error codes of some partitions of one topic."""

    name: Str
    partitions: Sequence[PartitionResult]


class ExplainedPartitionResult(NamedTuple):
    """The error code of one partition, with a message."""

    partition: Int32
    error_code: Int16
    error_message: Str | None = None


class ExplainedTopicResults(NamedTuple):
    """The error codes of some partitions of one topic, with messages."""

    name: Str
    partitions: Sequence[ExplainedPartitionResult]


class CurrentLeader(NamedTuple):
    """The current leader of a partition, sent with a NOT_LEADER error."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class LeaderNode(NamedTuple):
    """The address of a leader named in a response."""

    node_id: Int32
    host: Str
    port: Int32
    rack: Str | None = None

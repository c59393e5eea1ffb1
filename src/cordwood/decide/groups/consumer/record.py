"""What of a KIP-848 group survives a restart, as plain JSON values. Pure.

The group and each of its members have a record of their own, so that a heartbeat stores one member
and not the whole group. Deadlines are not stored: a restart begins every session anew.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from cordwood.decide.groups.consumer.members import ClassicProtocol, ConsumerMember
from cordwood.decide.groups.consumer.messages import Assignment, SubscribedTopic, TopicIdPartition
from cordwood.decide.groups.consumer.reconciliation import CurrentAssignment, MemberState


def encode_group_record(
    epoch: int,
    assignment_epoch: int,
    topics: Mapping[str, SubscribedTopic],
    matched: Mapping[str, frozenset[str]],
) -> dict[str, Any]:
    """The group's record: epochs, and the topics for which the target was computed."""
    return {
        "epoch": epoch,
        "assignment_epoch": assignment_epoch,
        "topics": sorted([name, topic_id, count] for topic_id, name, count in topics.values()),
        "matched": {pattern: sorted(names) for pattern, names in matched.items()},
    }


def parse_topics(record: Mapping[str, Any]) -> dict[str, SubscribedTopic]:
    """The topics in a group's record."""
    return {
        name: SubscribedTopic(topic_id, name, count) for name, topic_id, count in record["topics"]
    }


def parse_matched(record: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The matched topics in a group's record, by pattern."""
    return {pattern: frozenset(names) for pattern, names in record["matched"].items()}


def encode_member_record(member: ConsumerMember) -> dict[str, Any]:
    """The member's record."""
    return {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "topics": sorted(member.topics),
        "pattern": member.pattern,
        "assignor": member.assignor,
        "classic": _encode_classic(member.classic),
        "target": _encode_assignment(member.target),
        "epoch": member.current.epoch,
        "previous_epoch": member.current.previous_epoch,
        "state": str(member.current.state),
        "assigned": _encode_assignment(member.current.assigned),
        "revoking": _encode_assignment(member.current.revoking),
    }


def parse_member_record(member_id: str, record: Mapping[str, Any]) -> ConsumerMember:
    """The inverse of ``encode_member_record``."""
    return ConsumerMember(
        member_id=member_id,
        instance_id=record["instance_id"],
        rack_id=record["rack_id"],
        client_id=record["client_id"],
        client_host=record["client_host"],
        rebalance_timeout_ms=record["rebalance_timeout_ms"],
        topics=frozenset(record["topics"]),
        pattern=record["pattern"],
        assignor=record["assignor"],
        classic=_parse_classic(record["classic"]),
        target=_parse_assignment(record["target"]),
        current=CurrentAssignment(
            record["epoch"],
            record["previous_epoch"],
            MemberState(record["state"]),
            _parse_assignment(record["assigned"]),
            _parse_assignment(record["revoking"]),
        ),
    )


def _encode_assignment(assignment: Assignment) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic_id, partition in sorted(assignment):
        by_topic.setdefault(topic_id, []).append(partition)
    return by_topic


def _parse_assignment(values: Mapping[str, list[int]]) -> Assignment:
    return frozenset(
        TopicIdPartition(topic_id, number)
        for topic_id, numbers in values.items()
        for number in numbers
    )


def _encode_classic(classic: ClassicProtocol | None) -> list[Any] | None:
    if classic is None:
        return None
    protocols = [[name, b64encode(metadata).decode()] for name, metadata in classic.protocols]
    return [classic.session_timeout_ms, protocols]


def _parse_classic(values: list[Any] | None) -> ClassicProtocol | None:
    if values is None:
        return None
    session_timeout_ms, protocols = values
    return ClassicProtocol(
        session_timeout_ms, tuple((name, b64decode(metadata)) for name, metadata in protocols)
    )

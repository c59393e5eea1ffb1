"""Placement requests: leader elections, reassignments and log directories, for a single broker.

One broker leads every partition and has one data directory. So an election is never needed, a
reassignment to this broker succeeds without a change, and any other is refused with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec

from cordwood.broker.kafka.session import Session
from cordwood.broker.kafka.time_slices import RequestSlices
from cordwood.broker.topics import NODE_ID, TopicService
from cordwood.codes import Code
from cordwood.errors import CordwoodError, InvalidAssignment, RequestError
from cordwood.log.lifecycle.store import Store
from cordwood.protocol.kafka.messages.placement import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    ElectedPartition,
    ElectedTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    MovedPartition,
    MovedTopic,
    ReassignedPartition,
    ReassignedTopic,
)

P = ParamSpec("P")


class ElectionNotNeeded(RequestError):
    """The partition already has its leader."""

    code, name = Code.ELECTION_NOT_NEEDED, "ELECTION_NOT_NEEDED"


class NoReassignment(RequestError):
    """There is no reassignment to cancel."""

    code, name = Code.NO_REASSIGNMENT_IN_PROGRESS, "NO_REASSIGNMENT_IN_PROGRESS"


class LogDirNotFound(RequestError):
    """The broker has no such log directory."""

    code, name = Code.LOG_DIR_NOT_FOUND, "LOG_DIR_NOT_FOUND"


class KafkaPlacement:
    """The handlers of four APIs."""

    def __init__(self, store: Store, topics: TopicService) -> None:
        self._topics = topics
        self._path = str(store.data.absolute())

    async def elect_leaders(
        self, request: ElectLeadersRequest, _version: int, _session: Session
    ) -> ElectLeadersResponse:
        """Answer that no election is needed; asked for all partitions, list none, as Kafka does."""
        turns = RequestSlices()
        return ElectLeadersResponse(
            topics=[
                ElectedTopic(
                    topic.name,
                    [
                        ElectedPartition(number, *self._try(topic.name, number, _elect))
                        async for number in turns.of(topic.partitions)
                    ],
                )
                async for topic in turns.of(request.topics or ())
            ]
        )

    async def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, _version: int, _session: Session
    ) -> AlterPartitionReassignmentsResponse:
        """Accept reassignments to this broker, which change nothing; refuse all others."""
        turns = RequestSlices()
        return AlterPartitionReassignmentsResponse(
            topics=[
                ReassignedTopic(
                    topic.name,
                    [
                        ReassignedPartition(
                            part.partition,
                            *self._try(topic.name, part.partition, _reassign, part.replicas),
                        )
                        async for part in turns.of(topic.partitions)
                    ],
                )
                async for topic in turns.of(request.topics)
            ]
        )

    async def list_partition_reassignments(
        self, _request: ListPartitionReassignmentsRequest, _version: int, _session: Session
    ) -> ListPartitionReassignmentsResponse:
        """Return an empty list: no reassignment is ever in progress."""
        return ListPartitionReassignmentsResponse()

    async def alter_replica_log_dirs(
        self, request: AlterReplicaLogDirsRequest, _version: int, _session: Session
    ) -> AlterReplicaLogDirsResponse:
        """Accept moves to the data directory, which change nothing; refuse all others."""
        turns = RequestSlices()
        return AlterReplicaLogDirsResponse(
            results=[
                MovedTopic(
                    topic.name,
                    [
                        MovedPartition(
                            number, self._try(topic.name, number, self._move, to.path)[0]
                        )
                        async for number in turns.of(topic.partitions)
                    ],
                )
                for to in request.dirs
                async for topic in turns.of(to.topics)
            ]
        )

    def _move(self, path: str) -> None:
        if path != self._path:
            raise LogDirNotFound(f"this broker keeps its logs in {self._path} and nowhere else")

    def _try(
        self, topic: str, number: int, change: Callable[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[int, str | None]:
        """Run a change for one partition; returns code and message."""
        try:
            self._topics.get(topic).partition(number)
            change(*args, **kwargs)
        except CordwoodError as error:
            return error.code, str(error)
        return Code.NONE, None


def _elect() -> None:
    raise ElectionNotNeeded(f"broker {NODE_ID} leads it, the only one there is")


def _reassign(replicas: Sequence[int] | None) -> None:
    if replicas is None:
        raise NoReassignment("no reassignment is under way, so none can be ended")
    if list(replicas) != [NODE_ID]:
        raise InvalidAssignment(f"brokers {list(replicas)} asked for; the only one is {NODE_ID}")

"""Placement requests: leader elections, reassignments and log directories, for a single broker.

One broker leads every partition and has one data directory. So an election is never needed, a
reassignment to this broker succeeds without a change, and any other is refused with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec

from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.codes import Code
from cordwood.errors import CordwoodError, RequestError
from cordwood.log.lifecycle.store import Store
from cordwood.protocol.kafka.messages.partitions import (
    ExplainedPartitionResult,
    ExplainedTopicResults,
    PartitionResult,
    TopicResults,
)
from cordwood.protocol.kafka.messages.placement import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignPartition,
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

    def __init__(self, store: Store, topics: TopicService, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._topics = topics
        self._path = str(store.data.absolute())

    async def elect_leaders(
        self, request: ElectLeadersRequest, _version: int, _session: Session
    ) -> ElectLeadersResponse:
        """Answer that no election is needed; asked for all partitions, list none, as Kafka does."""

        def elect(topic: str, number: int) -> ExplainedPartitionResult:
            return ExplainedPartitionResult(number, *self._try(topic, number, self._elect))

        topics = await RequestSlices().map_topics(
            request.topics or (), ExplainedTopicResults, elect
        )
        return ElectLeadersResponse(topics=topics)

    async def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, _version: int, _session: Session
    ) -> AlterPartitionReassignmentsResponse:
        """Accept reassignments to this broker, which change nothing; refuse all others."""

        def reassign(topic: str, part: ReassignPartition) -> ExplainedPartitionResult:
            outcome = self._try(topic, part.partition, self._reassign, part.replicas)
            return ExplainedPartitionResult(part.partition, *outcome)

        topics = await RequestSlices().map_topics(request.topics, ExplainedTopicResults, reassign)
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, topics=topics
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
        results: list[TopicResults] = []
        for to in request.dirs:

            def move(topic: str, number: int, path: str = to.path) -> PartitionResult:
                return PartitionResult(number, self._try(topic, number, self._move, path)[0])

            results += await turns.map_topics(to.topics, TopicResults, move)
        return AlterReplicaLogDirsResponse(results=results)

    def _move(self, path: str) -> None:
        if path != self._path:
            raise LogDirNotFound(f"this broker's only log directory is {self._path}")

    def _elect(self) -> None:
        raise ElectionNotNeeded(f"broker {self._cluster.node_id} already leads the partition")

    def _reassign(self, replicas: Sequence[int] | None) -> None:
        if replicas is None:
            raise NoReassignment("there is no reassignment to cancel")
        self._cluster.check_assigned([replicas])

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

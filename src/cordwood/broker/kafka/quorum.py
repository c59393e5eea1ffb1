"""DescribeQuorum: only this broker stores the metadata, so it is the only voter, and leads."""

from __future__ import annotations

import base64
from typing import Final
from uuid import UUID

from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.session import Session
from cordwood.clock import Clock
from cordwood.codes import Code
from cordwood.metadata.front import AsyncMetadata
from cordwood.protocol.kafka.messages.quorum import (
    DescribedQuorumPartition,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumReplica,
)

METADATA_TOPIC: Final = "__cluster_metadata"  # as Kafka names it; it is no topic of the log
_LEADER_EPOCH: Final = 0  # no leader is ever elected


class KafkaQuorum:
    """The handler of one API."""

    def __init__(
        self, cluster: ClusterView, metadata: AsyncMetadata, clock: Clock, data_id: str
    ) -> None:
        """``data_id`` is the permanent id of the data directory (``log.format.identity``)."""
        self._cluster = cluster
        self._metadata = metadata
        self._clock = clock
        self._directory_id = UUID(bytes=base64.urlsafe_b64decode(data_id + "=="))

    async def describe_quorum(
        self, request: DescribeQuorumRequest, _version: int, session: Session
    ) -> DescribeQuorumResponse:
        """Describe the one voter; the end of its log is the revision of the metadata store."""
        revision = await self._metadata.run(self._metadata.cluster.revision)
        wanted = {
            (topic.name, each.partition) for topic in request.topics for each in topic.partitions
        }
        if wanted != {(METADATA_TOPIC, 0)}:
            return DescribeQuorumResponse(
                error_code=Code.INVALID_REQUEST,
                error_message=f"only partition 0 of {METADATA_TOPIC} has a quorum",
            )
        voter = QuorumReplica(
            self._cluster.controller_id,
            self._directory_id,
            log_end_offset=revision,
            last_caught_up_ms=self._clock.now_ms(),
        )
        partition = DescribedQuorumPartition(
            0,
            Code.NONE,
            leader_id=self._cluster.controller_id,
            leader_epoch=_LEADER_EPOCH,
            high_watermark=revision,
            current_voters=[voter],
        )
        return DescribeQuorumResponse(
            topics=[DescribedQuorumTopic(METADATA_TOPIC, [partition])],
            nodes=[
                QuorumNode(
                    node.node_id, [QuorumListener(session.listener.upper(), node.host, node.port)]
                )
                for node in self._cluster.endpoints(session)
            ],
        )

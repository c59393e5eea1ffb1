"""What this node knows of its cluster: the nodes, and who leads and stores each partition.

Every answer that names a node asks this view; nothing else knows a node id. The cluster has one
node today: it leads and stores every partition, coordinates every group and transactional id, and
is the controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cordwood.broker.session import Session
from cordwood.errors import InvalidAssignment, PartitionOffline
from cordwood.log.lifecycle.live_topics import LiveTopic

NO_NODE: Final = -1
NO_EPOCH: Final = -1


class Endpoint(NamedTuple):
    """A node and the address by which a peer reaches it on its listener."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


NO_ENDPOINT: Final = Endpoint(NO_NODE, "", -1)


class Placement(NamedTuple):
    """The nodes of one partition, by id; without a leader its partition is offline."""

    leader_id: int
    leader_epoch: int
    replicas: Sequence[int]
    in_sync_replicas: Sequence[int]
    offline_replicas: Sequence[int]

    @property
    def is_offline(self) -> bool:
        """Whether no node leads the partition."""
        return self.leader_id == NO_NODE


class ClusterView:
    """A cluster of one node."""

    replication_factor: Final = 1  # copies of each partition

    def __init__(self, cluster_id: str, node_id: int = 1) -> None:
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.node_ids: Sequence[int] = (node_id,)

    @property
    def controller_id(self) -> int:
        """The node that changes the cluster's metadata."""
        return self.node_id

    def endpoints(self, session: Session) -> list[Endpoint]:
        """Return where the peer of a session reaches each node, on the listener it uses."""
        return [Endpoint(self.node_id, session.host, session.port)]

    def coordinator(self, _key: str, session: Session) -> Endpoint:
        """Return the node that coordinates a group or transactional id."""
        return self.endpoints(session)[0]

    def placement(self, topic: LiveTopic, number: int) -> Placement:
        """Return who leads and stores a partition of a topic."""
        slot = topic.slots[number]
        if isinstance(slot, PartitionOffline):
            return Placement(NO_NODE, NO_EPOCH, self.node_ids, (), self.node_ids)
        return Placement(self.node_id, slot.leader_epoch, self.node_ids, self.node_ids, ())

    def check_assigned(self, assignments: Iterable[Sequence[int]]) -> None:
        """Raise ``InvalidAssignment`` if partitions cannot be stored on these nodes."""
        for node_ids in assignments:
            if list(node_ids) != list(self.node_ids):
                raise InvalidAssignment(
                    f"a partition is assigned to brokers {list(node_ids)}; "
                    f"the only broker is {self.node_id}, assign it to that one"
                )

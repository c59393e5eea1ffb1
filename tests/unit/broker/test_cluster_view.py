"""The node's view of its cluster when it is the only node."""

from __future__ import annotations

import pytest

from cordwood.broker.cluster_view import NO_NODE, ClusterView, Endpoint, Placement
from cordwood.broker.session import Session
from cordwood.errors import InvalidAssignment, PartitionOffline

CLUSTER = ClusterView("id", node_id=7)


class Slot:
    leader_epoch = 3


class Topic:
    slots = (Slot(), PartitionOffline("damaged"))


def test_the_node_leads_and_stores_the_partitions_it_serves():
    """Leader, replicas and in-sync replicas are this node, in the partition's own epoch."""
    assert CLUSTER.placement(Topic(), 0) == Placement(7, 3, (7,), (7,), ())


def test_an_offline_partition_has_no_leader_and_its_replica_is_offline():
    """Metadata still lists the offline replica, so that tools show where the data is."""
    placement = CLUSTER.placement(Topic(), 1)
    assert placement.is_offline
    assert placement == Placement(NO_NODE, -1, (7,), (), (7,))


def test_a_peer_sees_the_address_of_its_own_session():
    """A client gets the address of the listener it used, also for coordinator and controller."""
    session = Session(listener="kafka", peer="192.0.2.7:1", host="broker.example", port=9093)
    assert CLUSTER.endpoints(session) == [Endpoint(7, "broker.example", 9093)]
    assert CLUSTER.coordinator("group", session) == Endpoint(7, "broker.example", 9093)
    assert CLUSTER.controller_id == 7


@pytest.mark.parametrize("node_ids", [[], [1], [7, 1], [7, 7]])
def test_partitions_are_assigned_to_existing_nodes_only(node_ids):
    """An assignment lists existing nodes only, and each at most once."""
    CLUSTER.check_assigned([[7]])
    with pytest.raises(InvalidAssignment, match="the only broker is 7"):
        CLUSTER.check_assigned([[7], node_ids])

"""Consumer groups: finding the coordinator, membership, and describing groups.

Subscriptions and assignments in these messages are bytes that the members define; we read only the
topics in them (see ``subscription``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cordwood.protocol.kafka.messages.metadata import OPERATIONS_UNASKED
from cordwood.protocol.kafka.primitives import (
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    NullSince,
    Since,
    Str,
    Until,
)

# --- FindCoordinator ------------------------------------------------------------------------


class FindCoordinatorRequest(NamedTuple):
    """Find the coordinator of this group (key type 0) or transactional id (1)."""

    key: Annotated[Str, Until(3)] = ""
    key_type: Annotated[Int8, Since(1)] = 0
    coordinator_keys: Annotated[Sequence[Str], Since(4)] = ()


class FoundCoordinator(NamedTuple):
    """The broker that coordinates one key."""

    key: Str
    node_id: Int32
    host: Str
    port: Int32
    error_code: Int16 = 0
    error_message: Str | None = None


class FindCoordinatorResponse(NamedTuple):
    """One coordinator in the old versions, one per key since version 4."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Annotated[Int16, Until(3)] = 0
    error_message: Annotated[Str | None, Since(1), Until(3)] = None
    node_id: Annotated[Int32, Until(3)] = -1
    host: Annotated[Str, Until(3)] = ""
    port: Annotated[Int32, Until(3)] = -1
    coordinators: Annotated[Sequence[FoundCoordinator], Since(4)] = ()


# --- JoinGroup ------------------------------------------------------------------------------


class JoinGroupProtocol(NamedTuple):
    """An assignor that the member offers, and its subscription for it."""

    name: Str
    metadata: Bytes


class JoinGroupRequest(NamedTuple):
    """Join the group; an empty member id requests a new one."""

    group_id: Str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, Since(1)] = -1
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, Since(5)] = None
    protocol_type: Str = ""
    protocols: Sequence[JoinGroupProtocol] = ()
    reason: Annotated[Str | None, Since(8)] = None


class JoinGroupMember(NamedTuple):
    """A member, as described to the group leader."""

    member_id: Str
    group_instance_id: Annotated[Str | None, Since(5)] = None
    metadata: Bytes = b""


class JoinGroupResponse(NamedTuple):
    """The generation and its leader; the leader also receives all members."""

    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[Str | None, Since(7)] = None
    protocol_name: Annotated[Str | None, NullSince(7)] = None
    leader: Str = ""
    skip_assignment: Annotated[Bool, Since(9)] = False
    member_id: Str = ""
    members: Sequence[JoinGroupMember] = ()


# --- SyncGroup ------------------------------------------------------------------------------


class SyncGroupAssignment(NamedTuple):
    """The assignment that the leader gives to one member."""

    member_id: Str
    assignment: Bytes


class SyncGroupRequest(NamedTuple):
    """The leader sends the assignments; the other members fetch theirs."""

    group_id: Str
    generation_id: Int32
    member_id: Str
    group_instance_id: Annotated[Str | None, Since(3)] = None
    protocol_type: Annotated[Str | None, Since(5)] = None
    protocol_name: Annotated[Str | None, Since(5)] = None
    assignments: Sequence[SyncGroupAssignment] = ()


class SyncGroupResponse(NamedTuple):
    """This member's assignment."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[Str | None, Since(5)] = None
    protocol_name: Annotated[Str | None, Since(5)] = None
    assignment: Bytes = b""


# --- Heartbeat, LeaveGroup ------------------------------------------------------------------


class HeartbeatRequest(NamedTuple):
    """This member is alive in this generation."""

    group_id: Str
    generation_id: Int32
    member_id: Str
    group_instance_id: Annotated[Str | None, Since(3)] = None


class HeartbeatResponse(NamedTuple):
    """Success, or an error that tells the member to rejoin."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16 = 0


class LeavingMember(NamedTuple):
    """A member that leaves; a static one may be identified by its instance id alone."""

    member_id: Str
    group_instance_id: Str | None = None
    reason: Annotated[Str | None, Since(5)] = None


class LeaveGroupRequest(NamedTuple):
    """One member leaves in old versions; several may leave since version 3."""

    group_id: Str
    member_id: Annotated[Str, Until(2)] = ""
    members: Annotated[Sequence[LeavingMember], Since(3)] = ()


class LeftMember(NamedTuple):
    """The result for one leaving member."""

    member_id: Str
    group_instance_id: Str | None = None
    error_code: Int16 = 0


class LeaveGroupResponse(NamedTuple):
    """The members that have left."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16 = 0
    members: Annotated[Sequence[LeftMember], Since(3)] = ()


# --- DescribeGroups, ListGroups, DeleteGroups -----------------------------------------------


class DescribeGroupsRequest(NamedTuple):
    """Describe these groups and their members."""

    groups: Sequence[Str]
    include_authorized_operations: Annotated[Bool, Since(3)] = False


class DescribedMember(NamedTuple):
    """A member: its address, its subscription and its assignment."""

    member_id: Str
    group_instance_id: Annotated[Str | None, Since(4)] = None
    client_id: Str = ""
    client_host: Str = ""
    metadata: Bytes = b""
    assignment: Bytes = b""


class DescribedGroup(NamedTuple):
    """A group: its state, its assignor and its members."""

    error_code: Int16
    error_message: Annotated[Str | None, Since(6)] = None
    group_id: Str = ""
    state: Str = ""
    protocol_type: Str = ""
    protocol_data: Str = ""
    members: Sequence[DescribedMember] = ()
    authorized_operations: Annotated[Int32, Since(3)] = OPERATIONS_UNASKED


class DescribeGroupsResponse(NamedTuple):
    """The result for every group of the request."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    groups: Sequence[DescribedGroup] = ()


class ListGroupsRequest(NamedTuple):
    """List all groups, or those in these states and of these types."""

    states_filter: Annotated[Sequence[Str], Since(4)] = ()
    types_filter: Annotated[Sequence[Str], Since(5)] = ()


class ListedGroup(NamedTuple):
    """A group's name, protocol type, state and type."""

    group_id: Str
    protocol_type: Str
    state: Annotated[Str, Since(4)] = ""
    group_type: Annotated[Str, Since(5)] = ""


class ListGroupsResponse(NamedTuple):
    """The groups this broker coordinates."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16 = 0
    groups: Sequence[ListedGroup] = ()


class DeleteGroupsRequest(NamedTuple):
    """Delete these groups and their cursors."""

    group_ids: Sequence[Str]


class DeletedGroup(NamedTuple):
    """The result for one group."""

    group_id: Str
    error_code: Int16


class DeleteGroupsResponse(NamedTuple):
    """The result for every group of the request."""

    throttle_time_ms: Int32 = 0
    results: Sequence[DeletedGroup] = ()

"""Consumer group requests: finding the coordinator, membership, and listing groups.

Requests become events of ``decide.groups``, and its answers become replies. Differences between
protocol versions are handled here. One broker coordinates every group and every transactional id.
"""

from __future__ import annotations

from functools import partial
from typing import Final
from uuid import uuid4

from cordwood.broker.cluster_view import NO_ENDPOINT, ClusterView, Endpoint
from cordwood.broker.kafka.authorized_operations import ON_GROUP, authorized
from cordwood.broker.kafka.group_coordinator import GroupCoordinator
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices, once_each
from cordwood.codes import Code
from cordwood.decide.groups.messages import (
    DeleteGroup,
    GroupDescription,
    GroupState,
    GroupType,
    Heartbeat,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    Sync,
    SyncReply,
)
from cordwood.decide.instructions import CodeReply
from cordwood.protocol.kafka.messages.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_GROUP, _TRANSACTION = 0, 1  # key types that a coordinator can be found for
_BATCHED_FIND: Final = 4  # FindCoordinator takes several keys from this version on
_BATCHED_LEAVE: Final = 3
_NOT_FOUND_VERSION: Final = 6  # DescribeGroups tells a missing group by an error since then


class KafkaGroups:
    """The handlers of eight APIs."""

    def __init__(self, coordinator: GroupCoordinator, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._coordinator = coordinator

    async def find_coordinator(
        self, request: FindCoordinatorRequest, version: int, session: Session
    ) -> FindCoordinatorResponse:
        """Return the coordinators of groups or transactional ids; before version 4, of one key."""
        code, text = Code.NONE, None
        if request.key_type not in (_GROUP, _TRANSACTION):
            code = Code.INVALID_REQUEST
            text = f"there is no coordinator for keys of type {request.key_type}"

        def find(key: str) -> Endpoint:
            return NO_ENDPOINT if code else self._cluster.coordinator(key, session)

        if version < _BATCHED_FIND:
            return FindCoordinatorResponse(0, code, text, *find(request.key)[:3])
        return FindCoordinatorResponse(
            coordinators=[
                FoundCoordinator(key, *find(key)[:3], code, text)
                async for key in RequestSlices().of(once_each(request.coordinator_keys))
            ]
        )

    # --- membership -------------------------------------------------------------------------

    async def join_group(
        self, request: JoinGroupRequest, version: int, session: Session
    ) -> JoinGroupResponse:
        """Join the group; answered when the next generation begins."""
        client_id = session.client_id or ""
        named = request.group_instance_id or client_id or "member"
        rebalance_ms = request.rebalance_timeout_ms if version else request.session_timeout_ms
        answer: JoinReply = await self._coordinator.ask(
            request.group_id,
            lambda token: Join(
                token=token,
                version=version,
                member_id=request.member_id,
                new_member_id=f"{named}-{uuid4()}",
                instance_id=request.group_instance_id,
                client_id=client_id,
                client_host=f"/{session.peer.rpartition(':')[0]}",  # as Kafka writes it
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=request.protocol_type,
                protocols=tuple((each.name, each.metadata) for each in request.protocols),
            ),
        )
        return JoinGroupResponse(
            error_code=answer.code,
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=[JoinGroupMember(*member) for member in answer.members],
        )

    async def sync_group(
        self, request: SyncGroupRequest, _version: int, _session: Session
    ) -> SyncGroupResponse:
        """Return the member's assignment, once the leader has sent it."""
        answer: SyncReply = await self._coordinator.ask(
            request.group_id,
            lambda token: Sync(
                token=token,
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
                assignments=tuple(
                    (each.member_id, each.assignment) for each in request.assignments
                ),
            ),
        )
        return SyncGroupResponse(
            error_code=answer.code,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )

    async def heartbeat(
        self, request: HeartbeatRequest, _version: int, _session: Session
    ) -> HeartbeatResponse:
        """Return whether the member still belongs to the group."""
        answer: CodeReply = await self._coordinator.ask(
            request.group_id,
            lambda token: Heartbeat(
                token=token,
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id,
            ),
        )
        return HeartbeatResponse(error_code=answer.code)

    async def leave_group(
        self, request: LeaveGroupRequest, version: int, _session: Session
    ) -> LeaveGroupResponse:
        """Remove members; before version 3 there is one member, and its code is the reply's."""
        is_batched = version >= _BATCHED_LEAVE
        leavers = tuple(Leaver(each.member_id, each.group_instance_id) for each in request.members)
        if not is_batched:
            leavers = (Leaver(request.member_id),)
        answer: LeaveReply = await self._coordinator.ask(
            request.group_id, lambda token: Leave(token, leavers)
        )
        if is_batched:
            return LeaveGroupResponse(
                error_code=answer.code, members=[LeftMember(*left) for left in answer.members]
            )
        code = answer.code or (answer.members[0].code if answer.members else Code.NONE)
        return LeaveGroupResponse(error_code=code)

    # --- administration ---------------------------------------------------------------------

    async def describe_groups(
        self, request: DescribeGroupsRequest, version: int, _session: Session
    ) -> DescribeGroupsResponse:
        """Describe classic groups; any other is Dead, and since version 6 an error."""
        names = once_each(request.groups)
        asked = request.include_authorized_operations
        describe = partial(self._describe, version, authorized(ON_GROUP, is_asked=asked))
        return DescribeGroupsResponse(groups=await RequestSlices().map(describe, names))

    def _describe(self, version: int, operations: int, group_id: str) -> DescribedGroup:
        self._coordinator.adopt(group_id)
        group = self._coordinator.groups.describe(group_id)
        if group is None or group.group_type is not GroupType.CLASSIC:
            code, text = Code.NONE, None
            if version >= _NOT_FOUND_VERSION:
                code, text = (
                    Code.GROUP_ID_NOT_FOUND,
                    missing_group(group_id, group, GroupType.CLASSIC),
                )
            return DescribedGroup(code, text, group_id, GroupState.DEAD.value)
        members = [
            DescribedMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata,
                assignment=member.assignment,
            )
            for member in group.members
        ]
        return DescribedGroup(
            Code.NONE,
            None,
            group_id,
            group.state.value,
            group.protocol_type,
            group.protocol,
            members,
            operations,
        )

    async def list_groups(
        self, request: ListGroupsRequest, _version: int, _session: Session
    ) -> ListGroupsResponse:
        """List every group, or those in the requested states and of the requested types."""
        turns = RequestSlices()
        async for group_id in turns.of(self._coordinator.stored()):
            self._coordinator.adopt(group_id)
        wanted = {name.lower() for name in request.types_filter}
        groups = self._coordinator.groups.listed(request.states_filter)
        return ListGroupsResponse(
            groups=[
                ListedGroup(
                    group.group_id, group.protocol_type, group.state.value, group.group_type.value
                )
                async for group in turns.of(groups)
                if not wanted or group.group_type in wanted
            ]
        )

    async def delete_groups(
        self, request: DeleteGroupsRequest, _version: int, _session: Session
    ) -> DeleteGroupsResponse:
        """Delete groups without members, with their cursors and registrations."""
        results = []
        for group_id in once_each(request.group_ids):
            answer: CodeReply = await self._coordinator.ask(group_id, DeleteGroup)
            results.append(DeletedGroup(group_id, answer.code))
        return DeleteGroupsResponse(results=results)


def missing_group(group_id: str, group: GroupDescription | None, wanted: GroupType) -> str:
    """Return why a group cannot be described, in Kafka's words."""
    if group is None:
        return f"Group {group_id} not found."
    return f"Group {group_id} is not a {wanted} group."

"""The requests of groups: their members' and those of administrators.

Each is executed by the worker that owns the group, which has the rules; its event and its result
are records of `groups.events`. Invariant: a group's requests have one owner, and the groups of a
request are answered in its order. In Kafka: ``GroupCoordinatorService``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from minibroker.broker.apis.base import (
    SPECIAL,
    Api,
    Context,
    Owner,
    Requires,
    SingleForm,
    SingleScope,
    WorkerScope,
    all_results,
    parts_by_owner,
)
from minibroker.broker.apis.share_groups import delete_share_states
from minibroker.broker.groups.description import GroupDescription
from minibroker.broker.groups.events import (
    HeartbeatReceived,
    JoinRequested,
    JoinResult,
    LeaveRequested,
    LeaveResult,
    LeavingMember,
    SyncRequested,
    SyncResult,
)
from minibroker.broker.security.acl import GROUP_OPERATIONS, OPERATIONS_NOT_ASKED, Operation
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from minibroker_protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from minibroker_protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from minibroker_protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from minibroker_protocol.registry import ApiKey

# JoinGroup (11) -----------------------------------------------------------------------------------
#
# Join a classic group and wait for its next generation. Versions 0-9. Version 0 has one timeout for
# sessions and rebalances. Since version 4, a client without a member id gets a new id and must join
# again with it. Since version 5, members may be static. Since version 9, the response may ask a
# returning static leader to skip the assignment. The response is sent when the generation starts,
# at most one rebalance timeout later. Kafka's counterpart is ``GroupCoordinatorService.joinGroup``.


Event = TypeVar("Event")

REBALANCE_TIMEOUT_SINCE: Final = 1
MEMBER_ID_REQUIRED_SINCE: Final = 4
NULLABLE_PROTOCOL_SINCE: Final = 7
SKIP_ASSIGNMENT_SINCE: Final = 9


class GroupPart(NamedTuple, Generic[Event]):
    """A group, and the request of one of its members."""

    group_id: str
    event: Event


def _to_owner(ctx: Context, group_id: str, event: Event) -> Mapping[Owner, GroupPart[Event]]:
    return {ctx.group_owner(group_id): GroupPart(group_id, event)}


def _split_join(
    ctx: Context, request: JoinGroupRequest
) -> Mapping[Owner, GroupPart[JoinRequested]]:
    both = request.session_timeout_ms
    event = JoinRequested(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=ctx.header.client_id or "",
        client_host=f"/{ctx.caller.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if ctx.version >= REBALANCE_TIMEOUT_SINCE else both
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        reason=request.reason,
        require_known_member_id=ctx.version >= MEMBER_ID_REQUIRED_SINCE,
        can_skip_assignment=ctx.version >= SKIP_ASSIGNMENT_SINCE,
    )
    return _to_owner(ctx, request.group_id, event)


def _join(scope: WorkerScope, part: GroupPart[JoinRequested]) -> JoinResult | Awaitable[JoinResult]:
    """Join the group; the result may be awaitable."""
    return scope.groups.join(part.group_id, part.event)


def _merge_join(
    ctx: Context, _request: JoinGroupRequest, replies: Mapping[Owner, JoinResult]
) -> JoinGroupResponse:
    """Build the response from the owner's result. Before null was allowed, a missing
    protocol is an empty string.
    """
    (result,) = replies.values()
    name = result.protocol_name
    if name is None and ctx.version < NULLABLE_PROTOCOL_SINCE:
        name = ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in result.members
        ],
    )


JOIN_GROUP = Api(
    key=ApiKey.JOIN_GROUP,
    versions=(0, 9),
    requires=(Requires(Operation.READ, Meaning.GROUP),),
    split=_split_join,
    execute=_join,
    may_wait=True,
    merge=_merge_join,
)


# SyncGroup (14) -----------------------------------------------------------------------------------
#
# Distribute the assignment of a generation. Versions 0-5. The leader sends the assignments of all
# members, and followers wait for theirs. The assignments are written to the log before any member
# receives one. Since version 5, the request must contain the protocol of the group. Kafka's
# counterpart is ``GroupCoordinatorService.syncGroup``.


PROTOCOL_SINCE: Final = 5


def _split_sync(
    ctx: Context, request: SyncGroupRequest
) -> Mapping[Owner, GroupPart[SyncRequested]]:
    """Send the request to the group's owner, unless the protocol is missing."""
    if _lacks_protocol(ctx, request):
        return {}
    event = SyncRequested(
        member_id=request.member_id,
        generation=request.generation_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
    )
    return _to_owner(ctx, request.group_id, event)


def _lacks_protocol(ctx: Context, request: SyncGroupRequest) -> bool:
    return ctx.version >= PROTOCOL_SINCE and None in (request.protocol_type, request.protocol_name)


def _sync(scope: WorkerScope, part: GroupPart[SyncRequested]) -> SyncResult | Awaitable[SyncResult]:
    """Return the assignment; the result may be awaitable."""
    return scope.groups.sync(part.group_id, part.event)


def _merge_sync(
    _ctx: Context, _request: SyncGroupRequest, replies: Mapping[Owner, SyncResult]
) -> SyncGroupResponse:
    protocol_error = SyncResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    result = next(iter(replies.values()), protocol_error)
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


SYNC_GROUP = Api(
    key=ApiKey.SYNC_GROUP,
    versions=(0, 5),
    requires=(Requires(Operation.READ, Meaning.GROUP),),
    split=_split_sync,
    execute=_sync,
    may_wait=True,
    merge=_merge_sync,
)


# Heartbeat (12) -----------------------------------------------------------------------------------
#
# Extend a member's session in a classic group. Versions 0-4. The error of the response reports a
# rebalance. Kafka's counterpart is ``GroupCoordinatorService.heartbeat``.


def _split_heartbeat(
    ctx: Context, request: HeartbeatRequest
) -> Mapping[Owner, GroupPart[HeartbeatReceived]]:
    event = HeartbeatReceived(
        member_id=request.member_id,
        generation=request.generation_id,
        group_instance_id=request.group_instance_id,
    )
    return _to_owner(ctx, request.group_id, event)


def _heartbeat(scope: WorkerScope, part: GroupPart[HeartbeatReceived]) -> ErrorCode:
    """Extend the session; return an error if the member is unknown or must rejoin."""
    return scope.groups.heartbeat(part.group_id, part.event).error


def _merge_heartbeat(
    _ctx: Context, _request: HeartbeatRequest, replies: Mapping[Owner, ErrorCode]
) -> HeartbeatResponse:
    (error,) = replies.values()
    return HeartbeatResponse(error_code=error)


def _heartbeat_in_one_step(
    scope: SingleScope, _version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Extend the session of a member whose group is in this process."""
    group_id, generation, member_id, group_instance_id = request
    groups = scope.worker.groups
    if not groups.has(group_id):
        return None
    event = HeartbeatReceived(member_id, generation, group_instance_id)
    error = groups.heartbeat(group_id, event).error
    # A heartbeat that is handled again at once has the same effect.
    return (0, error) if error is ErrorCode.NONE else None


HEARTBEAT = Api(
    key=ApiKey.HEARTBEAT,
    versions=(0, 4),
    requires=(Requires(Operation.READ, Meaning.GROUP),),
    split=_split_heartbeat,
    execute=_heartbeat,
    merge=_merge_heartbeat,
    single=SingleForm(Shape(), _heartbeat_in_one_step),
)


# LeaveGroup (13) ----------------------------------------------------------------------------------
#
# Leave a classic group, or remove members. Versions 0-5. Since version 3, the request contains
# several members, and an administrator may name them by instance id alone. Before that, the error
# of the only member is the error of the response. Kafka's counterpart is
# ``GroupCoordinatorService.leaveGroup``.


SEVERAL_MEMBERS_SINCE: Final = 3


def _split_leave(
    ctx: Context, request: LeaveGroupRequest
) -> Mapping[Owner, GroupPart[LeaveRequested]]:
    if ctx.version < SEVERAL_MEMBERS_SINCE:
        members: tuple[LeavingMember, ...] = (LeavingMember(request.member_id),)
    else:
        members = tuple(
            LeavingMember(each.member_id, each.group_instance_id, each.reason)
            for each in request.members
        )
    event = LeaveRequested(members=members)
    return _to_owner(ctx, request.group_id, event)


def _leave(scope: WorkerScope, part: GroupPart[LeaveRequested]) -> LeaveResult:
    return scope.groups.leave(part.group_id, part.event)


def _merge_leave(
    ctx: Context, _request: LeaveGroupRequest, replies: Mapping[Owner, LeaveResult]
) -> LeaveGroupResponse:
    """Return one error per member, or before version 3 the error of the only member."""
    (result,) = replies.values()
    if ctx.version < SEVERAL_MEMBERS_SINCE:
        errors = [result.error, *(error for _, error in result.members)]
        error = next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)
        return LeaveGroupResponse(error_code=error)
    return LeaveGroupResponse(
        error_code=result.error,
        members=[
            MemberResponse(
                member_id=leaving.member_id,
                group_instance_id=leaving.group_instance_id,
                error_code=error,
            )
            for leaving, error in result.members
        ],
    )


LEAVE_GROUP = Api(
    key=ApiKey.LEAVE_GROUP,
    versions=(0, 5),
    requires=(Requires(Operation.READ, Meaning.GROUP),),
    split=_split_leave,
    execute=_leave,
    merge=_merge_leave,
)


# DescribeGroups (15) ------------------------------------------------------------------------------
#
# Describe the state and the members of classic groups. Versions 0-6. Metadata, assignments and the
# protocol are returned only for stable groups. A group that does not exist, or is of another type,
# has the state Dead; since version 6 it also has the error GROUP_ID_NOT_FOUND. Kafka's counterpart
# is ``GroupMetadataManager.describeGroups``.


DEAD: Final = "Dead"
WRONG_TYPE: Final = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
NOT_FOUND_SINCE: Final = 6

GroupIds = tuple[str, ...]
DescribeGroupsReply = dict[str, GroupDescription | ErrorCode]


def _split_description(ctx: Context, request: DescribeGroupsRequest) -> Mapping[Owner, GroupIds]:
    return _ids_by_owner(ctx, request.groups)


def _ids_by_owner(ctx: Context, group_ids: Iterable[str]) -> Mapping[Owner, GroupIds]:
    """The ids of the groups of each owner, without duplicates."""
    return parts_by_owner((ctx.group_owner(each), each) for each in dict.fromkeys(group_ids))


def _describe(scope: WorkerScope, part: GroupIds) -> DescribeGroupsReply:
    """Describe each group, or return the error for a missing one, or one of another type."""
    groups = scope.groups
    return {
        group_id: groups.describe(group_id)
        or (WRONG_TYPE if groups.has(group_id) else groups.missing_group_error(group_id))
        for group_id in part
    }


def _merge_descriptions(
    ctx: Context, request: DescribeGroupsRequest, replies: Mapping[Owner, DescribeGroupsReply]
) -> DescribeGroupsResponse:
    found = all_results(replies)
    operations = GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_NOT_ASKED
    return DescribeGroupsResponse(
        groups=[
            _described_group(ctx, group_id, found[group_id], operations)
            for group_id in request.groups
        ]
    )


def _described_group(
    ctx: Context, group_id: str, shown: GroupDescription | ErrorCode, operations: int
) -> DescribedGroup:
    if shown is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return DescribedGroup(group_id=group_id, error_code=shown)
    if isinstance(shown, ErrorCode):
        missing = DescribedGroup(
            group_id=group_id, group_state=DEAD, authorized_operations=operations
        )
        if ctx.version >= NOT_FOUND_SINCE:
            missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            is_missing = shown is not WRONG_TYPE
            problem = "not found" if is_missing else "is not a classic group"
            missing.error_message = f"Group {group_id} {problem}."
            missing.authorized_operations = OPERATIONS_NOT_ASKED
        return missing
    return DescribedGroup(
        group_id=group_id,
        group_state=shown.state,
        protocol_type=shown.protocol_type,
        protocol_data=shown.protocol,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in shown.members
        ],
        authorized_operations=operations,
    )


DESCRIBE_GROUPS = Api(
    key=ApiKey.DESCRIBE_GROUPS,
    versions=(0, 6),
    requires=SPECIAL,
    split=_split_description,
    execute=_describe,
    merge=_merge_descriptions,
)


# ListGroups (16) ----------------------------------------------------------------------------------
#
# List all groups, or those in some states (since version 4) or of some types (since version 5).
# Versions 0-5. States and types are compared without regard to case; unknown names match nothing.
# The request is sent to every worker. Kafka's counterpart is ``GroupMetadataManager.listGroups``.


class ListGroupsPart(NamedTuple):
    """Requested states and types in lower case; an empty set requests all."""

    states: frozenset[str]
    types: frozenset[str]


class ListGroupsReply(NamedTuple):
    """The groups of one worker, with an error if some of them are not loaded."""

    error: ErrorCode
    groups: tuple[ListedGroup, ...]


def _split_listing(ctx: Context, request: ListGroupsRequest) -> Mapping[Owner, ListGroupsPart]:
    states = frozenset(name.strip().lower() for name in request.states_filter)
    types = frozenset(name.lower() for name in request.types_filter)
    return dict.fromkeys(range(ctx.workers), ListGroupsPart(states, types))


def _list(scope: WorkerScope, part: ListGroupsPart) -> ListGroupsReply:
    loading = bool(scope.groups.unloaded)
    return ListGroupsReply(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE,
        tuple(
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in scope.groups.list_groups()
            if (not part.states or group.state.lower() in part.states)
            and (not part.types or group.group_type in part.types)
        ),
    )


def _merge_listing(
    _ctx: Context, _request: ListGroupsRequest, replies: Mapping[Owner, ListGroupsReply]
) -> ListGroupsResponse:
    """Merge the groups of all workers, sorted by id."""
    return ListGroupsResponse(
        error_code=max((reply.error for reply in replies.values()), default=ErrorCode.NONE),
        groups=sorted(
            (listed for reply in replies.values() for listed in reply.groups),
            key=lambda listed: listed.group_id,
        ),
    )


LIST_GROUPS = Api(
    key=ApiKey.LIST_GROUPS,
    versions=(0, 5),
    requires=SPECIAL,
    split=_split_listing,
    execute=_list,
    merge=_merge_listing,
)


# DeleteGroups (42) --------------------------------------------------------------------------------
#
# Delete groups without members, with their offsets. Versions 0-3. The error is NON_EMPTY_GROUP for
# a group with members, and GROUP_ID_NOT_FOUND for a group that does not exist. Version 3 adds an
# error message, which Kafka fills for errors that no group here has. Kafka's counterpart is
# ``GroupCoordinatorShard.deleteGroups``.


DeleteGroupsReply = dict[str, ErrorCode]


def _split_deletion(ctx: Context, request: DeleteGroupsRequest) -> Mapping[Owner, GroupIds]:
    return _ids_by_owner(ctx, request.groups_names)


async def _delete(scope: WorkerScope, part: GroupIds) -> DeleteGroupsReply:
    """Delete each group; first the states of the partitions of a share group."""
    errors: DeleteGroupsReply = {}
    for group_id in part:
        error = await delete_share_states(scope, group_id)
        failed = error is not ErrorCode.NONE
        errors[group_id] = error if failed else scope.groups.delete_group(group_id)
    return errors


def _merge_deletions(
    _ctx: Context, request: DeleteGroupsRequest, replies: Mapping[Owner, DeleteGroupsReply]
) -> DeleteGroupsResponse:
    errors = all_results(replies)
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=errors[group_id])
            for group_id in dict.fromkeys(request.groups_names)
        ]
    )


DELETE_GROUPS = Api(
    key=ApiKey.DELETE_GROUPS,
    versions=(0, 3),
    requires=(Requires(Operation.DELETE, Meaning.GROUP),),
    split=_split_deletion,
    execute=_delete,
    merge=_merge_deletions,
)


APIS = (
    JOIN_GROUP,
    SYNC_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    DELETE_GROUPS,
)

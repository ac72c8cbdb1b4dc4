"""DescribeGroups (15): describe the state and the members of classic groups.

Versions 0-6. Metadata, assignments and the protocol are returned only for stable groups. A group
that does not exist, or is of another type, has the state Dead; since version 6 it also has the
error GROUP_ID_NOT_FOUND. Kafka's counterpart is ``GroupMetadataManager.describeGroups``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minibroker.broker.apis.base import SPECIAL, Api, Context, Owner, WorkerScope
from minibroker.broker.apis.operations import GROUP_OPERATIONS, NOT_ASKED
from minibroker.broker.groups.description import GroupDescription
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from minibroker_protocol.registry import ApiKey

DEAD: Final = "Dead"
NOT_FOUND_SINCE: Final = 6

DescribeGroupsPart = tuple[str, ...]
DescribeGroupsReply = dict[str, GroupDescription | ErrorCode]


def split(ctx: Context, request: DescribeGroupsRequest) -> Mapping[Owner, DescribeGroupsPart]:
    """Send to each owner the ids of its groups."""
    parts: dict[Owner, list[str]] = {}
    for group_id in dict.fromkeys(request.groups):
        parts.setdefault(ctx.group_owner(group_id), []).append(group_id)
    return {owner: tuple(ids) for owner, ids in parts.items()}


def execute(scope: WorkerScope, part: DescribeGroupsPart) -> DescribeGroupsReply:
    """Describe each group, or return the error for a missing one."""
    groups = scope.groups
    return {
        group_id: groups.describe(group_id) or groups.missing_group_error(group_id)
        for group_id in part
    }


def merge(
    ctx: Context, request: DescribeGroupsRequest, replies: Mapping[Owner, DescribeGroupsReply]
) -> DescribeGroupsResponse:
    """Return the groups in the order of the request."""
    found = {group_id: shown for reply in replies.values() for group_id, shown in reply.items()}
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    return DescribeGroupsResponse(
        groups=[
            _described(ctx, group_id, found[group_id], operations) for group_id in request.groups
        ]
    )


def _described(
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
            missing.error_message = f"Group {group_id} not found."
            missing.authorized_operations = NOT_ASKED
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


API: Api[DescribeGroupsRequest, DescribeGroupsPart, DescribeGroupsReply, DescribeGroupsResponse] = (
    Api(
        key=ApiKey.DESCRIBE_GROUPS,
        versions=(0, 6),
        requires=SPECIAL,
        split=split,
        execute=execute,
        merge=merge,
    )
)

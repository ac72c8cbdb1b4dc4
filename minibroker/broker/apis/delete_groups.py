"""DeleteGroups (42): delete groups without members, with their offsets.

Versions 0-3. The error is NON_EMPTY_GROUP for a group with members, and GROUP_ID_NOT_FOUND for a
group that does not exist. Version 3 adds an error message, which Kafka fills for errors that no
group here has. Kafka's counterpart is ``GroupCoordinatorShard.deleteGroups``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from minibroker_protocol.registry import ApiKey

DeleteGroupsPart = tuple[str, ...]
DeleteGroupsReply = dict[str, ErrorCode]


def split(ctx: Context, request: DeleteGroupsRequest) -> Mapping[Owner, DeleteGroupsPart]:
    """Send to each owner the ids of its groups, without duplicates."""
    parts: dict[Owner, list[str]] = {}
    for group_id in dict.fromkeys(request.groups_names):
        parts.setdefault(ctx.group_owner(group_id), []).append(group_id)
    return {owner: tuple(ids) for owner, ids in parts.items()}


def execute(scope: WorkerScope, part: DeleteGroupsPart) -> DeleteGroupsReply:
    """Delete the groups; return an error for each."""
    return {group_id: scope.groups.delete_group(group_id) for group_id in part}


def merge(
    _ctx: Context, request: DeleteGroupsRequest, replies: Mapping[Owner, DeleteGroupsReply]
) -> DeleteGroupsResponse:
    """Return one error per group."""
    errors = {group_id: error for reply in replies.values() for group_id, error in reply.items()}
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=errors[group_id])
            for group_id in dict.fromkeys(request.groups_names)
        ]
    )


API: Api[DeleteGroupsRequest, DeleteGroupsPart, DeleteGroupsReply, DeleteGroupsResponse] = Api(
    key=ApiKey.DELETE_GROUPS,
    versions=(0, 3),
    requires=(Requires(Operation.DELETE, Meaning.GROUP),),
    split=split,
    execute=execute,
    merge=merge,
)

"""DeleteGroups (42): remove groups that have no members, with their offsets.

Versions 0-2. A group with members gets NON_EMPTY_GROUP, one that is not there GROUP_ID_NOT_FOUND.
Echoes ``GroupCoordinatorShard.deleteGroups``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.apis.base import Api, Context, Owner, WorkerScope
from protocol.errors import ErrorCode
from protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from protocol.registry import ApiKey

DeleteGroupsPart = tuple[str, ...]
DeleteGroupsReply = dict[str, ErrorCode]


def split(ctx: Context, request: DeleteGroupsRequest) -> Mapping[Owner, DeleteGroupsPart]:
    """To each owner its groups, each once."""
    parts: dict[Owner, list[str]] = {}
    for group_id in dict.fromkeys(request.groups_names):
        parts.setdefault(ctx.group_owner(group_id), []).append(group_id)
    return {owner: tuple(ids) for owner, ids in parts.items()}


def execute(scope: WorkerScope, part: DeleteGroupsPart) -> DeleteGroupsReply:
    """Deletes what can be."""
    return {group_id: scope.groups.delete_group(group_id) for group_id in part}


def merge(
    _ctx: Context, request: DeleteGroupsRequest, replies: Mapping[Owner, DeleteGroupsReply]
) -> DeleteGroupsResponse:
    """An error a group."""
    errors = {group_id: error for reply in replies.values() for group_id, error in reply.items()}
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=errors[group_id])
            for group_id in dict.fromkeys(request.groups_names)
        ]
    )


API: Api[DeleteGroupsRequest, DeleteGroupsPart, DeleteGroupsReply, DeleteGroupsResponse] = Api(
    key=ApiKey.DELETE_GROUPS,
    versions=(0, 2),
    split=split,
    execute=execute,
    merge=merge,
)

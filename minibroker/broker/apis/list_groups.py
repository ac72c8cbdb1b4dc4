"""ListGroups (16): list all groups, or those in some states (since version 4) or of some types
(since version 5).

Versions 0-5. States and types are compared without regard to case; unknown names match nothing. The
request is sent to every worker. Kafka's counterpart is ``GroupMetadataManager.listGroups``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import SPECIAL, Api, Context, Owner, WorkerScope
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from minibroker_protocol.registry import ApiKey


class ListedGroupEntry(NamedTuple):
    """A group in the list."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class ListGroupsPart(NamedTuple):
    """Requested states and types in lower case; an empty set requests all."""

    states: frozenset[str]
    types: frozenset[str]


class ListGroupsReply(NamedTuple):
    """The groups of one worker, with an error if some of them are not loaded."""

    error: ErrorCode
    groups: tuple[ListedGroupEntry, ...]


def split(ctx: Context, request: ListGroupsRequest) -> Mapping[Owner, ListGroupsPart]:
    """Send the request to every worker."""
    states = frozenset(name.strip().lower() for name in request.states_filter)
    types = frozenset(name.lower() for name in request.types_filter)
    return dict.fromkeys(range(ctx.workers), ListGroupsPart(states, types))


def execute(scope: WorkerScope, part: ListGroupsPart) -> ListGroupsReply:
    """List this worker's groups."""
    loading = bool(scope.groups.unloaded)
    return ListGroupsReply(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE,
        tuple(
            ListedGroupEntry(group.group_id, group.protocol_type, group.state, group.group_type)
            for group in scope.groups.list_groups()
            if (not part.states or group.state.lower() in part.states)
            and (not part.types or group.group_type in part.types)
        ),
    )


def merge(
    _ctx: Context, _request: ListGroupsRequest, replies: Mapping[Owner, ListGroupsReply]
) -> ListGroupsResponse:
    """Merge the groups of all workers, sorted by id."""
    found = sorted(listed for reply in replies.values() for listed in reply.groups)
    return ListGroupsResponse(
        error_code=max((reply.error for reply in replies.values()), default=ErrorCode.NONE),
        groups=[
            ListedGroup(
                group_id=listed.group_id,
                protocol_type=listed.protocol_type,
                group_state=listed.state,
                group_type=listed.group_type,
            )
            for listed in found
        ],
    )


API: Api[ListGroupsRequest, ListGroupsPart, ListGroupsReply, ListGroupsResponse] = Api(
    key=ApiKey.LIST_GROUPS,
    versions=(0, 5),
    requires=SPECIAL,
    split=split,
    execute=execute,
    merge=merge,
    left_out=("groups of the types consumer, share and streams: none are served yet",),
)

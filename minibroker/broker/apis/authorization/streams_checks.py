"""Rights that the requests of streams groups require.

Owns the checks of the APIs of `apis.streams_groups`; they are part of
`special_checks.SPECIAL_CHECKS`. Invariant: without the feature no right is required, so the client
learns first that the protocol is not served. Kafka's ``KafkaApis.handleStreamsGroupHeartbeat`` and
``handleStreamsGroupDescribe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from minibroker.broker.apis.authorization.checks import (
    AuthorizationCheck,
    Finish,
    allowed,
    authorized,
)
from minibroker.broker.apis.base import Context, Denied
from minibroker.broker.apis.streams_groups import (
    serves_streams_groups,
    topics_problem,
    topology_topics,
)
from minibroker.broker.security.acl import OPERATIONS_NOT_ASKED, Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.streams_group_describe import DescribedGroup
from minibroker_protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse
from minibroker_protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from minibroker_protocol.registry import ApiKey

_GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_DENIED_TEXT: Final = (
    "The described group uses topics that the client is not authorized to describe."
)


def streams_group_heartbeat(ctx: Context, request: Any) -> Denied | None:
    """Require READ on the group and DESCRIBE on each topic, if streams groups are served."""
    if not serves_streams_groups(ctx):
        return None
    if not ctx.allows(Operation.READ, Resource.GROUP, request.group_id):
        return Denied(StreamsGroupHeartbeatResponse(error_code=_GROUP_DENIED))
    names = topology_topics(request)
    if topics_problem(names) is not None:
        return None
    if allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, names, str)[1]:
        return Denied(StreamsGroupHeartbeatResponse(error_code=_TOPIC_DENIED))
    return None


def topology_description(ctx: Context, request: Any) -> Denied | None:
    """Require READ on the group, if streams groups are served."""
    if not serves_streams_groups(ctx) or ctx.allows(
        Operation.READ, Resource.GROUP, request.group_id
    ):
        return None
    return Denied(StreamsGroupTopologyDescriptionUpdateResponse(error_code=_GROUP_DENIED))


def streams_group_describe(ctx: Context, request: Any) -> Finish | None:
    """Require DESCRIBE on each group, and on each topic of its topology."""
    if not serves_streams_groups(ctx):
        return None
    permitted, rejected = allowed(ctx, Operation.DESCRIBE, Resource.GROUP, request.group_ids, str)
    request.group_ids = permitted

    def finish(response: Any) -> Any:
        groups = []
        for group in response.groups:
            shown = group
            if allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, _topics_of(group), str)[1]:
                shown = DescribedGroup(
                    group_id=group.group_id, error_code=_TOPIC_DENIED, error_message=_DENIED_TEXT
                )
            elif group.authorized_operations != OPERATIONS_NOT_ASKED:
                group.authorized_operations = authorized(ctx, Resource.GROUP, group.group_id)
            groups.append(shown)
        response.groups = groups
        response.groups += [
            DescribedGroup(group_id=group_id, error_code=_GROUP_DENIED) for group_id in rejected
        ]
        return response

    return finish


def _topics_of(group: DescribedGroup) -> list[str]:
    """The topics that the topology of a group names."""
    subtopologies = group.topology.subtopologies if group.topology is not None else ()
    return sorted(
        {
            name
            for each in subtopologies or ()
            for name in (
                *each.source_topics,
                *each.repartition_sink_topics,
                *(topic.name for topic in each.repartition_source_topics),
                *(topic.name for topic in each.state_changelog_topics),
            )
        }
    )


STREAMS_CHECKS: Final[Mapping[ApiKey, AuthorizationCheck]] = {
    ApiKey.STREAMS_GROUP_HEARTBEAT: streams_group_heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: streams_group_describe,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: topology_description,
}

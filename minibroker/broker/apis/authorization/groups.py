"""Authorization checks of consumer groups and their offsets.

Defines the operation that each request requires on a group and on the topics of its offsets.
Invariant: if the caller may not describe a group, the response does not reveal whether the group
exists. Kafka has these checks in the group handlers of ``KafkaApis``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from minibroker.broker.apis.authorization.authorizer_check import (
    ERRORS,
    AuthorizationCheck,
    Finish,
    allowed,
    authorized,
    require,
)
from minibroker.broker.apis.base import Context, Denied
from minibroker.broker.apis.join_group import NULLABLE_PROTOCOL_SINCE
from minibroker.broker.apis.offset_commit import TOPIC_IDS_SINCE as COMMIT_IDS_SINCE
from minibroker.broker.apis.offset_fetch import GROUP_ERROR_SINCE, SEVERAL_GROUPS_SINCE
from minibroker.broker.apis.offset_fetch import TOPIC_IDS_SINCE as FETCH_IDS_SINCE
from minibroker.broker.apis.operations import NOT_ASKED
from minibroker.broker.security.acl import Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.delete_groups import DeletableGroupResult
from minibroker_protocol.messages.describe_groups import DescribedGroup
from minibroker_protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from minibroker_protocol.messages.heartbeat import HeartbeatResponse
from minibroker_protocol.messages.join_group import JoinGroupResponse
from minibroker_protocol.messages.leave_group import LeaveGroupResponse
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from minibroker_protocol.messages.offset_delete import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from minibroker_protocol.messages.sync_group import SyncGroupResponse

_GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED

KEY_RESOURCES: Final = {0: Resource.GROUP, 1: Resource.TRANSACTIONAL_ID, 2: Resource.CLUSTER}
"""Resource to authorize for FindCoordinator by key type. The third, a share group, requires
CLUSTER_ACTION. The API rejects any other key type.
"""

"""First version of OffsetFetch with an error code per group."""


def _group_id(request: Any) -> str:
    group_id: str = request.group_id
    return group_id


def _member_check(response: Callable[..., Any]) -> AuthorizationCheck:
    """Require READ on the group."""
    return require(
        Operation.READ, Resource.GROUP, _group_id, lambda _, error: response(error_code=error)
    )


def join_group(ctx: Context, request: Any) -> Denied | None:
    """Require READ on the group."""
    if ctx.allows(Operation.READ, Resource.GROUP, request.group_id):
        return None
    name = None if ctx.version >= NULLABLE_PROTOCOL_SINCE else ""
    return Denied(
        JoinGroupResponse(
            error_code=_GROUP_DENIED, generation_id=-1, protocol_name=name, members=[]
        )
    )


sync_group: Final = _member_check(SyncGroupResponse)
heartbeat: Final = _member_check(HeartbeatResponse)
leave_group: Final = _member_check(LeaveGroupResponse)


def find_coordinator(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require DESCRIBE on each group or transactional id."""
    resource = KEY_RESOURCES.get(request.key_type)
    if resource is None:
        return None
    error = ERRORS[resource]

    def may(key: str) -> bool:
        if resource is Resource.CLUSTER:
            return ctx.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER)
        return ctx.allows(Operation.DESCRIBE, resource, key)

    if ctx.version < 4:
        if may(request.key):
            return None
        return Denied(
            FindCoordinatorResponse(
                error_code=error, error_message=None, node_id=-1, host="", port=-1
            )
        )
    rejected = [key for key in request.coordinator_keys if not may(key)]
    if not rejected:
        return None
    request.coordinator_keys = [key for key in request.coordinator_keys if key not in rejected]

    def finish(response: FindCoordinatorResponse) -> FindCoordinatorResponse:
        response.coordinators += [
            Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=None)
            for key in rejected
        ]
        return response

    return finish


def describe_groups(ctx: Context, request: Any) -> Finish:
    """Require DESCRIBE on each group; fill in the authorized operations on request."""
    permitted, rejected = allowed(ctx, Operation.DESCRIBE, Resource.GROUP, request.groups, str)
    request.groups = permitted

    def finish(response: Any) -> Any:
        for group in response.groups:
            if group.authorized_operations != NOT_ASKED:
                group.authorized_operations = authorized(ctx, Resource.GROUP, group.group_id)
        response.groups += [
            DescribedGroup(
                group_id=group_id, error_code=_GROUP_DENIED, authorized_operations=NOT_ASKED
            )
            for group_id in rejected
        ]
        return response

    return finish


def list_groups(ctx: Context, _request: Any) -> Finish | None:
    """Show all groups with DESCRIBE on the cluster, otherwise those with DESCRIBE on the group."""
    if ctx.allows(Operation.DESCRIBE, Resource.CLUSTER, quietly=True):
        return None

    def finish(response: Any) -> Any:
        response.groups, _ = allowed(
            ctx,
            Operation.DESCRIBE,
            Resource.GROUP,
            response.groups,
            lambda listed: listed.group_id,
            quietly=True,
        )
        return response

    return finish


def delete_groups(ctx: Context, request: Any) -> Finish | None:
    """Require DELETE on each group."""
    permitted, rejected = allowed(ctx, Operation.DELETE, Resource.GROUP, request.groups_names, str)
    if not rejected:
        return None
    request.groups_names = permitted

    def finish(response: Any) -> Any:
        response.results += [
            DeletableGroupResult(group_id=group_id, error_code=_GROUP_DENIED)
            for group_id in dict.fromkeys(rejected)
        ]
        return response

    return finish


def offset_commit(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require READ on the group and on each topic."""
    if not ctx.allows(Operation.READ, Resource.GROUP, request.group_id):
        topics = [_not_committed(topic, _GROUP_DENIED) for topic in request.topics]
        return Denied(OffsetCommitResponse(topics=topics))

    def name(topic: Any) -> str | None:
        by_id = ctx.version >= COMMIT_IDS_SINCE
        return ctx.image.topic_names.get(topic.topic_id) if by_id else topic.name

    permitted, rejected = allowed(ctx, Operation.READ, Resource.TOPIC, request.topics, name)
    if not rejected:
        return None
    request.topics = permitted

    def finish(response: OffsetCommitResponse) -> OffsetCommitResponse:
        response.topics += [_not_committed(topic, _TOPIC_DENIED) for topic in rejected]
        return response

    return finish


def _not_committed(topic: Any, error: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ],
    )


def offset_delete(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require DELETE on the group and READ on each topic."""
    if not ctx.allows(Operation.DELETE, Resource.GROUP, request.group_id):
        return Denied(OffsetDeleteResponse(error_code=_GROUP_DENIED))
    permitted, rejected = allowed(
        ctx, Operation.READ, Resource.TOPIC, request.topics, lambda topic: topic.name
    )
    if not rejected:
        return None
    request.topics = permitted

    def finish(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if response.error_code == ErrorCode.NONE:
            response.topics += [
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponsePartition(
                            partition_index=each.partition_index, error_code=_TOPIC_DENIED
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in rejected
            ]
        return response

    return finish


def offset_fetch(ctx: Context, request: Any) -> Finish | Denied:
    """Require DESCRIBE on each group and topic.

    If the request asks for all topics, those without DESCRIBE are omitted.
    """
    if ctx.version < SEVERAL_GROUPS_SINCE:
        return _older_offset_fetch(ctx, request)
    permitted, rejected = allowed(
        ctx, Operation.DESCRIBE, Resource.GROUP, request.groups, lambda group: group.group_id
    )
    hidden = [_hide_topics(ctx, group) for group in permitted]
    request.groups = permitted

    def finish(response: OffsetFetchResponse) -> OffsetFetchResponse:
        for group, topics in zip(response.groups, hidden, strict=True):
            group.topics = _visible(ctx, group.topics) + [_not_fetched(topic) for topic in topics]
        response.groups += [
            OffsetFetchResponseGroup(group_id=group.group_id, error_code=_GROUP_DENIED)
            for group in rejected
        ]
        return response

    return finish


def _older_offset_fetch(ctx: Context, request: Any) -> Finish | Denied:
    if not ctx.allows(Operation.DESCRIBE, Resource.GROUP, request.group_id):
        if ctx.version >= GROUP_ERROR_SINCE:
            return Denied(OffsetFetchResponse(error_code=_GROUP_DENIED))
        topics = [_not_fetched_older(topic, _GROUP_DENIED) for topic in request.topics or ()]
        return Denied(OffsetFetchResponse(topics=topics))
    hidden = _hide_topics(ctx, request)

    def finish(response: OffsetFetchResponse) -> OffsetFetchResponse:
        topics = [_not_fetched_older(topic, _TOPIC_DENIED) for topic in hidden]
        response.topics = _visible(ctx, response.topics) + topics
        return response

    return finish


def _topic_name(ctx: Context, topic: Any) -> str | None:
    if ctx.version >= FETCH_IDS_SINCE:
        return ctx.image.topic_names.get(topic.topic_id)
    name: str = topic.name
    return name


def _hide_topics(ctx: Context, asked: Any) -> list[Any]:
    """Remove the topics without DESCRIBE from the request and return them."""
    if asked.topics is None:
        return []
    asked.topics, hidden = allowed(
        ctx,
        Operation.DESCRIBE,
        Resource.TOPIC,
        asked.topics,
        lambda topic: _topic_name(ctx, topic),
    )
    return hidden


def _visible(ctx: Context, topics: list[Any]) -> list[Any]:
    """Topics of the response that the caller may describe."""
    seen, _ = allowed(
        ctx,
        Operation.DESCRIBE,
        Resource.TOPIC,
        topics,
        lambda topic: _topic_name(ctx, topic),
        quietly=True,
    )
    return seen


def _not_fetched(topic: Any) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=-1, metadata="", error_code=_TOPIC_DENIED
            )
            for index in topic.partition_indexes
        ],
    )


def _not_fetched_older(topic: Any, error: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=index, committed_offset=-1, metadata="", error_code=error
            )
            for index in topic.partition_indexes
        ],
    )

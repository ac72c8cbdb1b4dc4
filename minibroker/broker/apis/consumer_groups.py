"""The requests of consumer groups (KIP-848): the heartbeat of a member, and descriptions.

They are served if the feature ``group.version`` is 1 and the setting
``group.coordinator.rebalance.protocols`` has ``consumer``; otherwise they get UNSUPPORTED_VERSION,
before any check of rights, and the client is reported. The rules are in `groups.consumer_group`.
Invariant: a request that cannot be valid for any group does not reach its owner. Kafka's
``KafkaApis.handleConsumerGroupHeartbeat`` and ``GroupCoordinatorService``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from minibroker.broker.apis.base import (
    SPECIAL,
    Api,
    Context,
    Owner,
    SingleForm,
    SingleScope,
    WorkerScope,
)
from minibroker.broker.apis.epoch_groups import GroupProtocol, describe_api
from minibroker.broker.apis.unserved import CONSUMER_GROUPS
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.consumer_member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from minibroker.broker.groups.consumer_records import CONSUMER
from minibroker.broker.groups.description import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    TopicPartitions,
)
from minibroker.broker.groups.events import ConsumerHeartbeat, ConsumerHeartbeatResult
from minibroker.broker.metadata.features import GROUP_VERSION, level
from minibroker.broker.settings import (
    GROUP_CONSUMER_ASSIGNORS,
    GROUP_COORDINATOR_REBALANCE_PROTOCOLS,
)
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import consumer_group_describe as described
from minibroker_protocol.messages import consumer_group_heartbeat as heartbeat
from minibroker_protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)
from minibroker_protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from minibroker_protocol.registry import ApiKey


def serves_consumer_groups(scope: Context | WorkerScope) -> bool:
    """Whether this broker serves consumer groups now."""
    protocols = scope.settings[GROUP_COORDINATOR_REBALANCE_PROTOCOLS]
    return CONSUMER in protocols and level(scope.image.features, GROUP_VERSION) >= 1


# ConsumerGroupHeartbeat (68) ----------------------------------------------------------------------
#
# A member joins with epoch 0, leaves with -1, or -2 if it is static and will return, and otherwise
# confirms its epoch and what it has. Versions 0-1. Since version 1, the client makes the member id
# and may subscribe by a regular expression in RE2's syntax. The response has the member's epoch,
# and its assignment if that has changed.


MEMBER_ID_SINCE: Final = 1
"""First version whose clients make their member ids."""


UNSTATED: Final = [None, None, None, None]
"""Topics, regular expression, assignor and partitions of a heartbeat without any."""


class HeartbeatPart(NamedTuple):
    """A group, and the heartbeat of one of its members."""

    group_id: str
    event: ConsumerHeartbeat


def _split_heartbeat(
    ctx: Context, request: ConsumerGroupHeartbeatRequest
) -> Mapping[Owner, HeartbeatPart]:
    """Send a request that may be valid to the group's owner."""
    if not serves_consumer_groups(ctx) or _problem(ctx, request) is not None:
        return {}
    names, owned = request.subscribed_topic_names, request.topic_partitions
    event = ConsumerHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else tuple(names),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else tuple((each.topic_id, tuple(each.partitions)) for each in owned),
        client_id=ctx.header.client_id or "",
        client_host=f"/{ctx.caller.client_host}",
        described_topics=_described_topics(ctx),
    )
    return {ctx.group_owner(request.group_id): HeartbeatPart(request.group_id, event)}


def _described_topics(ctx: Context) -> frozenset[str] | None:
    """The topics that a regular expression of the caller can match; None without authorization."""
    if ctx.authorizer is None:
        return None
    caller = ctx.caller
    return ctx.authorizer.described_topics(caller.principal, caller.client_host, ctx.image.topics)


def _problem(
    ctx: Context, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | None:
    """The response to a request that cannot be valid, in Kafka's order; None if it may be."""
    epoch = request.member_epoch
    needs_member = ctx.version >= MEMBER_ID_SINCE or epoch > 0 or epoch == LEAVE_EPOCH
    for name, text in (
        ("MemberId", request.member_id if needs_member else None),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            return _invalid(f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        problem = _joining_problem(request)
        if problem:
            return _invalid(problem)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        return _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        return _invalid("MemberEpoch is invalid.")
    assignor, assignors = request.server_assignor, ctx.settings[GROUP_CONSUMER_ASSIGNORS]
    if assignor is not None and assignor not in assignors:
        text = f"ServerAssignor {assignor} is not supported. Supported assignors: "
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.UNSUPPORTED_ASSIGNOR,
            error_message=f"{text}{', '.join(assignors)}.",
        )
    return None


def _joining_problem(request: ConsumerGroupHeartbeatRequest) -> str:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.topic_partitions is None or request.topic_partitions:
        return "TopicPartitions must be empty when (re-)joining."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return (
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )
    return ""


def _invalid(text: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=text)


def _beat(scope: WorkerScope, part: HeartbeatPart) -> ConsumerHeartbeatResult:
    return scope.groups.consumer_heartbeat(part.group_id, part.event)


def _merge_heartbeat(
    ctx: Context,
    request: ConsumerGroupHeartbeatRequest,
    replies: Mapping[Owner, ConsumerHeartbeatResult],
) -> ConsumerGroupHeartbeatResponse:
    if not serves_consumer_groups(ctx):
        ctx.unserved = CONSUMER_GROUPS
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=CONSUMER_GROUPS.text
        )
    if not replies:
        return _problem(ctx, request) or ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
    (result,) = replies.values()
    assignment = None
    if result.assignment is not None:
        assignment = heartbeat.Assignment(
            topic_partitions=[
                heartbeat.TopicPartitions(topic_id=topic, partitions=list(partitions))
                for topic, partitions in result.assignment
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=assignment,
    )


def _beat_in_one_step(
    scope: SingleScope, _version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Extend the session of a member that reports nothing, and for which nothing changes."""
    group_id, member_id, epoch, instance_id, rack_id, timeout_ms, *stated = request
    if stated != UNSTATED or not serves_consumer_groups(scope.worker):
        return None
    event = ConsumerHeartbeat(
        member_id=member_id,
        member_epoch=epoch,
        instance_id=instance_id,
        rack_id=rack_id,
        rebalance_timeout_ms=timeout_ms,
        client_id=scope.client_id or "",
        client_host=f"/{scope.caller.client_host}",
    )
    extended = scope.worker.groups.extend_session(group_id, ConsumerGroup, event)
    if extended is None:
        return None
    group, repeat = extended
    scope.repeat_by(repeat)
    return 0, ErrorCode.NONE, None, member_id, epoch, group.times.heartbeat_interval_ms


CONSUMER_GROUP_HEARTBEAT = Api(
    key=ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    requires=SPECIAL,
    split=_split_heartbeat,
    execute=_beat,
    merge=_merge_heartbeat,
    single=SingleForm(Shape(), _beat_in_one_step, repeats=True),
)


# ConsumerGroupDescribe (69) -----------------------------------------------------------------------
#
# Describe the state, the epochs and the members of consumer groups. Versions 0-1; version 1 adds
# whether a member uses classic requests. What a member has includes what it must revoke.


def _described(shown: ConsumerGroupDescription) -> dict[str, Any]:
    return {
        "group_state": shown.state,
        "group_epoch": shown.group_epoch,
        "assignment_epoch": shown.assignment_epoch,
        "assignor_name": shown.assignor,
        "members": [_described_member(member) for member in shown.members],
    }


def _described_member(member: ConsumerMemberDescription) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(_merged(member.assigned, member.pending_revocation)),
        target_assignment=_assignment(member.target),
        member_type=0 if member.is_classic else 1,
    )


def _merged(
    assigned: Iterable[TopicPartitions], pending: Iterable[TopicPartitions]
) -> Iterable[TopicPartitions]:
    merged: dict[tuple[bytes, str], tuple[int, ...]] = {}
    for topic_id, topic, partitions in (*assigned, *pending):
        merged[topic_id, topic] = merged.get((topic_id, topic), ()) + partitions
    return [TopicPartitions(*topic, partitions) for topic, partitions in merged.items()]


def _assignment(topics: Iterable[TopicPartitions]) -> described.Assignment:
    return described.Assignment(
        topic_partitions=[
            described.TopicPartitions(
                topic_id=each.topic_id, topic_name=each.topic, partitions=list(each.partitions)
            )
            for each in topics
        ]
    )


CONSUMER_GROUP_DESCRIBE = describe_api(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    protocol=GroupProtocol("consumer", CONSUMER_GROUPS, serves_consumer_groups),
    find=lambda scope, group_id: scope.groups.describe_consumer_group(group_id),
    response_type=ConsumerGroupDescribeResponse,
    group_type=DescribedGroup,
    fields=_described,
)


APIS = (CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE)

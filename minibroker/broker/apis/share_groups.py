"""The requests of share groups (KIP-932) for their coordinator: members, descriptions, offsets.

They are served if the feature ``share.version`` is 1; otherwise they get UNSUPPORTED_VERSION,
before any check of rights, and the client is reported. The rules are in `groups.share_group`; the
states of share partitions are at their owners (`shares.state_store`). Invariant: a request that
cannot be valid for any group does not reach its owner. Kafka's ``GroupCoordinatorService``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import trio

from minibroker.broker.apis.base import (
    CONTROLLER,
    SPECIAL,
    Api,
    Context,
    ControllerScope,
    Owner,
    Round,
    SingleForm,
    SingleScope,
    WorkerScope,
    all_results,
    parts_by_owner,
)
from minibroker.broker.apis.epoch_groups import GroupProtocol, describe_api
from minibroker.broker.apis.partition_logs import LATEST, OffsetQuery
from minibroker.broker.apis.unserved import SHARE_GROUPS
from minibroker.broker.groups.consumer_member import JOIN_EPOCH, LEAVE_EPOCH
from minibroker.broker.groups.description import (
    ShareGroupDescription,
    ShareMemberDescription,
)
from minibroker.broker.groups.events import ShareHeartbeat, ShareHeartbeatResult, SharesChanged
from minibroker.broker.groups.share_assignor import SIMPLE
from minibroker.broker.groups.share_group import ShareGroup
from minibroker.broker.log.replica_manager import NO_LEADER_EPOCH
from minibroker.broker.metadata.features import SHARE_VERSION, level
from minibroker.broker.metadata.image import SHARE_STATE_TOPIC
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.shares.state import UNKNOWN_OFFSET, ShareKey, ShareState
from minibroker.broker.shares.state_store import (
    DeleteState,
    InitializeState,
    SummarizeState,
)
from minibroker.runtime.rpc import PeerFailed, PeerLost
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import alter_share_group_offsets as altering
from minibroker_protocol.messages import delete_share_group_offsets as deleting
from minibroker_protocol.messages import describe_share_group_offsets as offsets
from minibroker_protocol.messages import share_group_describe as described
from minibroker_protocol.messages import share_group_heartbeat as heartbeat
from minibroker_protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from minibroker_protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from minibroker_protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from minibroker_protocol.messages.share_group_describe import (
    ShareGroupDescribeResponse,
)
from minibroker_protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID, Uuid

MEMBER_ID_CHARACTERS_MAX: Final = 36

TopicPartition = tuple[str, int]


def serves_share_groups(scope: Context | WorkerScope) -> bool:
    """Whether this broker serves share groups now."""
    return level(scope.image.features, SHARE_VERSION) >= 1


def is_member_id(member_id: str | None) -> bool:
    """Whether a client may have made this member id."""
    return bool(member_id) and len(member_id or "") <= MEMBER_ID_CHARACTERS_MAX


# The topic of states ------------------------------------------------------------------------------


async def create_state_topic(scope: ControllerScope, _part: None) -> None:
    """Create ``__share_group_state``."""
    outcome = await scope.cluster.create_topics([NewTopic(SHARE_STATE_TOPIC)])
    await scope.publish(outcome.updates)


def has_state_topic(ctx: Context) -> bool:
    """Whether the topic of states exists."""
    return SHARE_STATE_TOPIC in ctx.image.topics


# ShareGroupHeartbeat (76) -------------------------------------------------------------------------
#
# A member joins with epoch 0, leaves with -1, and otherwise confirms its epoch. Version 1. The
# client makes the member id. The first heartbeat with a new topic has the states of its partitions
# created, and the response has the assignment with them, for which Kafka needs two heartbeats.


class ShareHeartbeatPart(NamedTuple):
    """A group, and the heartbeat of one of its members."""

    group_id: str
    event: ShareHeartbeat


def _split_heartbeat(
    ctx: Context, request: ShareGroupHeartbeatRequest
) -> Mapping[Owner, ShareHeartbeatPart | None]:
    """Send a request that may be valid to the group's owner."""
    if not serves_share_groups(ctx) or _problem(request):
        return {}
    if request.member_epoch == JOIN_EPOCH and not has_state_topic(ctx):
        return {CONTROLLER: None}
    return _heartbeat_parts(ctx, request)


def _heartbeat_parts(
    ctx: Context, request: ShareGroupHeartbeatRequest
) -> dict[Owner, ShareHeartbeatPart | None]:
    names = request.subscribed_topic_names
    event = ShareHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        topics=None if names is None else tuple(names),
        client_id=ctx.header.client_id or "",
        client_host=f"/{ctx.caller.client_host}",
    )
    return {ctx.group_owner(request.group_id): ShareHeartbeatPart(request.group_id, event)}


def _next_heartbeat_round(
    ctx: Context,
    request: ShareGroupHeartbeatRequest,
    replies: Mapping[Owner, ShareHeartbeatResult | None],
) -> Round | None:
    """Once the topic of states exists, send the heartbeat to the group's owner."""
    if list(replies) != [CONTROLLER]:
        return None
    return Round(_heartbeat_parts(ctx, request))


def _problem(request: ShareGroupHeartbeatRequest) -> str:
    """Why a request cannot be valid, in Kafka's order; empty if it may be."""
    epoch = request.member_epoch
    if not is_member_id(request.member_id):
        return "Invalid member id in the request."
    for name, text in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            return f"{name} can't be empty."
    if epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        return "SubscribedTopicNames must be set in first request."
    return "MemberEpoch is invalid." if epoch < LEAVE_EPOCH else ""


async def _beat(scope: WorkerScope, part: ShareHeartbeatPart) -> ShareHeartbeatResult:
    """Handle a heartbeat; once more for the member if partitions got their states by it."""
    group_id, event = part
    result = scope.groups.share_heartbeat(group_id, event)
    is_last = event.member_epoch == LEAVE_EPOCH
    if result.error is not ErrorCode.NONE or is_last or not await _create_states(scope, group_id):
        return result
    again = event._replace(member_epoch=result.member_epoch, assigns_now=True)
    repeated = scope.groups.share_heartbeat(group_id, again)
    if repeated.error is not ErrorCode.NONE:
        return result
    return repeated if repeated.assignment or not result.assignment else result


async def _create_states(scope: WorkerScope, group_id: str) -> bool:
    """Create the states of partitions that have none; return whether some have got theirs.

    Another heartbeat waits until then: it would replace states that members already use.
    """
    creating, has_waited = scope.groups.creating_states, False
    while group_id in creating:
        has_waited = True
        await creating[group_id].wait()
    group = scope.groups.share_group(group_id)
    if not isinstance(group, ShareGroup) or not group.unshared_partitions:
        return has_waited
    created = creating[group_id] = trio.Event()
    try:
        initialized = await _initialize(scope, group)
    finally:
        del creating[group_id]
        created.set()
    group = scope.groups.share_group(group_id)
    if not initialized or not isinstance(group, ShareGroup):
        return False
    return scope.groups.change_shares(group, SharesChanged(initialized)) is ErrorCode.NONE


async def _initialize(scope: WorkerScope, group: ShareGroup) -> dict[Uuid, frozenset[int]]:
    """Create the missing states; return the partitions that have one now."""
    known = group.data.shared.initialized
    operations = [
        InitializeState(
            ShareKey(group.group_id, topic, index),
            group.data.group_epoch,
            0 if topic in known else UNKNOWN_OFFSET,
        )
        for topic, partitions in group.unshared_partitions.items()
        for index in sorted(partitions)
    ]
    initialized: dict[Uuid, frozenset[int]] = {}
    for operation in operations:
        reply = await scope.request_state(operation)
        if reply.error is ErrorCode.NONE:
            topic = operation.key.topic_id
            initialized[topic] = initialized.get(topic, frozenset()) | {operation.key.partition}
    return initialized


def _merge_heartbeat(
    ctx: Context,
    request: ShareGroupHeartbeatRequest,
    replies: Mapping[Owner, ShareHeartbeatResult | None],
) -> ShareGroupHeartbeatResponse:
    if not serves_share_groups(ctx):
        ctx.unserved = SHARE_GROUPS
        return ShareGroupHeartbeatResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=SHARE_GROUPS.text
        )
    result = next((reply for reply in replies.values() if reply is not None), None)
    if result is None:
        text = _problem(request)
        error = ErrorCode.INVALID_REQUEST if text else ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ShareGroupHeartbeatResponse(error_code=error, error_message=text or None)
    assignment = None
    if result.assignment is not None:
        assignment = heartbeat.Assignment(
            topic_partitions=[
                heartbeat.TopicPartitions(topic_id=topic, partitions=list(partitions))
                for topic, partitions in result.assignment
            ]
        )
    return ShareGroupHeartbeatResponse(
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
    group_id, member_id, epoch, rack_id, topics = request
    if topics is not None or not serves_share_groups(scope.worker):
        return None
    event = ShareHeartbeat(
        member_id=member_id,
        member_epoch=epoch,
        rack_id=rack_id,
        client_id=scope.client_id or "",
        client_host=f"/{scope.caller.client_host}",
    )
    extended = scope.worker.groups.extend_session(group_id, ShareGroup, event)
    if extended is None:
        return None
    group, repeat = extended
    scope.repeat_by(repeat)
    return 0, ErrorCode.NONE, None, member_id, epoch, group.times.heartbeat_interval_ms


SHARE_GROUP_HEARTBEAT: Api[
    ShareGroupHeartbeatRequest, Any, ShareHeartbeatResult | None, ShareGroupHeartbeatResponse
] = Api(
    key=ApiKey.SHARE_GROUP_HEARTBEAT,
    versions=(1, 1),
    requires=SPECIAL,
    split=_split_heartbeat,
    execute=_beat,
    execute_at_controller=create_state_topic,
    merge=_merge_heartbeat,
    next_round=_next_heartbeat_round,
    single=SingleForm(Shape(), _beat_in_one_step, repeats=True),
)


# ShareGroupDescribe (77) --------------------------------------------------------------------------
#
# Describe the state, the epochs and the members of share groups. Version 1.


def _described(shown: ShareGroupDescription) -> dict[str, Any]:
    return {
        "group_state": shown.state,
        "group_epoch": shown.group_epoch,
        "assignment_epoch": shown.assignment_epoch,
        "assignor_name": SIMPLE,
        "members": [_described_member(member) for member in shown.members],
    }


def _described_member(member: ShareMemberDescription) -> described.Member:
    return described.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        assignment=described.Assignment(
            topic_partitions=[
                described.TopicPartitions(
                    topic_id=each.topic_id, topic_name=each.topic, partitions=list(each.partitions)
                )
                for each in member.assigned
            ]
        ),
    )


SHARE_GROUP_DESCRIBE = describe_api(
    ApiKey.SHARE_GROUP_DESCRIBE,
    versions=(1, 1),
    protocol=GroupProtocol("share", SHARE_GROUPS, serves_share_groups),
    find=lambda scope, group_id: scope.groups.describe_share_group(group_id),
    response_type=ShareGroupDescribeResponse,
    group_type=described.DescribedGroup,
    fields=_described,
)


# DescribeShareGroupOffsets (90) -------------------------------------------------------------------
#
# The start offset of each partition of a share group, and the lag behind it. Versions 0-1; version
# 1 adds the lag, which does not count records that are finished already.


class DescribedOffset(NamedTuple):
    """The start offset and the lag of a share partition."""

    start_offset: int = UNKNOWN_OFFSET
    leader_epoch: int = 0
    lag: int = -1


class OffsetsPart(NamedTuple):
    """A group, and its partitions by topic; None for all that it has."""

    group_id: str
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None


class OffsetsReply(NamedTuple):
    """The offsets of a group's partitions in the order of the request."""

    error: ErrorCode = ErrorCode.NONE
    found: tuple[tuple[str, int, DescribedOffset], ...] = ()


OffsetsReplies = dict[int, OffsetsReply]


def _split_offsets(
    ctx: Context, request: DescribeShareGroupOffsetsRequest
) -> Mapping[Owner, tuple[tuple[int, OffsetsPart], ...]]:
    if not serves_share_groups(ctx):
        return {}
    return parts_by_owner(
        (ctx.group_owner(group.group_id), (number, _offsets_part(group)))
        for number, group in enumerate(request.groups)
        if group.topics is None or group.topics
    )


def _offsets_part(group: offsets.DescribeShareGroupOffsetsRequestGroup) -> OffsetsPart:
    topics = None
    if group.topics is not None:
        topics = tuple((topic.topic_name, tuple(topic.partitions)) for topic in group.topics)
    return OffsetsPart(group.group_id, topics)


async def _describe_offsets(
    scope: WorkerScope, part: tuple[tuple[int, OffsetsPart], ...]
) -> OffsetsReplies:
    return {number: await _group_offsets(scope, each) for number, each in part}


async def _group_offsets(scope: WorkerScope, part: OffsetsPart) -> OffsetsReply:
    image, topics = scope.image, part.topics
    if topics is None:
        group = scope.groups.share_group(part.group_id)
        shared = group.data.shared.initialized if isinstance(group, ShareGroup) else {}
        topics = tuple(
            (image.topic_names[topic], tuple(sorted(partitions)))
            for topic, partitions in shared.items()
            if topic in image.topic_names
        )
    return OffsetsReply(
        found=tuple(
            [
                (name, index, await _described_offset(scope, part.group_id, name, index))
                for name, partitions in topics
                for index in partitions
            ]
        )
    )


async def _described_offset(
    scope: WorkerScope, group_id: str, name: str, index: int
) -> DescribedOffset:
    topic = scope.image.topics.get(name)
    if topic is None:
        return DescribedOffset()
    reply = await scope.request_state(SummarizeState(ShareKey(group_id, topic.topic_id, index)))
    if reply.error is not ErrorCode.NONE or reply.state is None:
        return DescribedOffset()
    state: ShareState = reply.state
    if state.start_offset == UNKNOWN_OFFSET or state.complete_count < 0:
        return DescribedOffset(state.start_offset, state.leader_epoch)
    owner = scope.partition_owner(name, index)
    query = OffsetQuery(name, index, LATEST, NO_LEADER_EPOCH)
    try:
        found = await scope.request_owner(owner, ApiKey.LIST_OFFSETS, (query,))
    except (PeerLost, PeerFailed):
        return DescribedOffset(state.start_offset, state.leader_epoch)
    end: int = found[name, index].offset
    lag = end - state.start_offset - state.complete_count
    return DescribedOffset(state.start_offset, state.leader_epoch, lag)


def _merge_offsets(
    ctx: Context,
    request: DescribeShareGroupOffsetsRequest,
    replies: Mapping[Owner, OffsetsReplies],
) -> DescribeShareGroupOffsetsResponse:
    found = all_results(replies)
    if not serves_share_groups(ctx):
        ctx.unserved = SHARE_GROUPS
        unserved = OffsetsReply(ErrorCode.UNSUPPORTED_VERSION)
        found = dict.fromkeys(range(len(request.groups)), unserved)
    return DescribeShareGroupOffsetsResponse(
        groups=[
            _offsets_group(ctx, group, found.get(number, OffsetsReply()))
            for number, group in enumerate(request.groups)
        ]
    )


def _offsets_group(
    ctx: Context, group: offsets.DescribeShareGroupOffsetsRequestGroup, reply: OffsetsReply
) -> offsets.DescribeShareGroupOffsetsResponseGroup:
    # Kafka returns unknown topics also if no partition of them is requested.
    topics = {
        topic.topic_name: offsets.DescribeShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, topic_id=ZERO_UUID
        )
        for topic in group.topics or ()
        if reply.error is ErrorCode.NONE and topic.topic_name not in ctx.image.topics
    }
    for name, index, shown in reply.found:
        known = ctx.image.topics.get(name)
        topic = topics.setdefault(
            name,
            offsets.DescribeShareGroupOffsetsResponseTopic(
                topic_name=name, topic_id=ZERO_UUID if known is None else known.topic_id
            ),
        )
        topic.partitions.append(
            offsets.DescribeShareGroupOffsetsResponsePartition(
                partition_index=index,
                start_offset=shown.start_offset,
                leader_epoch=shown.leader_epoch,
                lag=shown.lag,
            )
        )
    return offsets.DescribeShareGroupOffsetsResponseGroup(
        group_id=group.group_id, topics=list(topics.values()), error_code=reply.error
    )


DESCRIBE_SHARE_GROUP_OFFSETS = Api(
    key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    versions=(0, 1),
    requires=SPECIAL,
    split=_split_offsets,
    execute=_describe_offsets,
    merge=_merge_offsets,
)


# AlterShareGroupOffsets (91) and DeleteShareGroupOffsets (92) -------------------------------------
#
# Move a share group without members to other offsets, or let it forget topics. Version 0.


class AlterPart(NamedTuple):
    """A group, and the start offsets of partitions."""

    group_id: str
    offsets: tuple[tuple[TopicPartition, int], ...]


class ChangeReply(NamedTuple):
    """An error of the whole request, or errors of partitions or topics."""

    error: ErrorCode = ErrorCode.NONE
    text: str | None = None
    results: Mapping[TopicPartition, ErrorCode] = {}


def _split_alter(
    ctx: Context, request: AlterShareGroupOffsetsRequest
) -> Mapping[Owner, AlterPart | None]:
    if not serves_share_groups(ctx) or not request.group_id:
        return {}
    return {CONTROLLER: None} if not has_state_topic(ctx) else _alter_parts(ctx, request)


def _alter_parts(
    ctx: Context, request: AlterShareGroupOffsetsRequest
) -> dict[Owner, AlterPart | None]:
    wanted = tuple(
        ((topic.topic_name, partition.partition_index), partition.start_offset)
        for topic in request.topics
        for partition in topic.partitions
        if ctx.image.partition(topic.topic_name, partition.partition_index) is not None
    )
    return {ctx.group_owner(request.group_id): AlterPart(request.group_id, wanted)}


def _next_alter_round(
    ctx: Context,
    request: AlterShareGroupOffsetsRequest,
    replies: Mapping[Owner, ChangeReply | None],
) -> Round | None:
    """Once the topic of states exists, send the request to the group's owner."""
    return Round(_alter_parts(ctx, request)) if list(replies) == [CONTROLLER] else None


async def _alter(scope: WorkerScope, part: AlterPart) -> ChangeReply:
    group = scope.groups.share_group(part.group_id, creates=True)
    if not isinstance(group, ShareGroup):
        is_other = scope.groups.has(part.group_id)
        text = f"Group {part.group_id} is not a share group." if is_other else None
        return ChangeReply(group, text)
    if group.data.members:
        return ChangeReply(ErrorCode.NON_EMPTY_GROUP)
    results: dict[TopicPartition, ErrorCode] = {}
    initialized: dict[Uuid, frozenset[int]] = {}
    for (name, index), start in part.offsets:
        topic = scope.image.topics[name].topic_id
        key = ShareKey(part.group_id, topic, index)
        reply = await scope.request_state(InitializeState(key, group.data.group_epoch, start))
        results[name, index] = reply.error
        if reply.error is ErrorCode.NONE:
            initialized[topic] = initialized.get(topic, frozenset()) | {index}
    if not initialized:
        return ChangeReply(results=results)
    error = scope.groups.change_shares(group, SharesChanged(initialized))
    return ChangeReply(error, None, results)


def _merge_alter(
    ctx: Context,
    request: AlterShareGroupOffsetsRequest,
    replies: Mapping[Owner, ChangeReply | None],
) -> AlterShareGroupOffsetsResponse:
    reply = _change_reply(ctx, replies)
    if reply.error is not ErrorCode.NONE:
        return AlterShareGroupOffsetsResponse(error_code=reply.error, error_message=reply.text)
    response = AlterShareGroupOffsetsResponse()
    for topic in request.topics:
        known = ctx.image.topics.get(topic.topic_name)
        response.responses.append(
            altering.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=ZERO_UUID if known is None else known.topic_id,
                partitions=[
                    altering.AlterShareGroupOffsetsResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=reply.results.get(
                            (topic.topic_name, partition.partition_index),
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
        )
    return response


def _change_reply(ctx: Context, replies: Mapping[Owner, ChangeReply | None]) -> ChangeReply:
    """The reply of the group's owner, or the error of a request that did not reach it."""
    if not serves_share_groups(ctx):
        ctx.unserved = SHARE_GROUPS
        return ChangeReply(ErrorCode.UNSUPPORTED_VERSION, SHARE_GROUPS.text)
    reply = next((each for each in replies.values() if each is not None), None)
    return reply or ChangeReply(ErrorCode.INVALID_GROUP_ID)


ALTER_SHARE_GROUP_OFFSETS: Api[
    AlterShareGroupOffsetsRequest, Any, ChangeReply | None, AlterShareGroupOffsetsResponse
] = Api(
    key=ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    versions=(0, 0),
    requires=SPECIAL,
    split=_split_alter,
    execute=_alter,
    execute_at_controller=create_state_topic,
    merge=_merge_alter,
    next_round=_next_alter_round,
)


class ForgetPart(NamedTuple):
    """A group, and topics that it forgets."""

    group_id: str
    topics: tuple[str, ...]


NO_OFFSETS: Final = "There is no offset information to delete."


def _split_forget(
    ctx: Context, request: DeleteShareGroupOffsetsRequest
) -> Mapping[Owner, ForgetPart]:
    if not serves_share_groups(ctx) or not request.group_id:
        return {}
    names = tuple(topic.topic_name for topic in request.topics)
    return {ctx.group_owner(request.group_id): ForgetPart(request.group_id, names)}


async def _forget(scope: WorkerScope, part: ForgetPart) -> ChangeReply:
    group = scope.groups.share_group(part.group_id)
    if not isinstance(group, ShareGroup):
        what = "is not a share group" if scope.groups.has(part.group_id) else "not found"
        return ChangeReply(group, f"Group {part.group_id} {what}.")
    if group.data.members:
        return ChangeReply(ErrorCode.NON_EMPTY_GROUP)
    results: dict[TopicPartition, ErrorCode] = {}
    for name in part.topics:
        topic = scope.image.topics.get(name)
        partitions = None
        if topic is not None:
            partitions = group.data.shared.initialized.get(topic.topic_id)
            if partitions is None and topic.topic_id in group.data.shared.deleting:
                partitions = frozenset(range(len(topic.partitions)))
        if topic is None or partitions is None:
            continue
        scope.groups.change_shares(group, SharesChanged(deleting=frozenset({topic.topic_id})))
        results[name, 0] = await _delete_states(scope, part.group_id, topic.topic_id, partitions)
        if results[name, 0] is ErrorCode.NONE:
            scope.groups.change_shares(group, SharesChanged(deleted=frozenset({topic.topic_id})))
    return ChangeReply(results=results)


async def _delete_states(
    scope: WorkerScope, group_id: str, topic_id: Uuid, partitions: Iterable[int]
) -> ErrorCode:
    for index in sorted(partitions):
        reply = await scope.request_state(DeleteState(ShareKey(group_id, topic_id, index)))
        if reply.error is not ErrorCode.NONE:
            return reply.error
    return ErrorCode.NONE


async def delete_share_states(scope: WorkerScope, group_id: str) -> ErrorCode:
    """Delete the states of a share group that is to be deleted; the error if one remains."""
    group = scope.groups.share_group(group_id)
    if not isinstance(group, ShareGroup) or group.data.members:
        return ErrorCode.NONE
    for topic, partitions in list(group.data.shared.initialized.items()):
        if topic in scope.image.topic_names:
            error = await _delete_states(scope, group_id, topic, partitions)
            if error is not ErrorCode.NONE:
                return error
    return ErrorCode.NONE


def _merge_forget(
    ctx: Context,
    request: DeleteShareGroupOffsetsRequest,
    replies: Mapping[Owner, ChangeReply],
) -> DeleteShareGroupOffsetsResponse:
    reply = _change_reply(ctx, replies)
    if reply.error is not ErrorCode.NONE:
        return DeleteShareGroupOffsetsResponse(error_code=reply.error, error_message=reply.text)
    return DeleteShareGroupOffsetsResponse(
        responses=[_forgotten(ctx, topic.topic_name, reply) for topic in request.topics]
    )


def _forgotten(
    ctx: Context, name: str, reply: ChangeReply
) -> deleting.DeleteShareGroupOffsetsResponseTopic:
    known = ctx.image.topics.get(name)
    error = reply.results.get((name, 0))
    if error is None:
        return deleting.DeleteShareGroupOffsetsResponseTopic(
            topic_name=name,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=None if known is None else NO_OFFSETS,
        )
    return deleting.DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, topic_id=ZERO_UUID if known is None else known.topic_id, error_code=error
    )


DELETE_SHARE_GROUP_OFFSETS = Api(
    key=ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    versions=(0, 0),
    requires=SPECIAL,
    split=_split_forget,
    execute=_forget,
    merge=_merge_forget,
)


APIS = (
    SHARE_GROUP_HEARTBEAT,
    SHARE_GROUP_DESCRIBE,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
)

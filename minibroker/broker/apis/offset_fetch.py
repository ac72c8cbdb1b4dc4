"""OffsetFetch (9): fetch the committed offsets of groups.

Versions 1-10: one group up to version 7, then several, with topic ids since version 10. Since
version 2, null topics request all offsets of the group. A partition without an offset gets -1 and
no error, whether it exists or not; with require_stable (since version 7), one that an open
transaction commits gets UNSTABLE_OFFSET_COMMIT. An unknown topic id is an error; committed topics
that no longer have an id are omitted. Kafka's counterparts are
``KafkaApis.handleOffsetFetchRequest`` and ``OffsetMetadataManager.fetchOffsets``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
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
from minibroker.broker.apis.topic_names import unknown_topic
from minibroker.broker.groups.offsets import OffsetTable
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID

GROUP_ERROR_SINCE: Final = 2
SEVERAL_GROUPS_SINCE: Final = 8
TOPIC_IDS_SINCE: Final = 10


class RequestedGroup(NamedTuple):
    """A group of the request: its index, and its partitions by topic, or None for all."""

    place: int
    group_id: str
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None
    member_id: str | None
    member_epoch: int
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    """A committed offset; -1 if there is none, or an open transaction may change it."""

    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


OffsetFetchPart = tuple[RequestedGroup, ...]
Topics = tuple[tuple[str, tuple[FetchedOffset, ...]], ...]


class FetchedGroup(NamedTuple):
    """The offsets of a group in the order of the request, and the group's error."""

    error: ErrorCode
    topics: Topics


OffsetFetchReply = dict[int, FetchedGroup]
"""Fetched groups by their index in the request."""


def split(ctx: Context, request: OffsetFetchRequest) -> Mapping[Owner, OffsetFetchPart]:
    """Send each group to its owner."""
    parts: dict[Owner, list[RequestedGroup]] = {}
    for place, group in enumerate(_groups(ctx, request)):
        topics = None
        if group.topics is not None:
            topics = tuple(_known(ctx, group.topics))
        part = RequestedGroup(
            place,
            group.group_id,
            topics,
            group.member_id,
            group.member_epoch,
            request.require_stable,
        )
        parts.setdefault(ctx.group_owner(group.group_id), []).append(part)
    return {owner: tuple(groups) for owner, groups in parts.items()}


def _groups(ctx: Context, request: OffsetFetchRequest) -> list[OffsetFetchRequestGroup]:
    """The requested groups, in the format of the newer versions."""
    if ctx.version >= SEVERAL_GROUPS_SINCE:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def _name(ctx: Context, topic: OffsetFetchRequestTopics) -> str | None:
    """The topic name. It may be missing in the image, since offsets may outlive their topic."""
    return (
        topic.name if ctx.version < TOPIC_IDS_SINCE else ctx.image.topic_names.get(topic.topic_id)
    )


def _known(
    ctx: Context, topics: list[OffsetFetchRequestTopics]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for topic in topics:
        name = _name(ctx, topic)
        if name is not None:
            yield name, tuple(topic.partition_indexes)


def execute(scope: WorkerScope, part: OffsetFetchPart) -> OffsetFetchReply:
    """Look up the offsets."""
    return {group.place: _fetch(scope, group) for group in part}


def _fetch(scope: WorkerScope, group: RequestedGroup) -> FetchedGroup:
    found = scope.groups.committed(group.group_id, group.member_id, group.member_epoch)
    table, topics, error = OffsetTable(), group.topics, ErrorCode.NONE
    if isinstance(found, ErrorCode):
        error = found
    else:
        table = found
    if topics is None:
        topics = tuple((name, tuple(table.partitions(name))) for name in table.topics())
    unstable = frozenset[tuple[str, int]]()
    if group.require_stable and error is ErrorCode.NONE:
        unstable = scope.groups.pending_offsets(group.group_id)
    return FetchedGroup(error, tuple(_look_up(table, topics, unstable)))


def _look_up(
    table: OffsetTable,
    topics: Iterable[tuple[str, tuple[int, ...]]],
    unstable: Container[tuple[str, int]],
) -> Iterator[tuple[str, tuple[FetchedOffset, ...]]]:
    for name, partitions in topics:
        known = table.partitions(name)
        found = []
        for index in partitions:
            committed = known.get(index)
            if (name, index) in unstable:
                fetched = FetchedOffset(index, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
            elif committed is None:
                fetched = FetchedOffset(index)
            else:
                fetched = FetchedOffset(
                    index, committed.offset, committed.leader_epoch, committed.metadata
                )
            found.append(fetched)
        yield name, tuple(found)


def merge(
    ctx: Context, request: OffsetFetchRequest, replies: Mapping[Owner, OffsetFetchReply]
) -> OffsetFetchResponse:
    """Return the groups in the order of the request."""
    found = {place: fetched for reply in replies.values() for place, fetched in reply.items()}
    groups = [_group(ctx, group, found[place]) for place, group in enumerate(_groups(ctx, request))]
    if ctx.version >= SEVERAL_GROUPS_SINCE:
        return OffsetFetchResponse(groups=groups)
    topics = [_older(topic) for topic in groups[0].topics]
    return OffsetFetchResponse(error_code=groups[0].error_code, topics=topics)


def _group(
    ctx: Context, group: OffsetFetchRequestGroup, fetched: FetchedGroup
) -> OffsetFetchResponseGroup:
    if fetched.error is not ErrorCode.NONE and ctx.version >= GROUP_ERROR_SINCE:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=fetched.error)
    topics = list(_topics(ctx, group, fetched.topics))
    if fetched.error is not ErrorCode.NONE:
        for topic in topics:
            for partition in topic.partitions:
                partition.error_code = fetched.error
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _topics(
    ctx: Context, group: OffsetFetchRequestGroup, found: Topics
) -> Iterator[OffsetFetchResponseTopics]:
    by_id = ctx.version >= TOPIC_IDS_SINCE
    if group.topics is None:
        for name, partitions in found:
            topic = ctx.image.topics.get(name)
            topic_id = ZERO_UUID if topic is None else topic.topic_id
            if topic is not None or not by_id:
                yield _topic(name, topic_id, partitions)
        return
    answers = iter(found)
    for each in group.topics:
        if _name(ctx, each) is None:
            yield _unknown(each)
        else:
            name, partitions = next(answers)
            yield _topic(name, each.topic_id, partitions)


def _topic(
    name: str, topic_id: bytes, partitions: tuple[FetchedOffset, ...]
) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=name,
        topic_id=topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=found.partition,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                metadata=found.metadata,
                error_code=found.error,
            )
            for found in partitions
        ],
    )


def _unknown(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=-1,
                metadata="",
                error_code=unknown_topic(None, by_id=True),
            )
            for index in topic.partition_indexes
        ],
    )


def _older(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=found.partition_index,
                committed_offset=found.committed_offset,
                committed_leader_epoch=found.committed_leader_epoch,
                metadata=found.metadata,
                error_code=found.error_code,
            )
            for found in topic.partitions
        ],
    )


def execute_single(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Look up offsets of one topic for one group in this process, if none of them is pending."""
    older_group, older_topic, older_indexes = request[:3]
    group_id, member_id, member_epoch, topic, topic_id, indexes, require_stable = request[3:]
    if version < SEVERAL_GROUPS_SINCE:
        group_id, topic, indexes = older_group, older_topic, older_indexes
    groups = scope.worker.groups
    name = topic if version < TOPIC_IDS_SINCE else scope.image.topic_names.get(topic_id)
    if name is None or not groups.has(group_id):
        return None
    table = groups.committed(group_id, member_id, member_epoch)
    if isinstance(table, ErrorCode) or (require_stable and groups.pending_offsets(group_id)):
        return None
    found = []
    for index in indexes:
        committed = table.get(name, index)
        if committed is None:
            found.append((index, -1, -1, "", ErrorCode.NONE))
        else:
            offset, leader_epoch, metadata = committed[:3]
            found.append((index, offset, leader_epoch, metadata, ErrorCode.NONE))
    if version < SEVERAL_GROUPS_SINCE:
        return 0, topic, found, ErrorCode.NONE, "", "", ZERO_UUID, (), ErrorCode.NONE
    return 0, "", (), ErrorCode.NONE, group_id, topic, topic_id, found, ErrorCode.NONE


SINGLE: Final = SingleForm(
    Shape(frozenset({"topics", "groups"}), frozenset({"partition_indexes", "partitions"})),
    execute_single,
)

API: Api[OffsetFetchRequest, OffsetFetchPart, OffsetFetchReply, OffsetFetchResponse] = Api(
    key=ApiKey.OFFSET_FETCH,
    versions=(1, 10),
    requires=SPECIAL,
    split=split,
    execute=execute,
    merge=merge,
    single=SINGLE,
    left_out=("member id and epoch of KIP-848: its groups are not served yet",),
)

"""The requests about committed offsets: commit, fetch and delete them.

Each is executed by the worker that owns the group. Invariant: offsets are committed only for
partitions in the image, and fetched also for topics that are gone. In Kafka: ``KafkaApis`` and
``OffsetMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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
from minibroker.broker.apis.transaction_verification import (
    ProducerSession,
    TransactionSupport,
    requested_support,
    verify_transaction,
)
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.offsets import CommittedOffset, OffsetTable
from minibroker.broker.groups.state_log import OffsetsTransaction
from minibroker.broker.metadata.image import OFFSETS_TOPIC, offsets_partition
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings import OFFSETS_TOPIC_NUM_PARTITIONS
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from minibroker_protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
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
from minibroker_protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from minibroker_protocol.records import NO_SEQUENCE
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID


def unknown_topic(name: str | None, *, by_id: bool) -> ErrorCode:
    """Error of a partition that does not exist; ``name`` is None if its topic does not either."""
    if by_id and name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# OffsetCommit (8) ---------------------------------------------------------------------------------
#
# Commit offsets of a group. Versions 2-10, with topic ids since version 10. In versions 2 to 4, the
# request may contain a retention time. A partition that does not exist gets
# UNKNOWN_TOPIC_OR_PARTITION, and an unknown id UNKNOWN_TOPIC_ID; the other offsets are committed in
# one batch. A member of a group that does not exist gets GROUP_ID_NOT_FOUND since version 9, and
# ILLEGAL_GENERATION before. Kafka's counterparts are ``KafkaApis.handleOffsetCommitRequest`` and
# ``OffsetMetadataManager.commitOffset``.


COMMIT_TOPIC_IDS_SINCE: Final = 10
NO_SUCH_GROUP_SINCE: Final = 9
MEMBER_EPOCHS_SINCE: Final = 9
"""First version with which members of consumer groups may commit."""
NO_RETENTION: Final = -1
EXPIRY_MAX_MS: Final = 2**63 - 1
"""Latest expiry time. A client may request a time beyond the range of the record."""


class CommitPosition(NamedTuple):
    """The offset to commit for one partition."""

    offset: int
    leader_epoch: int
    metadata: str


class OffsetCommitPart(NamedTuple):
    """The offsets that a group commits. ``retention_ms`` of None means the broker's retention."""

    group_id: str
    event: CommitRequested
    offsets: dict[tuple[str, int], CommitPosition]
    retention_ms: int | None


OffsetCommitReply = dict[tuple[str, int], ErrorCode]


def _split_commit(ctx: Context, request: OffsetCommitRequest) -> Mapping[Owner, OffsetCommitPart]:
    """Send the offsets of existing partitions to the group's owner."""
    offsets: dict[tuple[str, int], CommitPosition] = {}
    for topic in request.topics:
        name = ctx.topic_name(topic.name, topic.topic_id, ids_since=COMMIT_TOPIC_IDS_SINCE)
        for each in topic.partitions:
            if name is not None and ctx.image.partition(name, each.partition_index) is not None:
                offsets[name, each.partition_index] = CommitPosition(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                )
    if not offsets:
        return {}
    event = CommitRequested(
        member_id=request.member_id,
        generation=request.generation_id_or_member_epoch,
        group_instance_id=request.group_instance_id,
        knows_epochs=ctx.version >= MEMBER_EPOCHS_SINCE,
    )
    retention_ms = None
    if request.retention_time_ms != NO_RETENTION:
        retention_ms = request.retention_time_ms
    part = OffsetCommitPart(request.group_id, event, offsets, retention_ms)
    return {ctx.group_owner(request.group_id): part}


def _commit(scope: WorkerScope, part: OffsetCommitPart) -> OffsetCommitReply:
    """Write the offsets if the group accepts the commit."""
    now_ms = scope.wall_ms()
    expire_ms = None
    if part.retention_ms is not None:
        expire_ms = min(now_ms + part.retention_ms, EXPIRY_MAX_MS)
    offsets = {
        key: CommittedOffset(offset, leader_epoch, metadata, now_ms, expire_ms)
        for key, (offset, leader_epoch, metadata) in part.offsets.items()
    }
    return scope.groups.commit(part.group_id, part.event, offsets)


def _merge_commit(
    ctx: Context, request: OffsetCommitRequest, replies: Mapping[Owner, OffsetCommitReply]
) -> OffsetCommitResponse:
    errors = all_results(replies)
    return OffsetCommitResponse(
        topics=[_committed_topic(ctx, topic, errors) for topic in request.topics]
    )


def _committed_topic(
    ctx: Context, topic: OffsetCommitRequestTopic, errors: OffsetCommitReply
) -> OffsetCommitResponseTopic:
    name = ctx.topic_name(topic.name, topic.topic_id, ids_since=COMMIT_TOPIC_IDS_SINCE)
    missing = unknown_topic(name, by_id=ctx.version >= COMMIT_TOPIC_IDS_SINCE)
    partitions = []
    for each in topic.partitions:
        error = missing if name is None else errors.get((name, each.partition_index), missing)
        if error is ErrorCode.GROUP_ID_NOT_FOUND and ctx.version < NO_SUCH_GROUP_SINCE:
            error = ErrorCode.ILLEGAL_GENERATION
        partitions.append(
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
        )
    return OffsetCommitResponseTopic(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )


def _commit_in_one_step(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Commit offsets of one topic if its partitions exist, and the group is in this process."""
    group_id, generation, member_id, group_instance_id, retention_ms, name, topic_id, found = (
        request
    )
    worker = scope.worker
    topic = (
        scope.image.topics.get(name)
        if version < COMMIT_TOPIC_IDS_SINCE
        else scope.image.topic_by_id(topic_id)
    )
    if (
        topic is None
        or not found
        or retention_ms != NO_RETENTION
        or not worker.groups.has(group_id)
    ):
        return None
    now_ms, offsets = worker.wall_ms(), {}
    for index, offset, leader_epoch, metadata in found:
        if not 0 <= index < len(topic.partitions) or not worker.groups.accepts(metadata or ""):
            return None
        offsets[topic.name, index] = CommittedOffset(offset, leader_epoch, metadata or "", now_ms)
    knows_epochs = version >= MEMBER_EPOCHS_SINCE
    event = CommitRequested(member_id, generation, group_instance_id, knows_epochs=knows_epochs)
    # All offsets are written or none: then the three steps find the error again.
    if any(worker.groups.commit(group_id, event, offsets).values()):
        return None
    return 0, name, topic_id, [(each[0], ErrorCode.NONE) for each in found]


_COMMIT_SINGLE: Final = SingleForm(
    Shape(frozenset({"topics"}), frozenset({"partitions"})), _commit_in_one_step
)

OFFSET_COMMIT = Api(
    key=ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    requires=(
        Requires(Operation.READ, Meaning.GROUP),
        Requires(Operation.READ, Meaning.TOPIC),
    ),
    split=_split_commit,
    execute=_commit,
    merge=_merge_commit,
    single=_COMMIT_SINGLE,
)


# TxnOffsetCommit (28) -----------------------------------------------------------------------------
#
# Commit offsets of a group in a transaction. Versions 0-6, with topic ids since version 6. The
# offsets are written as a transactional batch and are in force when the transaction commits. First
# the transaction's coordinator is asked whether the transaction is ongoing; since version 5 this
# also adds the partition of ``__consumer_offsets`` to it (KIP-890). A partition that does not exist
# gets UNKNOWN_TOPIC_OR_PARTITION; the other offsets are committed in one batch. In Kafka:
# ``KafkaApis.handleTxnOffsetCommitRequest`` and
# ``OffsetMetadataManager.commitTransactionalOffset``.


LOAD_ERROR_SINCE: Final = 2
"""First version whose clients know COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""

GENERIC_ERRORS_SINCE: Final = 4
TXN_COMMIT_TOPIC_IDS_SINCE: Final = 6
ADDED_SINCE: Final = 5
"""First version that adds the partition to the transaction."""

GROUP_ERRORS_SINCE: Final = 6
"""First version whose clients know the errors of groups that are not there, and of epochs."""

_NEW_GROUP_ERRORS: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.STALE_MEMBER_EPOCH})

_TXN_COMMIT_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""Errors of groups, logs and coordinators as the clients of this API get them."""


class TxnOffsetCommitPart(NamedTuple):
    """The offsets that a group commits in a transaction."""

    group_id: str
    event: CommitRequested
    offsets: dict[tuple[str, int], CommitPosition]
    producer: ProducerSession
    support: TransactionSupport


TxnOffsetCommitReply = dict[tuple[str, int], ErrorCode]


def _split_txn_commit(
    ctx: Context, request: TxnOffsetCommitRequest
) -> Mapping[Owner, TxnOffsetCommitPart]:
    """Send the offsets of existing partitions to the group's owner."""
    offsets = {
        (name, each.partition_index): CommitPosition(
            each.committed_offset, each.committed_leader_epoch, each.committed_metadata or ""
        )
        for topic in request.topics
        if (
            name := ctx.topic_name(topic.name, topic.topic_id, ids_since=TXN_COMMIT_TOPIC_IDS_SINCE)
        )
        is not None
        for each in topic.partitions
        if ctx.image.partition(name, each.partition_index) is not None
    }
    if not offsets or not request.group_id:
        return {}
    part = TxnOffsetCommitPart(
        request.group_id,
        CommitRequested(
            member_id=request.member_id,
            generation=request.generation_id_or_member_epoch,
            group_instance_id=request.group_instance_id,
            transactional=True,
        ),
        offsets,
        ProducerSession(request.transactional_id, request.producer_id, request.producer_epoch),
        requested_support(ctx, generic_since=GENERIC_ERRORS_SINCE, add_since=ADDED_SINCE),
    )
    return {ctx.group_owner(request.group_id): part}


async def commit_in_transaction(
    scope: WorkerScope, part: TxnOffsetCommitPart
) -> TxnOffsetCommitReply:
    """Write the offsets if the transaction is ongoing and the group accepts the commit."""
    count = scope.settings[OFFSETS_TOPIC_NUM_PARTITIONS]
    partition = OFFSETS_TOPIC, offsets_partition(part.group_id, count)
    guards, rejected = await verify_transaction(
        scope, part.producer, {partition: NO_SEQUENCE}, part.support
    )
    for error in rejected.values():
        return dict.fromkeys(part.offsets, _TXN_COMMIT_ERRORS.get(error, error))
    now_ms = scope.wall_ms()
    offsets = {
        key: CommittedOffset(offset, leader_epoch, metadata, now_ms)
        for key, (offset, leader_epoch, metadata) in part.offsets.items()
    }
    transaction = OffsetsTransaction(
        part.producer.producer_id, part.producer.producer_epoch, guards[partition]
    )
    errors = scope.groups.commit_pending(part.group_id, part.event, offsets, transaction)
    return {key: _TXN_COMMIT_ERRORS.get(error, error) for key, error in errors.items()}


def _merge_txn_commit(
    ctx: Context, request: TxnOffsetCommitRequest, replies: Mapping[Owner, TxnOffsetCommitReply]
) -> TxnOffsetCommitResponse:
    errors = all_results(replies)

    return TxnOffsetCommitResponse(
        topics=[_txn_committed_topic(ctx, request, each, errors) for each in request.topics]
    )


def _txn_committed_topic(
    ctx: Context,
    request: TxnOffsetCommitRequest,
    topic: TxnOffsetCommitRequestTopic,
    errors: TxnOffsetCommitReply,
) -> TxnOffsetCommitResponseTopic:
    name = ctx.topic_name(topic.name, topic.topic_id, ids_since=TXN_COMMIT_TOPIC_IDS_SINCE)

    def error(index: int) -> ErrorCode:
        if name is None or ctx.image.partition(name, index) is None:
            return unknown_topic(name, by_id=ctx.version >= TXN_COMMIT_TOPIC_IDS_SINCE)
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        code = errors[name, index]
        is_loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if is_loading and ctx.version < LOAD_ERROR_SINCE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code in _NEW_GROUP_ERRORS and ctx.version < GROUP_ERRORS_SINCE:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            TxnOffsetCommitResponsePartition(
                partition_index=each.partition_index, error_code=error(each.partition_index)
            )
            for each in topic.partitions
        ],
    )


TXN_OFFSET_COMMIT = Api(
    key=ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 6),
    requires=(
        Requires(Operation.WRITE, Meaning.TRANSACTIONAL_ID),
        Requires(Operation.READ, Meaning.GROUP),
        Requires(Operation.READ, Meaning.TOPIC),
    ),
    split=_split_txn_commit,
    execute=commit_in_transaction,
    merge=_merge_txn_commit,
)


# OffsetFetch (9) ----------------------------------------------------------------------------------
#
# Fetch the committed offsets of groups. Versions 1-10: one group up to version 7, then several,
# with topic ids since version 10. Since version 2, null topics request all offsets of the group. A
# partition without an offset gets -1 and no error, whether it exists or not; with require_stable
# (since version 7), one that an open transaction commits gets UNSTABLE_OFFSET_COMMIT. An unknown
# topic id is an error; committed topics that no longer have an id are omitted. Kafka's counterparts
# are ``KafkaApis.handleOffsetFetchRequest`` and ``OffsetMetadataManager.fetchOffsets``.


GROUP_ERROR_SINCE: Final = 2
SEVERAL_GROUPS_SINCE: Final = 8
FETCH_TOPIC_IDS_SINCE: Final = 10


class OffsetFetchPart(NamedTuple):
    """Groups of one owner with their places in the request; topics of unknown ids have no name."""

    groups: tuple[tuple[int, OffsetFetchRequestGroup], ...]
    by_id: bool
    require_stable: bool


OffsetFetchReply = dict[int, OffsetFetchResponseGroup]
"""Fetched groups by their places in the request."""


def _split_fetch(ctx: Context, request: OffsetFetchRequest) -> Mapping[Owner, OffsetFetchPart]:
    parts = parts_by_owner(
        (ctx.group_owner(group.group_id), (place, _with_names(ctx, group)))
        for place, group in enumerate(_requested_groups(ctx, request))
    )
    by_id = ctx.version >= FETCH_TOPIC_IDS_SINCE
    return {
        owner: OffsetFetchPart(groups, by_id, request.require_stable)
        for owner, groups in parts.items()
    }


def _requested_groups(ctx: Context, request: OffsetFetchRequest) -> list[OffsetFetchRequestGroup]:
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


def _with_names(ctx: Context, group: OffsetFetchRequestGroup) -> OffsetFetchRequestGroup:
    """The group with the names of its topics, which may be missing in the image: offsets may
    outlive their topic.
    """
    if ctx.version < FETCH_TOPIC_IDS_SINCE or group.topics is None:
        return group
    return OffsetFetchRequestGroup(
        group_id=group.group_id,
        member_id=group.member_id,
        member_epoch=group.member_epoch,
        topics=[
            OffsetFetchRequestTopics(
                name=ctx.image.topic_names.get(topic.topic_id, ""),
                topic_id=topic.topic_id,
                partition_indexes=topic.partition_indexes,
            )
            for topic in group.topics
        ],
    )


def _fetch_groups(scope: WorkerScope, part: OffsetFetchPart) -> OffsetFetchReply:
    return {place: _fetch(scope, part, group) for place, group in part.groups}


def _fetch(
    scope: WorkerScope, part: OffsetFetchPart, group: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    response = OffsetFetchResponseGroup(group_id=group.group_id)
    found = scope.groups.committed(group.group_id, group.member_id, group.member_epoch)
    table = OffsetTable() if isinstance(found, ErrorCode) else found
    unstable = frozenset[tuple[str, int]]()
    if isinstance(found, ErrorCode):
        response.error_code = found
    elif part.require_stable:
        unstable = scope.groups.pending_offsets(group.group_id)
    topics = group.topics
    if topics is None:
        topics = [
            OffsetFetchRequestTopics(name=name, partition_indexes=list(table.partitions(name)))
            for name in table.topics()
        ]
    for topic in topics:
        known, error = table.partitions(topic.name), ErrorCode.NONE
        if part.by_id and not topic.name:
            known, error = {}, unknown_topic(None, by_id=True)
        partitions = []
        for index in topic.partition_indexes:
            pending = (topic.name, index) in unstable
            problem = ErrorCode.UNSTABLE_OFFSET_COMMIT if pending else error
            partitions.append(_fetched_partition(index, known.get(index), problem))
        response.topics.append(
            OffsetFetchResponseTopics(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
    return response


def _fetched_partition(
    index: int, committed: CommittedOffset | None, error: ErrorCode
) -> OffsetFetchResponsePartitions:
    if committed is None or error:
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=-1, metadata="", error_code=error
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _merge_fetch(
    ctx: Context, request: OffsetFetchRequest, replies: Mapping[Owner, OffsetFetchReply]
) -> OffsetFetchResponse:
    found = all_results(replies)
    groups = [
        _fetched_group(ctx, found[place], wants_all=group.topics is None)
        for place, group in enumerate(_requested_groups(ctx, request))
    ]
    if ctx.version >= SEVERAL_GROUPS_SINCE:
        return OffsetFetchResponse(groups=groups)
    topics = [_older(topic) for topic in groups[0].topics]
    return OffsetFetchResponse(error_code=groups[0].error_code, topics=topics)


def _fetched_group(
    ctx: Context, fetched: OffsetFetchResponseGroup, *, wants_all: bool
) -> OffsetFetchResponseGroup:
    """The group as this version has its error, and the ids of topics."""
    error = fetched.error_code
    if error and ctx.version >= GROUP_ERROR_SINCE:
        return OffsetFetchResponseGroup(group_id=fetched.group_id, error_code=error)
    if error:
        fetched.error_code = ErrorCode.NONE
        for topic in fetched.topics:
            for partition in topic.partitions:
                partition.error_code = error
    if wants_all and ctx.version >= FETCH_TOPIC_IDS_SINCE:
        topics, fetched.topics = fetched.topics, []
        for topic in topics:
            known = ctx.image.topics.get(topic.name)
            if known is not None:
                topic.topic_id = known.topic_id
                fetched.topics.append(topic)
    return fetched


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


def _fetch_in_one_step(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Look up offsets of one topic for one group in this process, if none of them is pending."""
    older_group, older_topic, older_indexes = request[:3]
    group_id, member_id, member_epoch, topic, topic_id, indexes, require_stable = request[3:]
    if version < SEVERAL_GROUPS_SINCE:
        group_id, topic, indexes = older_group, older_topic, older_indexes
    groups = scope.worker.groups
    name = topic if version < FETCH_TOPIC_IDS_SINCE else scope.image.topic_names.get(topic_id)
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


_FETCH_SINGLE: Final = SingleForm(
    Shape(frozenset({"topics", "groups"}), frozenset({"partition_indexes", "partitions"})),
    _fetch_in_one_step,
)

OFFSET_FETCH = Api(
    key=ApiKey.OFFSET_FETCH,
    versions=(1, 10),
    requires=SPECIAL,
    split=_split_fetch,
    execute=_fetch_groups,
    merge=_merge_fetch,
    single=_FETCH_SINGLE,
)


# OffsetDelete (47) --------------------------------------------------------------------------------
#
# Delete offsets of a group. Version 0. While a consumer group has members, only offsets of topics
# to which no member is subscribed can be deleted; groups of other protocols must be empty.
# Partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION. If the group has an error, the
# response contains no partitions. Kafka's counterparts are ``KafkaApis.handleOffsetDeleteRequest``
# and ``OffsetMetadataManager.deleteOffsets``.


class OffsetDeletePart(NamedTuple):
    """The offsets to delete from a group."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


class OffsetDeleteReply(NamedTuple):
    """The error of the group, and one error per partition."""

    error: ErrorCode
    errors: dict[tuple[str, int], ErrorCode]


def _split_deletion(ctx: Context, request: OffsetDeleteRequest) -> Mapping[Owner, OffsetDeletePart]:
    """Send the existing partitions to the group's owner."""
    partitions = tuple(
        (topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
        if ctx.image.partition(topic.name, each.partition_index) is not None
    )
    return {ctx.group_owner(request.group_id): OffsetDeletePart(request.group_id, partitions)}


def _delete(scope: WorkerScope, part: OffsetDeletePart) -> OffsetDeleteReply:
    """Delete the offsets of topics without subscribers."""
    return OffsetDeleteReply(*scope.groups.delete_offsets(part.group_id, part.partitions))


def _merge_deletion(
    _ctx: Context, request: OffsetDeleteRequest, replies: Mapping[Owner, OffsetDeleteReply]
) -> OffsetDeleteResponse:
    (reply,) = replies.values()
    if reply.error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=reply.error)
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=reply.errors.get((topic.name, each.partition_index), missing),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


OFFSET_DELETE = Api(
    key=ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    requires=(
        Requires(Operation.DELETE, Meaning.GROUP),
        Requires(Operation.READ, Meaning.TOPIC),
    ),
    split=_split_deletion,
    execute=_delete,
    merge=_merge_deletion,
)


APIS = (
    OFFSET_COMMIT,
    TXN_OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_DELETE,
)

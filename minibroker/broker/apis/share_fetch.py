"""The requests of members of share groups for records: ShareFetch and ShareAcknowledge (KIP-932).

They are served if the feature ``share.version`` is 1; otherwise they get UNSUPPORTED_VERSION. The
session of a member (`shares.sessions`) is at the processor of its connection, the records that it
has acquired (`shares.share_partition`) are at the owners of the partitions. A single owner waits
for records by itself. Several owners first acquire what is there; if there is nothing, they wait
without acquiring until one of them could, then all acquire again, so nothing is acquired for a
response that does not contain it. Invariant: an acknowledgement has its result in the response,
also if the fetch has failed. Kafka's ``KafkaApis.handleShareFetchRequest``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from minibroker.broker.apis.base import SPECIAL, Api, Context, Owner, Round, WorkerScope
from minibroker.broker.apis.share_groups import (
    is_member_id,
    serves_share_groups,
)
from minibroker.broker.apis.unserved import SHARE_GROUPS
from minibroker.broker.security.acl import Operation, Resource
from minibroker.broker.settings import FETCH_MAX_BYTES
from minibroker.broker.shares.service import (
    ShareFetched,
    SharePart,
    ShareReply,
    TopicPartition,
    share_settings,
)
from minibroker.broker.shares.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MemberKey,
    ShareSession,
    ShareSessionCache,
    TopicIdPartition,
)
from minibroker.broker.shares.share_partition import (
    Acknowledgement,
    AcknowledgeType,
    AcquireLimits,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import share_acknowledge as acknowledging
from minibroker_protocol.messages import share_fetch as fetching
from minibroker_protocol.messages.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from minibroker_protocol.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import Uuid

Refusal = tuple[ErrorCode, str | None]

_NONE: Final[Refusal] = (ErrorCode.NONE, None)


class ShareContext:
    """What is known of a request between its steps."""

    def __init__(self) -> None:
        self.refusal: Refusal = _NONE
        """The error of the whole request."""
        self.session: ShareSession | None = None
        self.epoch = 0
        self.acknowledged: dict[TopicIdPartition, Refusal] = {}
        """Results of acknowledgements that reach no owner."""
        self.failed: dict[TopicIdPartition, ErrorCode] = {}
        """Errors of partitions that are not fetched."""
        self.parts: dict[Owner, SharePart] = {}
        self.names: dict[TopicIdPartition, TopicPartition] = {}
        """Topic and partition of what reaches an owner."""
        self.fetched: dict[TopicPartition, ShareFetched] = {}
        self.waits = False
        """Whether the last round only waited."""
        self._results: dict[TopicPartition, Refusal] = {}

    def note(self, replies: Mapping[Owner, ShareReply]) -> None:
        """Note what owners have replied."""
        for reply in replies.values():
            self.fetched.update(reply.fetched)
            self._results.update(reply.acknowledged)

    def all_acknowledged(self) -> Iterator[tuple[TopicIdPartition, Refusal]]:
        """The result of each acknowledged partition."""
        yield from self.acknowledged.items()
        for key, name in self.names.items():
            if name in self._results:
                yield key, self._results[name]


class _Shared(NamedTuple):
    """What the checks of both requests need."""

    ctx: Context
    group_id: str
    member_id: str
    supports_renewal: bool
    is_renewal: bool


def _refusal(ctx: Context, request: ShareFetchRequest | ShareAcknowledgeRequest) -> Refusal:
    """Why a request is refused as a whole, before its session; in Kafka's order."""
    if not serves_share_groups(ctx):
        ctx.unserved = SHARE_GROUPS
        return ErrorCode.UNSUPPORTED_VERSION, SHARE_GROUPS.text
    if request.group_id is None:
        return ErrorCode.INVALID_REQUEST, "Invalid group id in the request."
    if not ctx.allows(Operation.READ, Resource.GROUP, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, None
    if not is_member_id(request.member_id):
        return ErrorCode.INVALID_REQUEST, "Invalid member id in the request."
    return _NONE


def _sessions(ctx: Context) -> ShareSessionCache:
    assert ctx.share_sessions is not None
    return ctx.share_sessions


# Acknowledgements ---------------------------------------------------------------------------------


def _acknowledgements(
    shared: _Shared, context: ShareContext, topics: Iterable[Any]
) -> Iterator[tuple[TopicPartition, tuple[Acknowledgement, ...]]]:
    """Acknowledgements for the owners; the others get their results in the context.

    A partition without acknowledgements has a result only if there is no such partition.
    """
    for topic in topics:
        for partition in topic.partitions:
            key = topic.topic_id, partition.partition_index
            batches = tuple(
                Acknowledgement(
                    batch.first_offset, batch.last_offset, tuple(batch.acknowledge_types)
                )
                for batch in partition.acknowledgement_batches
            )
            refused = _acknowledge_refusal(shared, key, batches)
            name = shared.ctx.image.topic_names.get(key[0])
            if refused is not None or name is None:
                context.acknowledged[key] = refused or (ErrorCode.UNKNOWN_TOPIC_ID, None)
            elif batches:
                context.names[key] = name, key[1]
                yield (name, key[1]), batches


def _acknowledge_refusal(
    shared: _Shared, key: TopicIdPartition, batches: Sequence[Acknowledgement]
) -> Refusal | None:
    """The result of acknowledgements that reach no owner, in Kafka's order."""
    ctx = shared.ctx
    name = ctx.image.topic_names.get(key[0])
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID, None
    if not _are_valid(shared, batches):
        return ErrorCode.INVALID_REQUEST, None
    if not ctx.allows(Operation.READ, Resource.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
    if ctx.image.partition(name, key[1]) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    return None


def _are_valid(shared: _Shared, batches: Sequence[Acknowledgement]) -> bool:
    previous_end = -1
    highest = AcknowledgeType.RENEW if shared.supports_renewal else AcknowledgeType.REJECT
    for batch in batches:
        if batch.first > batch.last or batch.first <= previous_end:
            return False
        if not batch.types:
            return False
        if len(batch.types) > 1 and len(batch.types) != batch.last - batch.first + 1:
            return False
        if any(not AcknowledgeType.GAP <= kind <= highest for kind in batch.types):
            return False
        if AcknowledgeType.RENEW in batch.types and not shared.is_renewal:
            return False
        previous_end = batch.last
    return True


# ShareFetch (78) ----------------------------------------------------------------------------------
#
# Acquire records of the partitions of a session, and acknowledge earlier ones. Versions 1-2;
# version 2 adds the acquire mode and renewals. Epoch 0 opens a session, and -1 closes it.


RECORD_LIMIT_MODE: Final = 1
"""The acquire mode in which ``max_records`` is never exceeded (KIP-1206)."""


def _split_fetch(ctx: Context, request: ShareFetchRequest) -> Mapping[Owner, SharePart]:
    context = ctx.fetch_context = ShareContext()
    context.refusal = _refusal(ctx, request)
    if context.refusal is _NONE:
        context.refusal = _renewal_problem(ctx, request)
    if context.refusal is _NONE:
        context.refusal = _continue_session(ctx, request, context)
    if context.refusal is _NONE:
        context.parts = _fetch_parts(ctx, request, context)
    return context.parts


def _renewal_problem(ctx: Context, request: ShareFetchRequest) -> Refusal:
    if ctx.version < 2 or not request.is_renew_ack:
        return _NONE
    limits = {
        "maxBytes": request.max_bytes,
        "minBytes": request.min_bytes,
        "maxRecords": request.max_records,
        "maxWaitMs": request.max_wait_ms,
    }
    problems = [f"{name} must be set to 0, " for name, value in limits.items() if value]
    if not problems:
        return _NONE
    return ErrorCode.INVALID_REQUEST, f"{''.join(problems)}if isRenewAck is true."


def _has_acknowledgements(request: ShareFetchRequest) -> bool:
    return any(
        partition.acknowledgement_batches
        for topic in request.topics
        for partition in topic.partitions
    )


def _continue_session(ctx: Context, request: ShareFetchRequest, context: ShareContext) -> Refusal:
    key = MemberKey(request.group_id or "", request.member_id or "")
    sessions, epoch = _sessions(ctx), request.share_session_epoch
    named = [
        (topic.topic_id, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if epoch == INITIAL_EPOCH:
        if _has_acknowledgements(request):
            return ErrorCode.INVALID_REQUEST, None
        session = sessions.begin(key, ctx.caller.connection_id, named)
    else:
        session = sessions.find(key, epoch)
    if isinstance(session, ErrorCode):
        return session, None
    if epoch == FINAL_EPOCH:
        sessions.end(key)
    elif epoch != INITIAL_EPOCH:
        forgotten = [
            (topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ]
        session.update(named, forgotten)
        session.advance()
    context.session, context.epoch = session, epoch
    return _NONE


def _fetch_parts(
    ctx: Context, request: ShareFetchRequest, context: ShareContext
) -> dict[Owner, SharePart]:
    session = context.session
    assert session is not None
    is_renewal = ctx.version >= 2 and request.is_renew_ack
    shared = _Shared(ctx, *session.key, ctx.version >= 2, is_renewal)
    acknowledgements: dict[Owner, list[tuple[TopicPartition, tuple[Acknowledgement, ...]]]] = {}
    if _has_acknowledgements(request):
        for each in _acknowledgements(shared, context, request.topics):
            acknowledgements.setdefault(ctx.partition_owner(*each[0]), []).append(each)
    fetched: dict[Owner, list[TopicPartition]] = {}
    ends = context.epoch == FINAL_EPOCH
    for topic_id, index in session.rotated(context.epoch):
        name = ctx.image.topic_names.get(topic_id)
        if ends:
            if name is not None:
                fetched.setdefault(ctx.partition_owner(name, index), [])
            continue
        if is_renewal:
            continue
        error = _fetch_error(ctx, name, index)
        if error is not ErrorCode.NONE or name is None:
            context.failed[topic_id, index] = error
            continue
        context.names[topic_id, index] = name, index
        fetched.setdefault(ctx.partition_owner(name, index), []).append((name, index))
    limits = AcquireLimits(
        max(request.max_records, 0),
        max(request.batch_size, 1),
        ctx.version >= 2 and request.share_acquire_mode == RECORD_LIMIT_MODE,
    )
    bytes_max = min(request.max_bytes, ctx.settings[FETCH_MAX_BYTES], ctx.fetch_bytes_max)
    wants = bytes_max > 0 and limits.max_records > 0
    owners = fetched.keys() | acknowledgements.keys()
    is_single = len(owners) == 1
    deadline = ctx.received + max(request.max_wait_ms, 0) / 1000 if is_single else ctx.received
    return {
        owner: SharePart(
            session.key,
            session.connection,
            _sessions(ctx).processor,
            tuple(acknowledgements.get(owner, ())),
            tuple(fetched.get(owner, ())) if wants else (),
            limits,
            bytes_max,
            min(request.min_bytes, bytes_max),
            deadline,
            ends=ends,
        )
        for owner in owners
    }


def _fetch_error(ctx: Context, name: str | None, index: int) -> ErrorCode:
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not ctx.allows(Operation.READ, Resource.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if ctx.image.partition(name, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


async def _execute(scope: WorkerScope, part: SharePart) -> ShareReply:
    return await scope.shares.execute(part)


def _next_round(
    ctx: Context, request: ShareFetchRequest, replies: Mapping[Owner, ShareReply]
) -> Round | None:
    """If several owners have nothing, wait until one could acquire records; then acquire."""
    context: ShareContext = ctx.fetch_context
    context.note(replies)
    parts = {owner: part for owner, part in context.parts.items() if part.fetched}
    deadline = ctx.received + max(request.max_wait_ms, 0) / 1000
    has_records = any(each.acquired for each in context.fetched.values())
    if len(context.parts) < 2 or not parts or has_records or ctx.now >= deadline:
        return None
    context.waits = not context.waits
    if context.waits:
        changed = {
            owner: part._replace(acknowledgements=(), acquires=False, deadline=deadline)
            for owner, part in parts.items()
        }
        return Round(changed, first_only=True)
    return Round({owner: part._replace(acknowledgements=()) for owner, part in parts.items()})


def _merge_fetch(
    ctx: Context, request: ShareFetchRequest, replies: Mapping[Owner, ShareReply]
) -> ShareFetchResponse:
    context: ShareContext = ctx.fetch_context
    error, text = context.refusal
    if error is not ErrorCode.NONE:
        return ShareFetchResponse(error_code=error, error_message=text)
    context.note(replies)
    topics: dict[Uuid, list[fetching.PartitionData]] = {}
    for key, data in _partitions(context).items():
        topics.setdefault(key[0], []).append(data)
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=_lock_ms(ctx, request.group_id or ""),
        responses=[
            fetching.ShareFetchableTopicResponse(topic_id=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )


def _partitions(context: ShareContext) -> dict[TopicIdPartition, fetching.PartitionData]:
    """The partitions of the response: those with something to say."""
    found: dict[TopicIdPartition, fetching.PartitionData] = {}
    session = context.session
    assert session is not None
    for key in list(session.unreported) if context.epoch != FINAL_EPOCH else ():
        name = context.names.get(key)
        failure = context.failed.get(key)
        fetched = ShareFetched(failure) if failure is not None else ShareFetched()
        if failure is None and name is not None:
            fetched = context.fetched.get(name, fetched)
        has_records = fetched.records is not None
        failed = fetched.error is not ErrorCode.NONE
        is_reported = session.reports(key, has_records=has_records, failed=failed)
        if is_reported or context.epoch == INITIAL_EPOCH:
            found[key] = _data(key[1], fetched)
    for key, (error, text) in context.all_acknowledged():
        data = found.setdefault(key, fetching.PartitionData(partition_index=key[1], records=b""))
        data.acknowledge_error_code = error
        data.acknowledge_error_message = text
    return found


def _data(index: int, fetched: ShareFetched) -> fetching.PartitionData:
    return fetching.PartitionData(
        partition_index=index,
        error_code=fetched.error,
        error_message=fetched.text,
        records=b"" if fetched.records is None else fetched.records,
        acquired_records=[
            fetching.AcquiredRecords(
                first_offset=each.first, last_offset=each.last, delivery_count=each.deliveries
            )
            for each in fetched.acquired
        ],
    )


def _lock_ms(ctx: Context, group_id: str) -> int:
    settings = share_settings(ctx.image, ctx.settings, group_id)
    return int(settings.lock_s * 1000)


SHARE_FETCH = Api(
    key=ApiKey.SHARE_FETCH,
    versions=(1, 2),
    requires=SPECIAL,
    split=_split_fetch,
    execute=_execute,
    merge=_merge_fetch,
    next_round=_next_round,
    may_wait=True,
)


# ShareAcknowledge (79) ----------------------------------------------------------------------------
#
# Acknowledge records without fetching others. Versions 1-2; version 2 adds renewals. A request with
# epoch -1 ends the session, and releases the records that it does not name.


def _split_acknowledge(ctx: Context, request: ShareAcknowledgeRequest) -> Mapping[Owner, SharePart]:
    context = ctx.fetch_context = ShareContext()
    context.refusal = _refusal(ctx, request)
    if context.refusal is not _NONE:
        return {}
    key = MemberKey(request.group_id or "", request.member_id or "")
    epoch = request.share_session_epoch
    if epoch == INITIAL_EPOCH:
        context.refusal = ErrorCode.INVALID_SHARE_SESSION_EPOCH, None
        return {}
    session = _sessions(ctx).find(key, epoch)
    if isinstance(session, ErrorCode):
        context.refusal = session, None
        return {}
    ends = epoch == FINAL_EPOCH
    if ends:
        _sessions(ctx).end(key)
    else:
        session.advance()
    shared = _Shared(ctx, *key, ctx.version >= 2, ctx.version >= 2 and request.is_renew_ack)
    parts: dict[Owner, SharePart] = {}
    empty = SharePart(key, session.connection, _sessions(ctx).processor, ends=ends)
    for topic_id, index in session.unreported if ends else ():
        name = ctx.image.topic_names.get(topic_id)
        if name is not None:
            parts.setdefault(ctx.partition_owner(name, index), empty)
    for each in _acknowledgements(shared, context, request.topics):
        owner = ctx.partition_owner(*each[0])
        part = parts.get(owner, empty)
        parts[owner] = part._replace(acknowledgements=(*part.acknowledgements, each))
    return parts


def _merge_acknowledge(
    ctx: Context, request: ShareAcknowledgeRequest, replies: Mapping[Owner, ShareReply]
) -> ShareAcknowledgeResponse:
    context: ShareContext = ctx.fetch_context
    error, text = context.refusal
    if error is not ErrorCode.NONE:
        return ShareAcknowledgeResponse(error_code=error, error_message=text)
    context.note(replies)
    topics: dict[Uuid, list[acknowledging.PartitionData]] = {}
    for (topic_id, index), (code, message) in context.all_acknowledged():
        data = acknowledging.PartitionData(
            partition_index=index, error_code=code, error_message=message
        )
        topics.setdefault(topic_id, []).append(data)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=_lock_ms(ctx, request.group_id or ""),
        responses=[
            acknowledging.ShareAcknowledgeTopicResponse(topic_id=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )


SHARE_ACKNOWLEDGE = Api(
    key=ApiKey.SHARE_ACKNOWLEDGE,
    versions=(1, 2),
    requires=SPECIAL,
    split=_split_acknowledge,
    execute=_execute,
    merge=_merge_acknowledge,
)


APIS = (SHARE_FETCH, SHARE_ACKNOWLEDGE)

"""Fetch (1): read record batches from partitions, and wait until there are ``min_bytes`` of them.

Versions 4-18. Owners answer with the position of the bytes in their files, never with the bytes. A
single owner waits for ``min_bytes`` by itself. Several owners first answer with what is there; if
that is not enough, each answers again when it has more, until the sum is enough or ``max_wait_ms``
have passed. Unknown partitions get their error and are not waited for; if there are no others, the
response is immediate. ``max_bytes`` limits the answer of each owner and, in the order of the
request, the merged response. The first partition with records is never cut, so a large batch cannot
block. With isolation level ``read_committed`` the records of a partition end at its last stable
offset, and only those count. A request that continues a session (KIP-227) gets the partitions that
have records, an error or new offsets; the others, and the requests that start a session, contain
all partitions. Invariant: a session changes by a response only if the response is sent, so a
throttled client loses nothing. Partitions that do not exist or that the client may not read are
found when they enter the session, and again when topics, ACLs or the caller change; their errors
end the response and do not shorten the wait, as in Kafka's ``KafkaApis.handleFetchRequest``.
Kafka's ``DelayedFetch``, ``FullFetchContext`` and ``IncrementalFetchContext``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from minibroker.broker.apis.base import SPECIAL, Api, Context, Owner, Round, WorkerScope
from minibroker.broker.apis.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    UNKNOWN_OFFSET,
    CachedPartition,
    FetchSession,
    Sent,
    SessionPart,
    next_epoch,
)
from minibroker.broker.apis.fetch_watches import FetchWatch
from minibroker.broker.apis.partition_fetch import (
    READ_COMMITTED,
    FetchLimits,
    FetchQuery,
    FetchReply,
    FetchResult,
    RecordsBudget,
    TopicPartition,
    fetch_query,
    partition_data,
    read_partition,
)
from minibroker.broker.apis.single_fetch import SINGLE
from minibroker.broker.security.acl import Operation, Resource
from minibroker.broker.settings import FETCH_MAX_BYTES
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from minibroker_protocol.registry import ApiKey

TOPIC_IDS_SINCE: Final = 13
"""First version with topic ids."""

_LOST: Final = FetchReply({}, is_lost=True)


class FetchPart(NamedTuple):
    """The partitions of one owner, which answers with ``enough`` bytes or at ``deadline``."""

    queries: tuple[FetchQuery, ...]
    max_bytes: int
    enough: int
    deadline: float
    committed: bool = False
    """Whether to read only up to the last stable offset."""


Part = FetchPart | SessionPart


def split(ctx: Context, request: FetchRequest) -> Mapping[Owner, Part]:
    """The partitions by owner, or the changes of a session."""
    context = ctx.fetch_context = _continue_session(ctx, request)
    if isinstance(context, ErrorCode):
        return {}
    if isinstance(context, FetchContext):
        return _split_session(ctx, request, context, _limits(ctx, request))
    return _split(ctx, request)


def _split(ctx: Context, request: FetchRequest) -> Mapping[Owner, FetchPart]:
    """The existing partitions by owner. In the first round several owners do not wait."""
    queries: dict[Owner, list[FetchQuery]] = {}
    for topic in request.topics:
        name = ctx.topic_name(topic.topic, topic.topic_id, ids_since=TOPIC_IDS_SINCE)
        for partition in topic.partitions:
            if name is None or ctx.image.partition(name, partition.partition) is None:
                continue  # The others are waited for nevertheless, as in Kafka.
            owner = ctx.partition_owner(name, partition.partition)
            queries.setdefault(owner, []).append(fetch_query(name, partition))
    limits = _limits(ctx, request)
    enough = limits.bytes_min if len(queries) == 1 else 0
    committed = request.isolation_level == READ_COMMITTED
    return {
        owner: FetchPart(tuple(entries), limits.bytes_max, enough, limits.deadline, committed)
        for owner, entries in queries.items()
    }


def _limits(ctx: Context, request: FetchRequest) -> FetchLimits:
    """The limits of a request; ``min_bytes`` is at most what one response can contain."""
    bytes_max = min(request.max_bytes, ctx.settings[FETCH_MAX_BYTES], ctx.fetch_bytes_max)
    deadline = ctx.received + max(request.max_wait_ms, 0) / 1000
    return FetchLimits(bytes_max, min(request.min_bytes, bytes_max), deadline)


def execute(scope: WorkerScope, part: Part) -> FetchReply | Awaitable[FetchReply]:
    """Read at once; wait only if that is not enough."""
    if isinstance(part, SessionPart):
        return _execute_session(scope, part)
    reply = _read(scope, part, part.queries)
    if reply.due or scope.now() >= part.deadline:
        return reply._replace(due=True)
    return _wait_and_read(scope, part)


async def _wait_and_read(scope: WorkerScope, part: FetchPart) -> FetchReply:
    partitions = frozenset((query.topic, query.partition) for query in part.queries)
    while True:
        # Read again first: a log may have grown between the first read and this task.
        reply = _read(scope, part, part.queries)
        if reply.due or scope.now() >= part.deadline:
            return reply
        await scope.wait_appended(partitions, part.deadline)


def _read(
    scope: WorkerScope,
    part: FetchPart | SessionPart,
    queries: Iterable[FetchQuery],
    watch: FetchWatch | None = None,
) -> FetchReply:
    """Read partitions, those of a session for its ``watch``."""
    found: dict[TopicPartition, FetchResult] = {}
    remaining, size, failed = part.max_bytes, 0, False
    for query in queries:
        name = query.topic, query.partition
        is_read = size == 0 or remaining > 0
        result = read_partition(scope, query, remaining, first=size == 0, committed=part.committed)
        failed = failed or result.is_failed
        if watch is not None:
            # After the read: if that opens the partition, it is a change and ends a subscription.
            scope.fetch_watches.subscribe(watch, name)
            if is_read and result.records is None and not result.is_failed:
                watch.note_idle(name)
        if result.records is not None:
            size += len(result.records)
            remaining -= len(result.records)
        found[name] = result
    mark = 0 if watch is None else watch.mark
    return FetchReply(found, size, failed, due=failed or size >= part.enough, mark=mark)


def next_round(ctx: Context, request: FetchRequest, replies: Mapping[Owner, Any]) -> Round | None:
    """If several owners have too little together, let each answer again when it has more."""
    if isinstance(ctx.fetch_context, FetchContext):
        return _next_session_round(ctx, ctx.fetch_context, _limits(ctx, request), replies)
    size = sum(reply.size for reply in replies.values())
    limits = _limits(ctx, request)
    if len(replies) < 2 or ctx.now >= limits.deadline or size >= limits.bytes_min:
        return None
    if any(reply.failed for reply in replies.values()):
        return None  # A response with an error of the log is sent immediately, as in Kafka.
    parts = {
        owner: part._replace(enough=replies[owner].size + 1)
        for owner, part in _split(ctx, request).items()
        if owner in replies
    }
    return Round(parts, first_only=True)


def merge(ctx: Context, request: FetchRequest, replies: Mapping[Owner, Any]) -> FetchResponse:
    """All partitions of a full fetch in the order of the request, within ``max_bytes``."""
    context = ctx.fetch_context
    if isinstance(context, ErrorCode):
        return FetchResponse(error_code=context)
    if isinstance(context, FetchContext):
        return _merge_session(ctx, request, context, _limits(ctx, request), replies)
    found: dict[tuple[str, int], FetchResult] = {}
    for reply in replies.values():
        found.update(reply.found)
    budget = RecordsBudget(_limits(ctx, request).bytes_max)
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=list(_full_partitions(ctx, request, topic, found, budget)),
            )
            for topic in request.topics
        ]
    )
    _start_session(ctx, request, response)
    return response


def _full_partitions(
    ctx: Context,
    request: FetchRequest,
    topic: FetchTopic,
    found: Mapping[tuple[str, int], FetchResult],
    budget: RecordsBudget,
) -> Iterator[PartitionData]:
    name = ctx.topic_name(topic.topic, topic.topic_id, ids_since=TOPIC_IDS_SINCE) or topic.topic
    by_id = ctx.version >= 13
    unknown_topic = by_id and topic.topic_id not in ctx.image.topic_names
    missing = FetchResult(
        ErrorCode.UNKNOWN_TOPIC_ID if unknown_topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    for partition in topic.partitions:
        result = found.get((name, partition.partition), missing)
        records = budget.take(result.records)
        yield partition_data(partition.partition, result, records, request.isolation_level)


# Sessions -----------------------------------------------------------------------------------------


class FetchContext(NamedTuple):
    """The session of a request, and the epoch that it has unless another request comes first.

    ``session_id`` is that of the response: none if the request has closed its session.
    """

    session: FetchSession
    epoch: int
    session_id: int

    @property
    def is_stale(self) -> bool:
        """Whether another request has continued the session in the meantime."""
        return self.session.epoch != self.epoch


class _Checked(NamedTuple):
    """What decides about the errors of partitions."""

    topics: object
    authorizer: object
    principal: object
    host: str
    is_follower: bool

    def is_same(self, other: object) -> bool:
        return (
            isinstance(other, _Checked)
            and self.topics is other.topics
            and self.authorizer is other.authorizer
            and self[2:] == other[2:]
        )


def _continue_session(ctx: Context, request: FetchRequest) -> FetchContext | ErrorCode | None:
    """Apply an incremental request to its session; None if the request is a full one."""
    cache = ctx.fetch_sessions
    if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if cache is not None and request.session_id != NO_SESSION:
            cache.remove(request.session_id)
        return None
    if cache is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    by_id = ctx.version >= TOPIC_IDS_SINCE
    session = cache.get(request.session_id, request.session_epoch, by_id=by_id)
    if isinstance(session, ErrorCode):
        return session
    session.settle()
    for topic in request.topics:
        for partition in topic.partitions:
            session.add(topic, partition)
    for forgotten in request.forgotten_topics_data:
        for index in forgotten.partitions:
            session.forget(forgotten, index)
    session.epoch = next_epoch(session.epoch)
    if len(session):
        cache.touch(session, ctx.now)
        return FetchContext(session, session.epoch, session.id)
    cache.remove(session.id)
    for topic in request.topics:  # As in Kafka, a partition is still read if it was forgotten too.
        for partition in topic.partitions:
            session.add(topic, partition)
    return FetchContext(session, session.epoch, NO_SESSION)


def _split_session(
    ctx: Context, request: FetchRequest, context: FetchContext, limits: FetchLimits
) -> Mapping[Owner, SessionPart]:
    """The changes of the session for each worker that watches some of its partitions."""
    session = context.session
    _place(ctx, session, is_follower_fetch(request))
    session.parts.read_committed(request.isolation_level == READ_COMMITTED)
    return session.parts.next_parts(limits)


def _place(ctx: Context, session: FetchSession, is_follower: bool) -> None:
    """Find the errors of new and changed partitions, or of all if what decides has changed."""
    caller = ctx.caller
    checked = _Checked(
        ctx.image.topics, ctx.authorizer, caller.principal, caller.client_host, is_follower
    )
    if checked.is_same(session.checked):
        partitions = list(session.unchecked.items())
    else:
        session.checked = checked
        changed = session.unchecked
        partitions = [
            (key, cached)
            for key, cached in session.partitions()
            if key in changed or _cached_error(ctx, cached, is_follower) != cached.error
        ]
    session.unchecked = {}
    for key, cached in partitions:
        cached.error = _cached_error(ctx, cached, is_follower)
        rejected = cached.error != ErrorCode.NONE
        owner = None if rejected else ctx.partition_owner(cached.topic or "", key[1])
        session.place(key, cached, owner)


def _cached_name(ctx: Context, cached: CachedPartition) -> str | None:
    """The name of a partition's topic: that of its id when the id was first known."""
    if cached.topic is None:
        cached.topic = ctx.image.topic_names.get(cached.topic_id)
    return cached.topic


def _cached_error(ctx: Context, cached: CachedPartition, is_follower: bool) -> ErrorCode:
    topic = _cached_name(ctx, cached)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    allowed = (
        ctx.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER)
        if is_follower
        else ctx.allows(Operation.READ, Resource.TOPIC, topic)
    )
    if not allowed:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if ctx.image.partition(topic, cached.requested.partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if ctx.version >= TOPIC_IDS_SINCE and ctx.image.topics[topic].topic_id != cached.topic_id:
        return ErrorCode.INCONSISTENT_TOPIC_ID
    return ErrorCode.NONE


def _next_session_round(
    ctx: Context,
    context: FetchContext,
    limits: FetchLimits,
    replies: Mapping[Owner, FetchReply],
) -> Round | None:
    """Send all partitions to workers that do not know the session, or let several workers wait."""
    if context.is_stale:
        return None
    parts = context.session.parts
    lost = [owner for owner, reply in replies.items() if reply.is_lost]
    if lost:
        if not context.session.may_resend():
            return None
        enough = limits.bytes_min if len(replies) == 1 else 0
        return Round(parts.complete_parts(lost, limits, enough))
    size = sum(reply.size for reply in replies.values())
    failed = any(reply.failed for reply in replies.values())
    if len(replies) < 2 or failed or size >= limits.bytes_min or ctx.now >= limits.deadline:
        return None
    return Round(dict(parts.waiting_parts(replies, limits)), first_only=True)


def _merge_session(
    ctx: Context,
    request: FetchRequest,
    context: FetchContext,
    limits: FetchLimits,
    replies: Mapping[Owner, FetchReply],
) -> FetchResponse:
    """The partitions that have something new, in the order of the session, errors last."""
    session = context.session
    if context.is_stale:
        return FetchResponse(
            error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.id
        )
    found: list[tuple[CachedPartition, FetchResult]] = []
    for reply in replies.values():
        for name, result in reply.found.items():
            cached = session.watched(name)
            if cached is not None:
                found.append((cached, result))
    found.sort(key=_position)
    found += sorted(
        ((cached, FetchResult(cached.error)) for cached in session.rejected.values()), key=_position
    )
    budget = RecordsBudget(limits.bytes_max)
    response = FetchResponse(session_id=context.session_id)
    sent: list[Sent] = []
    for cached, result in found:
        records = budget.take(result.records)
        if cached.must_respond(result, records):
            index = cached.requested.partition
            data = partition_data(index, result, records, request.isolation_level)
            _add_partition(ctx, response, cached, data)
            high_watermark = UNKNOWN_OFFSET if result.error else result.high_watermark
            sent.append(Sent(cached, high_watermark, result.log_start_offset, bool(records)))
    session.note_sent(sent, {owner: reply.mark for owner, reply in replies.items()})
    return response


def _position(found: tuple[CachedPartition, FetchResult]) -> int:
    return found[0].position


def _add_partition(
    ctx: Context, response: FetchResponse, cached: CachedPartition, data: PartitionData
) -> None:
    """Add a partition to the last topic of the response, or to a new one if that is another."""
    topics = response.responses
    by_id = ctx.version >= TOPIC_IDS_SINCE
    if topics and (
        topics[-1].topic_id == cached.topic_id if by_id else topics[-1].topic == cached.topic
    ):
        topics[-1].partitions.append(data)
        return
    topics.append(
        FetchableTopicResponse(
            topic=cached.topic or "", topic_id=cached.topic_id, partitions=[data]
        )
    )


def _start_session(ctx: Context, request: FetchRequest, response: FetchResponse) -> None:
    """Create a session for the partitions of a full request that starts one, if a slot is free."""
    cache = ctx.fetch_sessions
    if cache is None or request.session_epoch != INITIAL_EPOCH:
        return
    session = cache.create(
        len({key for key, *_ in _requested_partitions(ctx, request)}),
        ctx.now,
        is_privileged=is_follower_fetch(request),
        by_id=ctx.version >= TOPIC_IDS_SINCE,
    )
    if session is None:
        return
    answered = [data for topic in response.responses for data in topic.partitions]
    results = [*answered, *[None] * sum(len(topic.partitions) for topic in ctx.refused_topics)]
    failed: list[tuple[FetchTopic, int]] = []
    for (_, topic, index), data in zip(_requested_partitions(ctx, request), results, strict=True):
        if data is None or data.error_code:
            failed.append((topic, index))
            continue
        cached = session.add(topic, topic.partitions[index])
        _cached_name(ctx, cached)  # The topic may be deleted before the next request.
        cached.high_watermark = data.high_watermark
        cached.log_start_offset = data.log_start_offset
    for topic, index in failed:  # Errors are last, as in Kafka's response.
        session.add(topic, topic.partitions[index])
    cache.touch(session, ctx.now)
    response.session_id = session.id


def _requested_partitions(
    ctx: Context, request: FetchRequest
) -> Iterator[tuple[tuple[str, bytes, int], FetchTopic, int]]:
    """The partitions of a full request, refused ones last: key, topic and index in the topic."""
    topics: Iterable[FetchTopic] = (*request.topics, *ctx.refused_topics)
    for topic in topics:
        for index, partition in enumerate(topic.partitions):
            yield (topic.topic, topic.topic_id, partition.partition), topic, index


def throttled_response(ctx: Context, response: FetchResponse) -> FetchResponse:
    """The response without records for a throttled client, whose session does not change."""
    context = ctx.fetch_context
    if isinstance(context, FetchContext):
        if not context.is_stale:  # Otherwise another request has settled it.
            context.session.withdraw_sent()
        return FetchResponse(error_code=response.error_code, session_id=response.session_id)
    if ctx.fetch_sessions is not None and response.session_id != NO_SESSION:
        ctx.fetch_sessions.remove(response.session_id)
    return FetchResponse()


def is_follower_fetch(request: FetchRequest) -> bool:
    """Whether the fetch has the id of a replica."""
    state = request.replica_state
    return (request.replica_id if state is None else state.replica_id) >= 0


def _execute_session(scope: WorkerScope, part: SessionPart) -> FetchReply | Awaitable[FetchReply]:
    """Read pending partitions at once; wait only if that is not enough."""
    watch = scope.fetch_watches.advance(part)
    if watch is None:
        return _LOST
    reply = _read(scope, part, watch.pending(), watch)
    if reply.due or scope.now() >= part.deadline:
        return reply._replace(due=True)
    return _wait_and_read_session(scope, watch, part)


async def _wait_and_read_session(
    scope: WorkerScope, watch: FetchWatch, part: SessionPart
) -> FetchReply:
    while scope.fetch_watches.is_current(watch, part.sequence):
        # Read again first: a log may have grown between the first read and this task.
        reply = _read(scope, part, watch.pending(), watch)
        if reply.due or scope.now() >= part.deadline:
            return reply
        await scope.wait_fetch_watch(watch.session_id, part.deadline)
    return _LOST


API = Api(
    key=ApiKey.FETCH,
    versions=(4, 18),
    requires=SPECIAL,
    split=split,
    execute=execute,
    merge=merge,
    next_round=next_round,
    may_wait=True,
    single=SINGLE,
    left_out=("follower fetches: one broker has no followers",),
)

"""Fetch (1): read record batches from partitions, and wait until there are ``min_bytes`` of them.

Versions 4-18. Owners answer with the position of the bytes in their files, never with the bytes. A
single owner waits for ``min_bytes`` by itself. Several owners first answer with what is there; if
that is not enough, each answers again when it has more, until the sum is enough or ``max_wait_ms``
have passed. Unknown partitions get their error and are not waited for; if there are no others, the
response is immediate. ``max_bytes`` limits the answer of each owner and, in the order of the
request, the merged response. The first partition with records is never cut, so a large batch cannot
block. With isolation level ``read_committed`` the records of a partition end at its last stable
offset, and only those count. A request that continues a session is served by ``incremental_fetch``;
the others, and the requests that start a session, contain all partitions and are served here.
Kafka's ``KafkaApis.handleFetchRequest`` and ``DelayedFetch``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, NamedTuple

from minibroker.broker.apis.base import SPECIAL, Api, Context, Owner, Round, WorkerScope
from minibroker.broker.apis.fetch_session_parts import SessionPart, SessionReply
from minibroker.broker.apis.incremental_fetch import (
    FetchContext,
    continue_session,
    execute_session,
    merge_session,
    next_session_round,
    split_session,
    start_session,
)
from minibroker.broker.apis.partition_fetch import (
    READ_COMMITTED,
    FetchLimits,
    FetchQuery,
    FetchResult,
    RecordsBudget,
    fetch_query,
    partition_data,
    read_partition,
)
from minibroker.broker.apis.single_fetch import SINGLE
from minibroker.broker.settings.definitions import FETCH_MAX_BYTES
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from minibroker_protocol.registry import ApiKey


class FetchPart(NamedTuple):
    """The partitions of one owner, which answers with ``enough`` bytes or at ``deadline``."""

    queries: tuple[FetchQuery, ...]
    max_bytes: int
    enough: int
    deadline: float
    committed: bool = False
    """Whether to read only up to the last stable offset."""


class FetchReply(NamedTuple):
    """The results of one owner; ``due`` if it has enough bytes or an error, or at the deadline."""

    found: dict[tuple[str, int], FetchResult]
    size: int
    failed: bool
    due: bool


def _topic_name(ctx: Context, topic: FetchTopic) -> str | None:
    if ctx.version >= 13:
        return ctx.image.topic_names.get(topic.topic_id)
    return topic.topic if topic.topic in ctx.image.topics else None


Part = FetchPart | SessionPart
Reply = FetchReply | SessionReply


def split(ctx: Context, request: FetchRequest) -> Mapping[Owner, Part]:
    """The partitions by owner, or the changes of a session."""
    context = ctx.fetch_context = continue_session(ctx, request)
    if isinstance(context, ErrorCode):
        return {}
    if isinstance(context, FetchContext):
        return split_session(ctx, request, context, _limits(ctx, request))
    return _split(ctx, request)


def _split(ctx: Context, request: FetchRequest) -> Mapping[Owner, FetchPart]:
    """The existing partitions by owner. In the first round several owners do not wait."""
    queries: dict[Owner, list[FetchQuery]] = {}
    for topic in request.topics:
        name = _topic_name(ctx, topic)
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


def execute(scope: WorkerScope, part: Part) -> Reply | Awaitable[Reply]:
    """Read at once; wait only if that is not enough."""
    if isinstance(part, SessionPart):
        return execute_session(scope, part)
    reply = _read(scope, part)
    if reply.due or scope.now() >= part.deadline:
        return reply._replace(due=True)
    return _wait_and_read(scope, part)


async def _wait_and_read(scope: WorkerScope, part: FetchPart) -> FetchReply:
    partitions = frozenset((query.topic, query.partition) for query in part.queries)
    while True:
        # Read again first: a log may have grown between the first read and this task.
        reply = _read(scope, part)
        if reply.due or scope.now() >= part.deadline:
            return reply
        await scope.wait_appended(partitions, part.deadline)


def _read(scope: WorkerScope, part: FetchPart) -> FetchReply:
    found: dict[tuple[str, int], FetchResult] = {}
    remaining = part.max_bytes
    size = 0
    failed = False
    for query in part.queries:
        result = read_partition(scope, query, remaining, first=size == 0, committed=part.committed)
        failed = failed or result.is_failed
        if result.records is not None:
            size += len(result.records)
            remaining -= len(result.records)
        found[query.topic, query.partition] = result
    return FetchReply(found, size, failed, due=failed or size >= part.enough)


def next_round(ctx: Context, request: FetchRequest, replies: Mapping[Owner, Any]) -> Round | None:
    """If several owners have too little together, let each answer again when it has more."""
    if isinstance(ctx.fetch_context, FetchContext):
        return next_session_round(ctx, ctx.fetch_context, _limits(ctx, request), replies)
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
        return merge_session(ctx, request, context, _limits(ctx, request), replies)
    found: dict[tuple[str, int], FetchResult] = {}
    for reply in replies.values():
        found.update(reply.found)
    budget = RecordsBudget(_limits(ctx, request).bytes_max)
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=list(_partitions(ctx, request, topic, found, budget)),
            )
            for topic in request.topics
        ]
    )
    start_session(ctx, request, response)
    return response


def _partitions(
    ctx: Context,
    request: FetchRequest,
    topic: FetchTopic,
    found: Mapping[tuple[str, int], FetchResult],
    budget: RecordsBudget,
) -> Iterator[PartitionData]:
    name = _topic_name(ctx, topic) or topic.topic
    by_id = ctx.version >= 13
    unknown_topic = by_id and topic.topic_id not in ctx.image.topic_names
    missing = FetchResult(
        ErrorCode.UNKNOWN_TOPIC_ID if unknown_topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    for partition in topic.partitions:
        result = found.get((name, partition.partition), missing)
        records = budget.take(result.records)
        yield partition_data(partition.partition, result, records, request.isolation_level)


API: Api[FetchRequest, Part, Any, FetchResponse] = Api(
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

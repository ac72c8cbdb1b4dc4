"""Fetch (1): read record batches from partitions, and wait until there are ``min_bytes`` of them.

Versions 4-18. Owners answer with the position of the bytes in their files, never with the bytes. A
single owner waits for ``min_bytes`` by itself. Several owners first answer with what is there; if
that is not enough, each answers again when it has more, until the sum is enough or ``max_wait_ms``
have passed. ``max_bytes`` limits the answer of each owner and, in the order of the request, the
merged response. The first partition with records is never cut, so a large batch cannot block.
Every fetch is a full one: session id 0 in the response says so, as from a broker with a full
session cache (KIP-227). Kafka's ``KafkaApis.handleFetchRequest`` and ``DelayedFetch``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from typing import NamedTuple

from minibroker.apis.base import Api, Context, Owner, Round, WorkerScope
from minibroker.config import FETCH_MAX_BYTES
from minibroker.storage.errors import LogError
from minibroker.storage.leader_epochs import EpochEnd
from minibroker.storage.slices import FileSlice
from protocol.errors import ErrorCode
from protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from protocol.registry import ApiKey

READ_COMMITTED = 1


class FetchQuery(NamedTuple):
    """One partition to read."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int


class FetchPart(NamedTuple):
    """The partitions of one owner, which answers with ``enough`` bytes or at ``deadline``."""

    queries: tuple[FetchQuery, ...]
    max_bytes: int
    enough: int
    deadline: float


class FetchResult(NamedTuple):
    """The records of one partition, or an error."""

    error: int
    records: FileSlice | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging: EpochEnd | None = None


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


def split(ctx: Context, request: FetchRequest) -> Mapping[Owner, FetchPart]:
    """The existing partitions by owner. In the first round several owners do not wait."""
    if _session_error(request):
        return {}
    queries: dict[Owner, list[FetchQuery]] = {}
    failed = False
    for topic in request.topics:
        name = _topic_name(ctx, topic)
        for partition in topic.partitions:
            if name is None or ctx.image.partition(name, partition.partition) is None:
                failed = True
                continue
            owner = ctx.partition_owner(name, partition.partition)
            queries.setdefault(owner, []).append(_query(name, partition))
    # A response with an error is sent immediately, as in Kafka.
    enough = _bytes_min(ctx, request) if len(queries) == 1 and not failed else 0
    return {
        owner: FetchPart(tuple(entries), _bytes_max(ctx, request), enough, _deadline(ctx, request))
        for owner, entries in queries.items()
    }


def _query(name: str, partition: FetchPartition) -> FetchQuery:
    return FetchQuery(
        name,
        partition.partition,
        partition.fetch_offset,
        partition.partition_max_bytes,
        partition.current_leader_epoch,
        partition.last_fetched_epoch,
    )


def _bytes_max(ctx: Context, request: FetchRequest) -> int:
    return min(request.max_bytes, ctx.settings[FETCH_MAX_BYTES], ctx.fetch_bytes_max)


def _bytes_min(ctx: Context, request: FetchRequest) -> int:
    """``min_bytes``, at most what one response can contain."""
    return min(request.min_bytes, _bytes_max(ctx, request))


def _deadline(ctx: Context, request: FetchRequest) -> float:
    return ctx.received + max(request.max_wait_ms, 0) / 1000


def execute(scope: WorkerScope, part: FetchPart) -> FetchReply | Awaitable[FetchReply]:
    """Read at once; wait only if that is not enough."""
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
        result = _read_partition(scope, query, remaining, first=size == 0)
        failed = failed or result.error != ErrorCode.NONE or result.diverging is not None
        if result.records is not None:
            size += len(result.records)
            remaining -= len(result.records)
        found[query.topic, query.partition] = result
    return FetchReply(found, size, failed, due=failed or size >= part.enough)


def _read_partition(
    scope: WorkerScope, query: FetchQuery, remaining: int, *, first: bool
) -> FetchResult:
    try:
        partition = scope.partition(query.topic, query.partition)
        if partition is None:
            return FetchResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.check_leader(query.leader_epoch)
        records = diverging = None
        if query.last_fetched_epoch >= 0:
            diverging = partition.find_divergence(query.last_fetched_epoch, query.offset)
        if diverging is None and (first or remaining > 0):
            max_bytes = min(query.max_bytes, max(remaining, 0))
            records = partition.read(query.offset, max_bytes, min_one=first)
    except LogError as error:
        return FetchResult(error.code)
    return FetchResult(
        ErrorCode.NONE,
        records,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log.log_start_offset,
        diverging,
    )


def next_round(
    ctx: Context, request: FetchRequest, replies: Mapping[Owner, FetchReply]
) -> Round | None:
    """If several owners have too little together, let each answer again when it has more."""
    size = sum(reply.size for reply in replies.values())
    timed_out = ctx.now >= _deadline(ctx, request)
    if (
        len(replies) < 2
        or timed_out
        or size >= _bytes_min(ctx, request)
        or _any_error(request, replies)
    ):
        return None
    parts = {
        owner: part._replace(enough=replies[owner].size + 1)
        for owner, part in split(ctx, request).items()
        if owner in replies
    }
    return Round(parts, first_only=True)


def _any_error(request: FetchRequest, replies: Mapping[Owner, FetchReply]) -> bool:
    if any(reply.failed for reply in replies.values()):
        return True
    requested = sum(len(topic.partitions) for topic in request.topics)
    return requested > sum(len(reply.found) for reply in replies.values())


def merge(
    ctx: Context, request: FetchRequest, replies: Mapping[Owner, FetchReply]
) -> FetchResponse:
    """All partitions in the order of the request, within ``max_bytes``."""
    error = _session_error(request)
    if error:
        return FetchResponse(error_code=error)
    found: dict[tuple[str, int], FetchResult] = {}
    for reply in replies.values():
        found.update(reply.found)
    budget = _Budget(_bytes_max(ctx, request))
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=list(_partitions(ctx, request, topic, found, budget)),
            )
            for topic in request.topics
        ]
    )


class _Budget:
    """The bytes left in the response; the first records always fit."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._first = True

    def take(self, records: FileSlice | None) -> FileSlice | bytes:
        if records is None or not (self._first or len(records) <= self._left):
            return b""
        self._first = False
        self._left -= len(records)
        return records


def _partitions(
    ctx: Context,
    request: FetchRequest,
    topic: FetchTopic,
    found: Mapping[tuple[str, int], FetchResult],
    budget: _Budget,
) -> Iterator[PartitionData]:
    name = _topic_name(ctx, topic) or topic.topic
    by_id = ctx.version >= 13
    unknown_topic = by_id and topic.topic_id not in ctx.image.topic_names
    missing = FetchResult(
        ErrorCode.UNKNOWN_TOPIC_ID if unknown_topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    for partition in topic.partitions:
        result = found.get((name, partition.partition), missing)
        yield PartitionData(
            partition_index=partition.partition,
            error_code=result.error,
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            aborted_transactions=[] if request.isolation_level == READ_COMMITTED else None,
            diverging_epoch=_diverging_epoch(result.diverging),
            records=budget.take(result.records),
        )


def _diverging_epoch(found: EpochEnd | None) -> EpochEndOffset | None:
    return None if found is None else EpochEndOffset(epoch=found.epoch, end_offset=found.end_offset)


def _session_error(request: FetchRequest) -> ErrorCode | None:
    """The error of a request that continues a session, as no session is ever created."""
    whole = request.session_epoch in (-1, 0)  # The end and the start of a session fetch all.
    return None if whole else ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def is_follower_fetch(request: FetchRequest) -> bool:
    """Whether the fetch has the id of a replica."""
    state = request.replica_state
    return (request.replica_id if state is None else state.replica_id) >= 0


API: Api[FetchRequest, FetchPart, FetchReply, FetchResponse] = Api(
    key=ApiKey.FETCH,
    versions=(4, 18),
    split=split,
    execute=execute,
    merge=merge,
    next_round=next_round,
    may_wait=True,
    left_out=(
        "incremental fetch sessions: every fetch is full, as with a full session cache",
        "aborted transactions: transactions are not served yet, so read_committed reads all",
        "follower fetches: one broker has no followers",
    ),
)

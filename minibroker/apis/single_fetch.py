"""The single step of Fetch: one partition of this process, without a session.

Owns the reads of such a fetch, and its wait. It must never know other partitions or sessions.
Invariant: a response has the bytes that the three steps of Fetch would give it; errors, aborted
transactions and records that are better sent from the file are left to them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from minibroker.apis.base import Attempt, Delayed, SingleForm, SingleScope
from minibroker.apis.partition_fetch import (
    READ_COMMITTED,
    FetchQuery,
    FetchResult,
    read_partition,
)
from minibroker.config import FETCH_MAX_BYTES
from protocol.compiler.single import Shape
from protocol.errors import ErrorCode

COPIED_BYTES_MAX: Final = 32 * 1024
"""Records of at most this size are copied into the response; more are sent from the file."""

NO_SESSION_EPOCH: Final = -1
NO_REPLICA: Final = -1

Leaves = tuple[Any, ...]


class _SingleFetch(NamedTuple):
    """The query of a request, its limits, and what its response repeats."""

    query: FetchQuery
    committed: bool
    bytes_max: int
    bytes_min: int
    topic: str
    topic_id: bytes


def execute_single(scope: SingleScope, version: int, request: Leaves) -> Leaves | Delayed | None:
    """Read the partition; wait if there is too little."""
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, _, session_epoch = request[:7]
    topic, topic_id, partition, leader_epoch, offset, last_epoch, _, partition_bytes = request[7:15]
    name = scope.image.topic_names.get(topic_id) if version >= 13 else topic
    if (
        (replica_id, session_epoch) != (NO_REPLICA, NO_SESSION_EPOCH)
        or name is None
        or scope.image.partition(name, partition) is None
    ):
        return None
    bytes_max = min(max_bytes, scope.worker.settings[FETCH_MAX_BYTES], scope.fetch_bytes_max())
    fetch = _SingleFetch(
        FetchQuery(name, partition, offset, partition_bytes, leader_epoch, last_epoch),
        isolation_level == READ_COMMITTED,
        bytes_max,
        min(min_bytes, bytes_max),
        topic,
        topic_id,
    )
    result = _read(scope, fetch)
    if _is_due(result, fetch) or max_wait_ms <= 0:
        return _response(scope, fetch, result)

    def attempt(is_over: bool) -> Attempt | None:
        result = _read(scope, fetch)
        if is_over or _is_due(result, fetch):
            return Attempt(_response(scope, fetch, result))
        return None

    deadline = scope.worker.now() + max_wait_ms / 1000
    return Delayed(frozenset({(name, partition)}), deadline, attempt)


def _read(scope: SingleScope, fetch: _SingleFetch) -> FetchResult:
    return read_partition(
        scope.worker, fetch.query, fetch.bytes_max, first=True, committed=fetch.committed
    )


def _is_due(result: FetchResult, fetch: _SingleFetch) -> bool:
    size = 0 if result.records is None else len(result.records)
    return size >= fetch.bytes_min or result.is_failed


def _response(scope: SingleScope, fetch: _SingleFetch, result: FetchResult) -> Leaves | None:
    if result.is_failed or result.aborted:
        return None
    records: bytes | None = b""
    if result.records is not None:
        if len(result.records) > COPIED_BYTES_MAX:
            return None
        records = scope.read(result.records)
        if records is None:
            return None
    return (
        *(0, ErrorCode.NONE, 0, fetch.topic, fetch.topic_id, fetch.query.partition),
        *(ErrorCode.NONE, result.high_watermark, result.last_stable_offset),
        *(result.log_start_offset, () if fetch.committed else None, -1, records),
    )


SINGLE: Final = SingleForm(Shape(frozenset({"topics", "partitions", "responses"})), execute_single)

"""The single step of Fetch: one partition of this process, without a session.

Owns the reads of such a fetch, and its wait. It must never know other partitions or sessions.
Invariant: a response has the bytes that the three steps of Fetch would give it; errors, aborted
transactions and records that are better sent from the file are left to them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from minibroker.broker.apis.base import Delayed, SingleForm, SingleScope
from minibroker.broker.apis.partition_fetch import (
    READ_COMMITTED,
    FetchQuery,
    FetchResult,
    read_partition,
)
from minibroker.broker.settings import FETCH_MAX_BYTES
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode

COPIED_BYTES_MAX: Final = 32 * 1024
"""Records of at most this size are copied into the response; more are sent from the file."""

NO_SESSION_EPOCH: Final = -1
NO_REPLICA: Final = -1

# Used by every request: attribute access of an enumeration takes ten times as long.
_NONE: Final = ErrorCode.NONE

Leaves = tuple[Any, ...]


class _SingleFetch:
    """The query of a request, its limits, and what its response repeats."""

    __slots__ = (
        "_bytes_max",
        "_bytes_min",
        "_is_committed",
        "_query",
        "_scope",
        "_topic",
        "_topic_id",
        "deadline",
        "partitions",
    )

    def __init__(  # noqa: PLR0917 - positional, because it is created by each request
        self,
        scope: SingleScope,
        query: FetchQuery,
        bytes_max: int,
        bytes_min: int,
        is_committed: bool,
        topic: str,
        topic_id: bytes,
    ) -> None:
        self.partitions: Collection[tuple[str, int]] = ((query.topic, query.partition),)
        self.deadline = 0.0
        self._scope = scope
        self._query = query
        self._bytes_max = bytes_max
        self._bytes_min = bytes_min
        self._is_committed = is_committed
        self._topic = topic
        self._topic_id = topic_id

    def attempt(self, *, is_over: bool) -> Leaves | Delayed | None:
        """Read the partition; wait longer if there is too little and the wait is not over."""
        result = read_partition(
            self._scope.worker,
            self._query,
            self._bytes_max,
            first=True,
            committed=self._is_committed,
        )
        size = 0 if result.records is None else len(result.records)
        if is_over or size >= self._bytes_min or result.is_failed:
            return self._response(result)
        return self

    def _response(self, result: FetchResult) -> Leaves | None:
        if result.is_failed or result.aborted:
            return None
        records: bytes | None = b""
        if result.records is not None:
            if len(result.records) > COPIED_BYTES_MAX:
                return None
            records = self._scope.read(result.records)
            if records is None:
                return None
        return (
            *(0, _NONE, 0, self._topic, self._topic_id, self._query.partition),
            *(_NONE, result.high_watermark, result.last_stable_offset),
            *(result.log_start_offset, () if self._is_committed else None, -1, records),
        )


def execute_single(scope: SingleScope, version: int, request: Leaves) -> Leaves | Delayed | None:
    """Read the partition; wait if there is too little."""
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, _, session_epoch = request[:7]
    topic, topic_id, partition, leader_epoch, offset, last_epoch, _, partition_bytes = request[7:15]
    name = scope.image.topic_names.get(topic_id) if version >= 13 else topic
    if (
        replica_id != NO_REPLICA
        or session_epoch != NO_SESSION_EPOCH
        or name is None
        or scope.image.partition(name, partition) is None
    ):
        return None
    worker = scope.worker
    bytes_max = min(max_bytes, worker.settings[FETCH_MAX_BYTES], scope.fetch_bytes_max())
    fetch = _SingleFetch(
        scope,
        FetchQuery(name, partition, offset, partition_bytes, leader_epoch, last_epoch),
        bytes_max,
        min(min_bytes, bytes_max),
        isolation_level == READ_COMMITTED,
        topic,
        topic_id,
    )
    found = fetch.attempt(is_over=max_wait_ms <= 0)
    if found is fetch:
        fetch.deadline = worker.now() + max_wait_ms / 1000
    return found


SINGLE: Final = SingleForm(Shape(frozenset({"topics", "partitions", "responses"})), execute_single)

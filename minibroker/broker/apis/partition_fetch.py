"""One partition of a fetch: what is wanted, what its log has, and its place in the response.

Owns the read of one partition and the limits of a fetch. It must never know sessions, owners or how
long a fetch waits. Invariant: the first records of a response are never cut, so a large batch
cannot block a partition. Kafka's ``ReplicaManager.readFromLog`` for one partition.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from minibroker.broker.log.checkpoint import EpochEnd
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import FileSlice
from minibroker.broker.log.replica_manager import Partition
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    PartitionData,
)

READ_COMMITTED = 1

# Used by every fetch: attribute access of an enumeration takes ten times as long.
_NONE: Final = ErrorCode.NONE

TopicPartition = tuple[str, int]
"""Topic and partition."""


class FetchQuery(NamedTuple):
    """One partition to read."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int


class FetchLimits(NamedTuple):
    """Limits of one request: the largest response, and how many bytes it waits for until when."""

    bytes_max: int
    bytes_min: int
    deadline: float


class FetchResult(NamedTuple):
    """The records of one partition, or an error."""

    error: int
    records: FileSlice | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging: EpochEnd | None = None
    aborted: tuple[tuple[int, int], ...] = ()
    """Producer ids and first offsets of aborted transactions in the records."""

    @property
    def is_failed(self) -> bool:
        """Whether the result must be sent without waiting for more."""
        return self.error != _NONE or self.diverging is not None


class FetchReply(NamedTuple):
    """The results of one owner; ``due`` if it has enough bytes or an error, or at the deadline.

    For a session these are the partitions that may have changed, and ``mark`` is their number of
    changes; ``is_lost`` if the worker does not know the session, so it needs all partitions.
    """

    found: dict[TopicPartition, FetchResult]
    size: int = 0
    failed: bool = False
    due: bool = True
    mark: int = 0
    is_lost: bool = False


class HostedPartitions(Protocol):
    """The partitions of one I/O worker."""

    def partition(self, topic: str, index: int) -> Partition | None: ...


def fetch_query(topic: str, partition: FetchPartition) -> FetchQuery:
    """The query of a partition in a request; ``topic`` is its name."""
    return FetchQuery(
        topic,
        partition.partition,
        partition.fetch_offset,
        partition.partition_max_bytes,
        partition.current_leader_epoch,
        partition.last_fetched_epoch,
    )


def read_partition(
    hosted: HostedPartitions,
    query: FetchQuery,
    remaining: int,
    *,
    first: bool,
    committed: bool = False,
) -> FetchResult:
    """Read at most ``remaining`` bytes, but a whole batch if it is the ``first`` one.

    With ``committed`` the records end at the last stable offset.
    """
    try:
        partition = hosted.partition(query.topic, query.partition)
        if partition is None:
            return FetchResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.check_leader(query.leader_epoch)
        records = diverging = None
        aborted: tuple[tuple[int, int], ...] = ()
        if query.last_fetched_epoch >= 0:
            diverging = partition.find_divergence(query.last_fetched_epoch, query.offset)
        if diverging is None and (first or remaining > 0):
            max_bytes = min(query.max_bytes, max(remaining, 0))
            if committed:
                records, found = partition.read_committed(query.offset, max_bytes, min_one=first)
                aborted = tuple((each.producer_id, each.first_offset) for each in found)
            else:
                records = partition.read(query.offset, max_bytes, min_one=first)
    except LogError as error:
        return FetchResult(error.code)
    return FetchResult(
        _NONE,
        records,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log.log_start_offset,
        diverging,
        aborted,
    )


def partition_data(
    index: int, result: FetchResult, records: FileSlice | bytes, isolation_level: int
) -> PartitionData:
    """A partition of the response, with those records of its result that fit."""
    return PartitionData(
        partition_index=index,
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=_aborted(result) if isolation_level == READ_COMMITTED else None,
        diverging_epoch=_diverging_epoch(result.diverging),
        records=records,
    )


def _aborted(result: FetchResult) -> list[AbortedTransaction]:
    return [
        AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
        for producer_id, first_offset in result.aborted
    ]


def _diverging_epoch(found: EpochEnd | None) -> EpochEndOffset | None:
    return None if found is None else EpochEndOffset(epoch=found.epoch, end_offset=found.end_offset)


class RecordsBudget:
    """The bytes left in the response; the first records always fit."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._first = True

    def take(self, records: FileSlice | None) -> FileSlice | bytes:
        """The records, or nothing if they do not fit."""
        if records is None or not (self._first or len(records) <= self._left):
            return b""
        self._first = False
        self._left -= len(records)
        return records

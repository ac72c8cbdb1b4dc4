"""The read of one partition, and the budget of records in a response."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.broker.apis.partition_fetch import (
    FetchQuery,
    FetchResult,
    RecordsBudget,
    fetch_query,
    partition_data,
    read_partition,
)
from minibroker.broker.log.checkpoint import EpochEnd
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import FileSlice, Log
from minibroker.broker.log.replica_manager import Partition
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchPartition
from minibroker_protocol.records import Record, build_batch

QUERY = FetchQuery("t", 0, 0, 1 << 20, -1, -1)


class Hosted:
    """Hosts partition 0 of topic ``t``."""

    def __init__(self, directory: Path) -> None:
        log = Log.open(directory, "t", 0, LogConfig(), now_ms=0)
        self.only = Partition(log, bytes(16), broker_id=1, leader_id=1, leader_epoch=0)

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.only if (topic, index) == ("t", 0) else None


@pytest.fixture
def hosted(tmp_path: Path) -> Hosted:
    return Hosted(tmp_path)


def test_query_has_the_fields_of_the_request() -> None:
    asked = FetchPartition(
        partition=3,
        current_leader_epoch=5,
        fetch_offset=7,
        last_fetched_epoch=4,
        partition_max_bytes=100,
    )
    assert fetch_query("t", asked) == FetchQuery("t", 3, 7, 100, 5, 4)


def test_read_of_unknown_partition_is_an_error(hosted: Hosted) -> None:
    result = read_partition(hosted, QUERY._replace(partition=1), 100, first=True)
    assert result == FetchResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert result.is_failed


@pytest.mark.parametrize(
    ("remaining", "first", "is_read"), [(0, True, True), (0, False, False), (1 << 20, False, True)]
)
def test_read_without_remaining_bytes_returns_first_batch_only(
    hosted: Hosted, remaining: int, first: bool, is_read: bool
) -> None:
    batch = build_batch([Record(0, 1, None, b"value")])
    hosted.only.append_as_leader(batch, now_ms=1)
    result = read_partition(hosted, QUERY, remaining, first=first)
    assert (result.error, result.high_watermark, result.log_start_offset) == (0, 1, 0)
    assert len(result.records or b"") == (len(batch) if is_read else 0)
    assert not result.is_failed


def test_budget_cuts_all_records_but_the_first() -> None:
    budget = RecordsBudget(10)
    large, small = FileSlice("f", 0, 20), FileSlice("f", 0, 5)
    assert budget.take(None) == b""
    assert budget.take(large) == large
    assert budget.take(small) == b""
    budget = RecordsBudget(10)
    assert [budget.take(small), budget.take(small), budget.take(small)] == [small, small, b""]


@pytest.mark.parametrize(("isolation_level", "aborted"), [(0, None), (1, [])])
def test_partition_data_has_the_result_and_no_preferred_replica(
    isolation_level: int, aborted: list[object] | None
) -> None:
    result = FetchResult(0, None, 9, 8, 2, EpochEnd(3, 4))
    data = partition_data(6, result, b"", isolation_level)
    offsets = (data.high_watermark, data.last_stable_offset, data.log_start_offset)
    assert (data.partition_index, data.error_code, offsets) == (6, 0, (9, 8, 2))
    assert data.aborted_transactions == aborted
    assert data.diverging_epoch is not None
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (3, 4)
    assert data.preferred_read_replica == -1

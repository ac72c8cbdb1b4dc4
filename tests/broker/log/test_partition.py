"""Partition: leadership and epoch checks, high watermark, reads and deletions below it."""

from __future__ import annotations

import pytest

from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import Partition
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import parse_batch_header
from tests.broker.log.conftest import NOW_MS, MakeBatch, OpenLog

TOPIC_ID = b"1" * 16


@pytest.fixture
def partition(open_log: OpenLog) -> Partition:
    """A partition that broker 1 leads in epoch 5."""
    return Partition(open_log(), TOPIC_ID, broker_id=1, leader_id=1, leader_epoch=5)


def append(partition: Partition, batch: MakeBatch, records: int = 1) -> None:
    partition.append_as_leader(batch(*range(records)), now_ms=NOW_MS)


def test_append_as_leader_stamps_leader_epoch_and_advances_high_watermark(
    partition: Partition, batch: MakeBatch
) -> None:
    append(partition, batch, 2)
    partition.update_leadership(1, 6)
    append(partition, batch, 3)
    assert (partition.high_watermark, partition.last_stable_offset) == (5, 5)
    for offset, epoch in ((1, 5), (2, 6)):
        result = partition.read(offset, 0)
        assert result is not None
        assert parse_batch_header(result.load()).partition_leader_epoch == epoch


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-2, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_check_leader_with_other_epoch_raises(
    partition: Partition, epoch: int, code: ErrorCode
) -> None:
    for leader in (1, 2):
        partition.update_leadership(leader, 5)
        with pytest.raises(LogError) as raised:
            partition.check_leader(epoch)
        assert raised.value.code == code


def test_check_leader_with_current_or_no_epoch_passes(partition: Partition) -> None:
    partition.check_leader(5)
    partition.check_leader(-1)
    partition.check_leader()


def test_follower_rejects_appends_and_deletions(partition: Partition, batch: MakeBatch) -> None:
    append(partition, batch)
    partition.update_leadership(2, 6)
    for attempt in (
        lambda: append(partition, batch),
        lambda: partition.delete_records(0),
        lambda: partition.check_leader(6),
        partition.check_leader,
    ):
        with pytest.raises(LogError) as raised:
            attempt()
        assert raised.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.log.log_end_offset == 1


def test_new_leader_advances_high_watermark_to_log_end(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log()
    log.append(batch(0, 1), now_ms=NOW_MS)
    partition = Partition(log, TOPIC_ID, broker_id=1, leader_id=2, leader_epoch=0)
    assert partition.high_watermark == 0
    partition.update_leadership(1, 1)
    assert partition.high_watermark == 2


def test_leader_assigns_its_epoch_before_first_append(
    partition: Partition, batch: MakeBatch
) -> None:
    append(partition, batch, 2)
    partition.update_leadership(1, 7)
    partition.update_leadership(2, 8)
    assert list(partition.log.leader_epochs.entries) == [(5, 0), (7, 2)]


def test_read_ends_at_high_watermark(partition: Partition, batch: MakeBatch) -> None:
    append(partition, batch, 2)
    append(partition, batch, 1)
    partition.log.append(batch(0), now_ms=NOW_MS)  # As if a follower did not have it yet.
    first = len(batch(0, 1))
    result = partition.read(0, 10_000)
    assert result is not None
    assert len(result) == first + len(batch(0))
    assert partition.read(3, 10_000) is None
    assert partition.read(4, 10_000) is None
    with pytest.raises(LogError) as raised:
        partition.read(5, 10_000)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_read_of_earlier_segment_ends_with_it(partition: Partition, batch: MakeBatch) -> None:
    append(partition, batch, 2)
    partition.log.roll(now_ms=NOW_MS)
    append(partition, batch, 1)
    partition.log.append(batch(0), now_ms=NOW_MS)
    result = partition.read(0, 10_000)
    assert result is not None
    assert len(result) == len(batch(0, 1))


@pytest.mark.parametrize(("offset", "start"), [(2, 2), (-1, 3), (0, 0), (3, 3)])
def test_delete_records_moves_log_start(
    partition: Partition, batch: MakeBatch, offset: int, start: int
) -> None:
    append(partition, batch, 3)
    partition.log.append(batch(0), now_ms=NOW_MS)
    assert partition.delete_records(offset) == start
    assert partition.log.log_start_offset == start


@pytest.mark.parametrize("offset", [4, -2])
def test_delete_records_outside_of_log_raises(
    partition: Partition, batch: MakeBatch, offset: int
) -> None:
    append(partition, batch, 3)
    partition.log.append(batch(0), now_ms=NOW_MS)
    with pytest.raises(LogError) as raised:
        partition.delete_records(offset)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert "high watermark is 3" in raised.value.text

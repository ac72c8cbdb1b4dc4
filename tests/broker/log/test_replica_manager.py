"""ReplicaManager: one Partition per hosted partition, which follows the image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import LogManager, Partition, ReplicaManager
from minibroker.broker.log.segment import SegmentFiles
from minibroker.broker.metadata.image import (
    Image,
    PartitionRegistration,
    Topic,
    TopicCreated,
    apply,
)
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import parse_batch_header
from tests.broker.log.conftest import NOW_MS, MakeBatch, OpenLog


def image(topic_id: bytes, *, leader: int = 1, epoch: int = 0, partitions: int = 2) -> Image:
    """The image of a cluster with topic ``t``."""
    states = (PartitionRegistration(i, leader, epoch, (1, 2), (1,)) for i in range(partitions))
    return apply(Image(), TopicCreated(Topic("t", topic_id * 16, tuple(states))))


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[ReplicaManager]:
    """Hosts all partitions except those with index 1."""
    logs = LogManager(
        tmp_path, Settings.from_sources(), lambda _, index: index != 1, SegmentFiles()
    )
    yield ReplicaManager(logs, broker_id=1)
    logs.abandon()


def get(replicas: ReplicaManager, current: Image) -> Partition:
    partition = replicas.get(current, "t", 0, now_ms=NOW_MS)
    assert partition is not None
    return partition


def test_get_returns_same_partition(replicas: ReplicaManager) -> None:
    current = image(b"1", epoch=3)
    partition = get(replicas, current)
    assert get(replicas, current) is partition
    assert (partition.leader_id, partition.leader_epoch, partition.is_leader) == (1, 3, True)


@pytest.mark.parametrize(("topic", "index"), [("t", 1), ("t", 2), ("u", 0)])
def test_get_of_partition_that_is_not_hosted_returns_none(
    replicas: ReplicaManager, tmp_path: Path, topic: str, index: int
) -> None:
    assert replicas.get(image(b"1"), topic, index, now_ms=NOW_MS) is None
    assert list(tmp_path.iterdir()) == []


def test_changes_of_offsets_and_leadership_are_reported(tmp_path: Path, batch: MakeBatch) -> None:
    changed: list[tuple[str, int]] = []
    logs = LogManager(tmp_path, Settings.from_sources(), lambda _, index: True, SegmentFiles())
    replicas = ReplicaManager(logs, 1, lambda topic, index: changed.append((topic, index)))
    before = image(b"1")
    partition = get(replicas, before)
    changed.clear()
    partition.append_as_leader(batch(), now_ms=NOW_MS)
    assert changed == [("t", 0)]
    partition.delete_records(1)
    assert changed == [("t", 0)] * 2
    after = image(b"1", leader=2, epoch=1)
    replicas.follow(before, after)
    assert changed == [("t", 0)] * 3
    replicas.follow(after, Image())
    assert changed == [("t", 0)] * 4
    logs.abandon()


def test_follow_updates_leadership_of_open_partition(replicas: ReplicaManager) -> None:
    before = image(b"1")
    partition = get(replicas, before)
    after = image(b"1", leader=2, epoch=1)
    replicas.follow(before, after)
    assert get(replicas, after) is partition
    assert (partition.leader_id, partition.leader_epoch, partition.is_leader) == (2, 1, False)


def test_follow_of_same_topic_changes_nothing(replicas: ReplicaManager) -> None:
    before = image(b"1")
    partition = get(replicas, before)
    replicas.follow(before, replace(before, number=before.number + 1))
    replicas.follow(before, replace(before, topics=dict(before.topics)))
    assert get(replicas, before) is partition


def test_follow_drops_partition_of_recreated_topic(
    replicas: ReplicaManager, batch: MakeBatch
) -> None:
    before, after = image(b"1"), image(b"2")
    get(replicas, before).append_as_leader(batch(0), now_ms=NOW_MS)
    replicas.follow(before, after)
    recreated = get(replicas, after)
    assert (recreated.topic_id, recreated.high_watermark) == (b"2" * 16, 0)


def test_follow_drops_partition_of_deleted_topic(replicas: ReplicaManager) -> None:
    before = image(b"1")
    get(replicas, before)
    replicas.follow(before, Image())
    assert replicas.get(Image(), "t", 0, now_ms=NOW_MS) is None


def test_follow_drops_partition_that_the_topic_has_no_longer(replicas: ReplicaManager) -> None:
    before = image(b"1")
    get(replicas, before)
    replicas.follow(before, image(b"1", partitions=0))
    assert replicas.open_partition("t", 0) is None


def test_forgotten_partition_is_opened_again(tmp_path: Path, batch: MakeBatch) -> None:
    changed: list[tuple[str, int]] = []
    logs = LogManager(tmp_path, Settings.from_sources(), lambda _, index: True, SegmentFiles())
    replicas = ReplicaManager(logs, 1, lambda topic, index: changed.append((topic, index)))
    current = image(b"1")
    partition = get(replicas, current)
    changed.clear()
    replicas.forget_all()
    assert changed == [("t", 0)]
    assert get(replicas, current) is not partition
    logs.abandon()


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

"""ReplicaManager: one Partition per hosted partition, which follows the image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.replica_manager import Partition, ReplicaManager
from minibroker.broker.log.segment import SegmentFiles
from minibroker.broker.metadata.image import (
    Image,
    PartitionRegistration,
    Topic,
    TopicCreated,
    apply,
)
from minibroker.broker.settings import Settings
from tests.broker.log.conftest import NOW_MS, MakeBatch


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

"""Offsets that are committed in transactions: pending, in force, aborted, and after a crash."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.group import GroupLimits
from minibroker.broker.groups.offsets import CommittedOffset, OffsetTable
from minibroker.broker.groups.service import GroupService
from minibroker.broker.groups.state_log import OffsetsTransaction
from minibroker.broker.log.errors import LogError
from minibroker.broker.metadata.image import offsets_partition
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from tests.broker.groups.conftest import Disk

OK = ErrorCode.NONE
PARTITION = offsets_partition("g", 50)
START_MS = 1_700_000_000_000
SIMPLE = CommitRequested("", -1, transactional=True)


def restarted(disk: Disk) -> GroupService:
    disk.kill()
    groups = GroupService(
        GroupLimits(),
        partitions=50,
        open_partition=disk.open,
        now=lambda: 0.0,
        wall_ms=lambda: START_MS,
        random=Random(1),
    )
    groups.load(disk.partitions())
    return groups


@pytest.fixture
async def groups(disk: Disk) -> GroupService:
    return restarted(disk)


def commit(
    groups: GroupService, disk: Disk, producer_id: int, event: CommitRequested = SIMPLE, **of: int
) -> set[ErrorCode]:
    """Commit offsets of partitions of topic ``t`` in the producer's transaction."""
    partition = disk.open(PARTITION)
    guard = partition.begin_verification(producer_id, 0, -1, adds=False, now_ms=START_MS)
    offsets = {
        ("t", int(name[1:])): CommittedOffset(number, -1, "", START_MS)
        for name, number in of.items()
    }
    transaction = OffsetsTransaction(producer_id, 0, guard)
    return set(groups.commit_pending("g", event, offsets, transaction).values())


def end(groups: GroupService, disk: Disk, producer_id: int, *, committed: bool) -> None:
    marker = EndTransactionMarker(committed, coordinator_epoch=0)

    def append() -> None:
        disk.open(PARTITION).append_marker(
            producer_id, 0, marker, transaction_version=0, now_ms=START_MS
        )

    groups.complete_transaction(PARTITION, producer_id, committed=committed, append=append)


def offsets(groups: GroupService) -> dict[int, int]:
    found = groups.committed("g")
    assert isinstance(found, OffsetTable)
    return {partition: committed.offset for _, partition, committed in found}


async def test_offsets_are_in_force_after_commit(groups: GroupService, disk: Disk) -> None:
    assert commit(groups, disk, 5, p0=10, p1=11) == {OK}
    assert offsets(groups) == {}
    assert groups.pending_offsets("g") == {("t", 0), ("t", 1)}
    end(groups, disk, 5, committed=True)
    assert offsets(groups) == {0: 10, 1: 11}
    assert groups.pending_offsets("g") == frozenset()
    assert offsets(restarted(disk)) == {0: 10, 1: 11}


async def test_offsets_are_dropped_by_abort(groups: GroupService, disk: Disk) -> None:
    commit(groups, disk, 5, p0=10)
    end(groups, disk, 5, committed=False)
    assert (offsets(groups), groups.pending_offsets("g")) == ({}, frozenset())
    assert offsets(restarted(disk)) == {}


@pytest.mark.parametrize("committed", [True, False])
async def test_pending_offsets_survive_a_crash(
    groups: GroupService, disk: Disk, committed: bool
) -> None:
    commit(groups, disk, 5, p0=10)
    groups = restarted(disk)
    assert [each.group_id for each in groups.list_groups()] == ["g"]
    assert groups.pending_offsets("g") == {("t", 0)}
    end(groups, disk, 5, committed=committed)
    assert offsets(groups) == ({0: 10} if committed else {})


async def test_marker_is_rejected_while_groups_are_not_loaded(disk: Disk) -> None:
    groups = restarted(disk)
    commit(groups, disk, 5, p0=10)
    disk.broken = {PARTITION}
    groups = restarted(disk)
    with pytest.raises(LogError) as raised:
        groups.complete_transaction(PARTITION, 5, committed=True, append=lambda: None)
    assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_failed_marker_leaves_offsets_pending(groups: GroupService, disk: Disk) -> None:
    commit(groups, disk, 5, p0=10)

    def fail() -> None:
        raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")

    with pytest.raises(LogError):
        groups.complete_transaction(PARTITION, 5, committed=True, append=fail)
    assert groups.pending_offsets("g") == {("t", 0)}


async def test_commit_without_guard_is_rejected(groups: GroupService, disk: Disk) -> None:
    transaction = OffsetsTransaction(5, 0, 0)
    new = {("t", 0): CommittedOffset(1, -1, "", START_MS)}
    assert groups.commit_pending("g", SIMPLE, new, transaction) == {
        ("t", 0): ErrorCode.INVALID_TXN_STATE
    }
    assert groups.pending_offsets("g") == frozenset()


async def test_member_of_no_group_is_rejected(groups: GroupService, disk: Disk) -> None:
    member = CommitRequested("m", 3, transactional=True)
    assert commit(groups, disk, 5, member, p0=1) == {ErrorCode.GROUP_ID_NOT_FOUND}


async def test_too_long_metadata_rejects_only_its_offset(groups: GroupService, disk: Disk) -> None:
    guard = disk.open(PARTITION).begin_verification(5, 0, -1, adds=False, now_ms=START_MS)
    new = {
        ("t", 0): CommittedOffset(1, -1, "m" * 5_000, START_MS),
        ("t", 1): CommittedOffset(2, -1, "", START_MS),
    }
    errors = groups.commit_pending("g", SIMPLE, new, OffsetsTransaction(5, 0, guard))
    assert errors == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE, ("t", 1): OK}


async def test_deleted_offsets_and_topics_are_not_pending(groups: GroupService, disk: Disk) -> None:
    commit(groups, disk, 5, p0=10, p1=11)
    groups.delete_offsets("g", [("t", 0)])
    assert groups.pending_offsets("g") == {("t", 1)}
    groups.on_topics_deleted(["t"])
    assert groups.pending_offsets("g") == frozenset()
    end(groups, disk, 5, committed=True)
    assert offsets(groups) == {}


async def test_deleted_group_has_no_pending_offsets(groups: GroupService, disk: Disk) -> None:
    commit(groups, disk, 5, p0=10)
    assert groups.delete_group("g") is OK
    assert groups.pending_offsets("g") == frozenset()
    groups = restarted(disk)
    assert groups.list_groups() == []
    end(groups, disk, 5, committed=True)
    assert groups.list_groups() == []


async def test_compaction_keeps_pending_offsets(groups: GroupService, disk: Disk) -> None:
    commit(groups, disk, 6, p1=1)
    end(groups, disk, 6, committed=True)
    commit(groups, disk, 5, p0=10)
    new = {("t", 9): CommittedOffset(2, -1, "", START_MS)}
    for _ in range(3):
        assert set(groups.commit("g", CommitRequested("", -1), new).values()) == {OK}
    disk.compact(PARTITION)
    groups = restarted(disk)
    assert groups.pending_offsets("g") == {("t", 0)}
    assert offsets(groups) == {1: 1, 9: 2}
    end(groups, disk, 5, committed=True)
    disk.compact(PARTITION)
    assert offsets(restarted(disk)) == {0: 10, 1: 1, 9: 2}


async def test_group_with_pending_offsets_is_not_cleaned_up(
    groups: GroupService, disk: Disk, autojump_clock: trio.testing.MockClock
) -> None:
    commit(groups, disk, 5, p0=10)
    groups._clean_up()
    assert groups.pending_offsets("g") == {("t", 0)}
    end(groups, disk, 5, committed=False)
    groups._clean_up()
    assert groups.list_groups() == []

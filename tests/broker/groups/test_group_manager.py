"""Groups and offsets are stored in offsets logs and survive a crash."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.groups import group_manager as manager_module
from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.events import Moment
from minibroker.broker.groups.group import EXTRA_TIMERS_MAX, TIMERS_PER_GROUP_MAX, GroupLimits
from minibroker.broker.groups.group_manager import GroupManager, GroupTimers
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.groups.records import GroupEntry
from minibroker.broker.groups.states import GroupState
from minibroker.broker.log.errors import LogError
from minibroker.broker.metadata.image import offsets_partition
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.stored import stored_group, stored_member

if TYPE_CHECKING:
    from tests.broker.groups.conftest import Disk

AT = Moment(0.0, 1_000)
MEMBER = stored_member("m", "s", "c", "/h", 60_000, 10_000, b"S", b"A")
STABLE = stored_group("consumer", 3, "range", "m", 5, members=(MEMBER,))
ONE = {("t", 0): CommittedOffset(1, 2, "meta", 3)}


@pytest.fixture
def manager(disk: Disk) -> GroupManager:
    return open_manager(disk)


def open_manager(disk: Disk) -> GroupManager:
    return GroupManager(
        GroupLimits(), partitions=50, open_partition=disk.open, random_bits=Random(1).getrandbits
    )


def made(manager: GroupManager, group_id: str) -> ClassicGroup:
    group = manager.create(group_id, AT)
    assert isinstance(group, ClassicGroup)
    return group


def reloaded(disk: Disk) -> dict[str, ClassicGroup]:
    disk.kill()
    again = open_manager(disk)
    again.load(disk.partitions(), AT)
    return {key: found for key in again.groups if (found := again.find(key, ClassicGroup))}


def test_members_and_offsets_survive_crash(manager: GroupManager, disk: Disk) -> None:
    group = made(manager, "g")
    assert manager.store(group, [GroupEntry("g", STABLE)], 1) is ErrorCode.NONE
    assert manager.commit(group, ONE, 1) == {("t", 0): ErrorCode.NONE}
    made(manager, "never stored")
    assert manager.commit(made(manager, "simple"), ONE, 1)
    groups = reloaded(disk)
    assert set(groups) == {"g", "simple"}
    assert groups["g"].state is GroupState.STABLE
    assert groups["g"].metadata({"m": b"A"}) == STABLE
    assert groups["g"].offsets.get("t", 0) == ONE["t", 0]
    assert groups["simple"].protocol_type is None


def test_deleted_group_remains_deleted_after_crash(manager: GroupManager, disk: Disk) -> None:
    group = made(manager, "g")
    manager.store(group, [GroupEntry("g", STABLE)], 1)
    manager.commit(group, ONE, 1)
    assert manager.delete(group, 2) is ErrorCode.NONE
    assert manager.groups == {}
    assert reloaded(disk) == {}


def test_deleted_offsets_remain_deleted_after_crash(manager: GroupManager, disk: Disk) -> None:
    group = made(manager, "g")
    manager.commit(group, ONE | {("t", 1): CommittedOffset(9, -1, "", 3)}, 1)
    assert manager.delete_offsets(group, [("t", 0), ("t", 7)], 2) is ErrorCode.NONE
    assert list(group.offsets) == [("t", 1, CommittedOffset(9, -1, "", 3))]
    assert list(reloaded(disk)["g"].offsets) == list(group.offsets)


def test_clear_removes_groups_and_allows_new_ones(manager: GroupManager, disk: Disk) -> None:
    manager.commit(made(manager, "g"), ONE, 1)
    manager.remove_all(clear=True)
    assert manager.logs == {}
    manager.commit(made(manager, "h"), ONE, 3)
    assert set(reloaded(disk)) == {"h"}


def test_groups_survive_compaction(manager: GroupManager, disk: Disk) -> None:
    group = made(manager, "g")
    manager.store(group, [GroupEntry("g", STABLE)], 1)
    many = {("t", number): CommittedOffset(number, -1, "", 1) for number in range(500)}
    for _ in range(60):
        manager.commit(group, many, 1)
    log = manager.log_of("g").log
    assert len(log.segments) > 1
    group.generation = 99  # a rebalance in progress is not stored
    disk.compact(offsets_partition("g", 50))
    assert log.size < 100_000
    groups = reloaded(disk)
    assert groups["g"].generation == 3
    assert groups["g"].offsets == group.offsets


def test_commit_above_offset_limit_is_rejected(
    manager: GroupManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "OFFSETS_PER_GROUP_MAX", 2)
    group = made(manager, "g")
    offsets = {("t", number): CommittedOffset(1, -1, "", 1) for number in range(3)}
    assert set(manager.commit(group, offsets, 1).values()) == {ErrorCode.POLICY_VIOLATION}
    del offsets["t", 2]
    assert set(manager.commit(group, offsets, 1).values()) == {ErrorCode.NONE}
    assert set(manager.commit(group, offsets, 1).values()) == {ErrorCode.NONE}
    assert len(group.offsets) == 2


def test_create_above_group_limit_is_rejected(
    manager: GroupManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "GROUPS_MAX", 1)
    assert manager.create("g", AT) is not None
    assert manager.create("h", AT) is None


def test_failed_write_changes_nothing(manager: GroupManager, disk: Disk) -> None:
    group = made(manager, "g")
    manager.commit(group, ONE, 1)
    full = LogError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left")

    def refuse(*_: object, **__: object) -> None:
        raise full

    manager.log_of("g").log.append_prepared = refuse  # type: ignore[method-assign, assignment]
    gone = ErrorCode.NOT_COORDINATOR
    more = {("t", 1): CommittedOffset(1, -1, "", 1)}
    assert manager.commit(group, more, 1) == {("t", 1): gone}
    assert manager.store(group, [GroupEntry("g", STABLE)], 1) is gone
    assert manager.delete(group, 1) is gone
    assert manager.delete_offsets(group, [("t", 0)], 1) is gone
    assert list(manager.groups) == ["g"]
    assert [key for *key, _ in group.offsets] == [["t", 0]]


def test_log_that_cannot_be_cleared_is_reported(
    manager: GroupManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager.commit(made(manager, "g"), ONE, 1)
    log = manager.log_of("g").log

    def refuse(_offset: int) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(log, "delete_records", refuse)
    manager.remove_all(clear=True)
    assert manager.groups == {}
    (kept,) = caplog.messages
    assert "cannot be cleared" in kept


def test_oversized_group_or_commit_gets_kafkas_error(manager: GroupManager) -> None:
    group = made(manager, "g")
    member = stored_member("m", "s", "c", "/h", 60_000, 10_000, bytes(2_000_000), b"A")
    huge = stored_group("consumer", 3, "range", "m", 5, members=(member,))
    assert manager.store(group, [GroupEntry("g", huge)], 1) is ErrorCode.UNKNOWN_SERVER_ERROR
    offsets = {("t", number): CommittedOffset(1, -1, "m" * 4096, 1) for number in range(300)}
    errors = set(manager.commit(group, offsets, 1).values())
    assert errors == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}


def test_expire_deletes_offsets_and_reports_empty_group(manager: GroupManager, disk: Disk) -> None:
    week = manager.limits.offsets_retention_ms
    group = made(manager, "g")
    manager.commit(group, ONE | {("t", 1): CommittedOffset(9, -1, "", 1_000)}, 1)
    assert manager.expire(group, week)
    assert len(group.offsets) == 2
    assert manager.expire(group, 999 + week)
    assert [key for *key, _ in group.offsets] == [["t", 1]]
    assert not manager.expire(group, 1_000 + week)
    assert reloaded(disk) == {}


def test_member_ids_use_given_random_bits(disk: Disk) -> None:
    group = made(open_manager(disk), "g")
    same = made(open_manager(disk), "g")
    assert group.make_id() == same.make_id()
    assert len(group.make_id()) == 36


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("a bug")])
def test_any_failure_to_write_a_group_is_an_error_code_for_its_members(
    manager: GroupManager, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    group = made(manager, "g")
    offsets_log = manager.log_of("g")

    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(offsets_log, "write", fail)
        offsets = {("t", 0): CommittedOffset(1, -1, "", 0)}
        assert manager.commit(group, offsets, 0) == {("t", 0): ErrorCode.UNKNOWN_SERVER_ERROR}
    assert group.offsets.get("t", 0) is None
    assert manager.commit(group, offsets, 0) == {("t", 0): ErrorCode.NONE}


TIMES = st.integers(0, 50).map(float)


def due(timers: GroupTimers, now: float) -> list[str]:
    found = []
    while (group := timers.take_due(now)) is not None:
        found.append(group)
    return found


@given(st.lists(st.tuples(st.sampled_from("abc"), TIMES)), TIMES)
def test_each_group_is_due_at_its_earliest_deadline(
    deadlines: list[tuple[str, float]], now: float
) -> None:
    timers = GroupTimers()
    earliest: dict[str, float] = {}
    for group, deadline in deadlines:
        is_next = timers.schedule(group, deadline)
        is_earlier = deadline < earliest.get(group, math.inf)
        earliest[group] = min(deadline, earliest.get(group, math.inf))
        assert is_next == (is_earlier and deadline == min(earliest.values()))
    assert timers.next == min(earliest.values(), default=math.inf)
    expected = sorted((at, group) for group, at in earliest.items() if at <= now)
    assert due(timers, now) == [group for _, group in expected]


def test_memory_is_bounded_by_the_number_of_groups() -> None:
    timers = GroupTimers()
    for number in range(1000, 0, -1):
        timers.schedule("g", float(number))
    assert len(timers) <= TIMERS_PER_GROUP_MAX + EXTRA_TIMERS_MAX + 1
    assert due(timers, 0.5) == []
    assert due(timers, 1.0) == ["g"]


def test_forgotten_groups_and_groups_without_a_deadline_are_not_due() -> None:
    timers = GroupTimers()
    assert not timers.schedule("none", None)
    timers.schedule("a", 1.0)
    timers.forget("a")
    timers.forget("a")
    assert due(timers, 2.0) == []
    timers.schedule("b", 1.0)
    timers.clear()
    assert (due(timers, 2.0), timers.next) == ([], math.inf)

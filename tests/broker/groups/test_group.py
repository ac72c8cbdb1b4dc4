"""The classic group through the interface of all group types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.groups import records
from minibroker.broker.groups.events import (
    CommitRequested,
    CommitResult,
    Decision,
    Event,
    GroupAnswer,
    GroupRecord,
    HeartbeatReceived,
    HeartbeatResult,
    Moment,
    Persist,
    Persisted,
)
from minibroker.broker.groups.group import MEMBERS_MAX, Group, GroupLimits
from minibroker.broker.groups.group_manager import GROUP_TYPES
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.groups.service import GroupService
from minibroker.broker.metadata.image import offsets_partition
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from minibroker.broker.groups.group import Group
    from tests.broker.groups.conftest import Playbook


def test_empty_classic_group_is_idle_and_deletable(play: Playbook) -> None:
    group: Group = play.group
    assert (group.type, group.state_name, group.protocol_type_name) == ("classic", "Empty", "")
    assert (group.epoch, group.members_count, group.is_idle) == (0, 0, True)
    assert group.validate_delete() is ErrorCode.NONE
    assert group.validate_offset_delete() is ErrorCode.NONE


def test_classic_group_with_members_is_not_deletable(play: Playbook) -> None:
    group: Group = play.stable("a", "b").group
    assert (group.state_name, group.protocol_type_name) == ("Stable", "consumer")
    assert (group.epoch, group.members_count, group.is_idle) == (1, 2, False)
    assert group.validate_delete() is ErrorCode.NON_EMPTY_GROUP
    assert group.validate_offset_fetch("unknown", 7) is ErrorCode.NONE


def test_classic_group_of_other_protocol_with_members_keeps_offsets(play: Playbook) -> None:
    group = play.stable("a").group
    assert group.validate_offset_delete() is ErrorCode.NONE
    group.protocol_type = "connect"
    assert group.validate_offset_delete() is ErrorCode.NON_EMPTY_GROUP


if TYPE_CHECKING:
    from tests.broker.groups.conftest import Disk, Words

TOY_KEY_VERSION = 900
START_MS = 1_700_000_000_000
RETENTION_MS = 60_000
KEY = ("t", 0)


class ToyRecord(NamedTuple):
    """The members of a toy group; None is a tombstone."""

    group_id: str
    members: tuple[str, ...] | None

    @property
    def group_type(self) -> str:
        return "toy"

    @property
    def is_tombstone(self) -> bool:
        return self.members is None

    def encode_key(self) -> bytes:
        return TOY_KEY_VERSION.to_bytes(2, "big") + self.group_id.encode()

    def encode_value(self) -> bytes | None:
        return None if self.members is None else ",".join(self.members).encode()

    def tombstone(self) -> ToyRecord:
        return ToyRecord(self.group_id, None)


def decode_toy(key: bytes, value: bytes | None) -> ToyRecord:
    members = None if value is None else tuple(filter(None, value.decode().split(",")))
    return ToyRecord(key[2:].decode(), members)


class ToyGroup(Group):
    """Its members join with a heartbeat; a heartbeat of generation -1 removes them all."""

    type = "toy"
    state_name = "Playing"
    protocol_type_name = "toys"
    next_deadline = None

    def __init__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment
    ) -> None:
        super().__init__(group_id, limits, make_id, time)
        self.members: tuple[str, ...] = ()
        self.waiter = 0

    @property
    def epoch(self) -> int:
        return self.members_count

    @property
    def members_count(self) -> int:
        return len(self.members)

    @property
    def is_idle(self) -> bool:
        return not self.members

    def is_subscribed(self, topic: str) -> bool:
        return topic == "subscribed"

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int, /) -> ErrorCode:
        known = member_id is None or (member_id in self.members and member_epoch == self.epoch)
        return ErrorCode.NONE if known else ErrorCode.STALE_MEMBER_EPOCH

    def validate_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def validate_delete(self) -> ErrorCode:
        return ErrorCode.NONE if self.is_idle else ErrorCode.NON_EMPTY_GROUP

    def expired_offsets(self, wall_ms: int) -> list[tuple[str, int]]:
        return self.offsets.expired(
            wall_ms=wall_ms,
            retention_ms=self.limits.offsets_retention_ms,
            age_from_ms=None,
            consumed=(),
        )

    def handle(self, event: Event, time: Moment) -> list[Decision]:
        if isinstance(event, HeartbeatReceived):
            self.members = () if event.generation < 0 else (*self.members, event.member_id)
            self.waiter = event.waiter
            return [Persist((ToyRecord(self.group_id, self.members),))]
        if isinstance(event, Persisted):
            return [GroupAnswer(self.waiter, HeartbeatResult(event.error))]
        if isinstance(event, CommitRequested):
            current = event.generation == self.epoch
            error = ErrorCode.NONE if current else ErrorCode.STALE_MEMBER_EPOCH
            return [GroupAnswer(event.waiter, CommitResult(error))]
        return []

    @classmethod
    def restore(
        cls,
        group_id: str,
        records: Sequence[GroupRecord],
        limits: GroupLimits,
        make_id: Callable[[], str],
        time: Moment,
    ) -> ToyGroup:
        group = cls(group_id, limits, make_id, time)
        (record,) = records
        assert isinstance(record, ToyRecord)
        group.members = record.members or ()
        return group


class Toys:
    """A group coordinator with one toy group."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.service = self.start()
        assert self.service._manager.create("g", self.time, "toy") is not None

    time = Moment(0.0, START_MS)

    def start(self) -> GroupService:
        self.disk.kill()
        service = GroupService(
            GroupLimits(offsets_retention_ms=RETENTION_MS, retention_check_interval_s=1.0),
            partitions=50,
            open_partition=self.disk.open,
            now=trio.current_time,
            wall_ms=lambda: START_MS + round(trio.current_time() * 1000),
            random=Random(1),
        )
        service.load(self.disk.partitions())
        return service

    def restart(self) -> None:
        self.service = self.start()

    def beat(self, member_id: str, generation: int = 0) -> ErrorCode:
        group = self.service._manager.find("g", ToyGroup)
        assert group is not None
        event = HeartbeatReceived(member_id, generation)
        return self.service._request_immediate(group, event, HeartbeatResult).error

    def commit(self, epoch: int) -> ErrorCode:
        offsets = {KEY: CommittedOffset(5, -1, "", self.service._wall_ms())}
        return self.service.commit("g", CommitRequested("m", epoch), offsets)[KEY]


@pytest.fixture
async def toys(disk: Disk, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> Toys:
    monkeypatch.setitem(GROUP_TYPES, "toy", ToyGroup)
    monkeypatch.setitem(records.RECORD_DECODERS, TOY_KEY_VERSION, decode_toy)
    return Toys(disk)


async def test_toy_group_with_members_and_offsets_survives_crash(toys: Toys) -> None:
    assert toys.beat("m") is ErrorCode.NONE
    assert toys.commit(1) is ErrorCode.NONE
    toys.restart()
    assert toys.service.list_groups() == [("g", "toys", "Playing", 1, 1, 1, "toy")]
    table = toys.service.committed("g")
    assert not isinstance(table, ErrorCode)
    assert [each for *each, _ in table] == [["t", 0]]


async def test_toy_group_validates_commit_and_fetch_of_offsets(toys: Toys) -> None:
    toys.beat("m")
    assert toys.commit(2) is ErrorCode.STALE_MEMBER_EPOCH
    assert toys.service.committed("g", "m", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert not isinstance(toys.service.committed("g", "m", 1), ErrorCode)


async def test_toy_group_without_members_is_removed_when_offsets_expire(
    toys: Toys, autojump_clock: MockClock
) -> None:
    toys.beat("m")
    toys.commit(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(toys.service.run)
        await trio.sleep(RETENTION_MS / 1000 + 2)
        assert toys.service.list_groups() == [("g", "toys", "Playing", 1, 1, 0, "toy")]
        toys.beat("", generation=-1)
        await trio.sleep(2)
        assert toys.service.list_groups() == []
        nursery.cancel_scope.cancel()
    toys.restart()
    assert toys.service.list_groups() == []


async def test_toy_group_record_survives_compaction(toys: Toys) -> None:
    toys.beat("m")
    for _ in range(20):
        toys.commit(1)
    toys.disk.compact(offsets_partition("g", 50))
    toys.restart()
    assert toys.service.list_groups() == [("g", "toys", "Playing", 1, 1, 1, "toy")]


async def test_toy_group_is_deleted_only_without_members(toys: Toys) -> None:
    toys.beat("m")
    assert toys.service.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    toys.beat("", generation=-1)
    assert toys.service.delete_group("g") is ErrorCode.NONE
    toys.restart()
    assert toys.service.list_groups() == []


async def test_offset_delete_asks_toy_group_for_subscription(toys: Toys) -> None:
    keys = [("subscribed", 0), ("t", 0)]
    assert toys.service.delete_offsets("g", keys) == (
        ErrorCode.NONE,
        {keys[0]: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, keys[1]: ErrorCode.NONE},
    )


async def test_classic_requests_to_toy_group_are_rejected(toys: Toys, say: type[Words]) -> None:
    joined = error_of(toys.service.join("g", say.join(0)))
    assert joined is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(toys.service.sync("g", say.sync(0, "m", 1))) is ErrorCode.UNKNOWN_MEMBER_ID
    assert toys.service.heartbeat("g", say.beat(0, "m", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert toys.service.describe("g") is None
    assert toys.service.missing_group_error("g") is ErrorCode.GROUP_ID_NOT_FOUND


def error_of(result: object) -> object:
    """The error of a request that is answered immediately."""
    return getattr(result, "error", None)


def test_limits_are_read_from_settings() -> None:
    pairs = {
        "group.min.session.timeout.ms": "7",
        "group.max.session.timeout.ms": "8",
        "group.max.size": "9",
        "group.initial.rebalance.delay.ms": "1500",
        "offset.metadata.max.bytes": "10",
        "offsets.retention.minutes": "2",
        "offsets.retention.check.interval.ms": "3000",
    }
    settings = Settings.from_sources(pairs=[f"{key}={value}" for key, value in pairs.items()])
    assert GroupLimits.from_settings(settings) == GroupLimits(
        session_timeout_ms_min=7,
        session_timeout_ms_max=8,
        members_max=9,
        initial_rebalance_delay_s=1.5,
        offset_metadata_bytes_max=10,
        offsets_retention_ms=120_000,
        retention_check_interval_s=3.0,
    )


def test_group_size_is_limited_without_setting() -> None:
    assert GroupLimits.from_settings(Settings.from_sources()).members_max == MEMBERS_MAX


def test_contradictory_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match="lower the first or raise the second"):
        GroupLimits(session_timeout_ms_min=10, session_timeout_ms_max=9)
    with pytest.raises(ValueError, match="above 0"):
        GroupLimits(members_max=0)

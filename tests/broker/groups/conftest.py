"""A playbook for groups: ``>>`` passes events, ``<<`` checks the expected decisions.

A number after ``>>`` advances the time by that many seconds. ``STORED`` after ``<<`` expects the
group to be written and confirms the write. Log lines are collected in ``play.notes`` and not
checked. A playbook fails if it ends with unexpected decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.events import (
    CommitRequested,
    Decision,
    Event,
    GroupAnswer,
    HeartbeatReceived,
    JoinedMember,
    JoinRequested,
    JoinResult,
    LeaveRequested,
    LeavingMember,
    LogLine,
    Moment,
    Persist,
    Persisted,
    Result,
    SyncRequested,
    SyncResult,
    TimePassed,
)
from minibroker.broker.groups.group import GroupLimits
from minibroker.broker.groups.records import GroupEntry, GroupMetadataValue
from minibroker.broker.groups.states import GroupState
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Log
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import OFFSETS_TOPIC
from minibroker_protocol.errors import ErrorCode
from tests.broker.log.cleaned_partition import compact

START_MS = 1_700_000_000_000
RANGE = (("range", b"r"),)


def kinds(decision: Decision) -> tuple[type, ...]:
    """Compare types as well, since named tuples of different types may be equal."""
    inner = (type(decision.result),) if isinstance(decision, GroupAnswer) else ()
    return (type(decision), *inner)


class ExpectedWrite:
    """Marker for an expected ``Persist``, which is then answered with ``Persisted``."""

    def __init__(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.error = error


class Playbook:
    """One group, its clock, and its decisions that are not checked yet."""

    STORED = ExpectedWrite()

    def __init__(self, limits: GroupLimits) -> None:
        ids = count(1)
        self.now = 100.0
        self.group = ClassicGroup("g", limits, lambda: f"id{next(ids)}", self.time)
        self.waiting: list[Decision] = []
        self.notes: list[str] = []
        self.persisted: list[Persist] = []

    @property
    def time(self) -> Moment:
        return Moment(self.now, START_MS + round((self.now - 100) * 1000))

    def __rshift__(self, event: Event | float) -> Playbook:
        if isinstance(event, int | float):
            self.now += event
            event = TimePassed()
        assert not self.waiting, f"decided but not expected: {self.waiting}"
        self._take(self.group.handle(event, self.time))
        return self

    def __lshift__(self, expected: Decision | ExpectedWrite | type[Persist]) -> Playbook:
        assert self.waiting, f"nothing was decided; expected {expected}"
        got = self.waiting.pop(0)
        if isinstance(expected, ExpectedWrite):
            assert isinstance(got, Persist), got
            assert not self.waiting
            self._take(self.group.handle(Persisted(expected.error), self.time))
        elif isinstance(expected, type):
            assert isinstance(got, expected), got
        else:
            assert kinds(got) == kinds(expected)
            assert got == expected
        return self

    def _take(self, decisions: list[Decision]) -> None:
        self.notes += [d.text for d in decisions if isinstance(d, LogLine)]
        self.persisted += [d for d in decisions if isinstance(d, Persist)]
        self.waiting += [d for d in decisions if not isinstance(d, LogLine)]

    @property
    def stored(self) -> GroupMetadataValue:
        """The last generation that was written."""
        (record,) = self.persisted[-1].records
        assert isinstance(record, GroupEntry)
        assert record.metadata is not None
        return record.metadata

    def is_in(self, state: GroupState) -> bool:
        return self.group.state is state

    def finish(self) -> None:
        assert not self.waiting, f"decided but not expected: {self.waiting}"

    # ------------------------------------------------------------------------- shorthands

    def stable(self, *names: str, **how: Any) -> Playbook:
        """Bring the group to a stable generation with members that join in this order."""
        ids = []
        for waiter, name in enumerate(names, start=1001):
            self >> join(waiter, client_id=name, **how)
        while not self.waiting:
            self >> self.group.limits.initial_rebalance_delay_s
        for decision in self.waiting:
            assert isinstance(decision, GroupAnswer)
            assert isinstance(decision.result, JoinResult)
            assert decision.result.error is ErrorCode.NONE
            ids.append(decision.result.member_id)
        self.waiting.clear()
        generation = self.group.generation
        for waiter, member_id in enumerate(ids, start=2001):
            assignments = tuple((each, each.encode()) for each in ids)
            self >> sync(waiter, member_id, generation, assignments=assignments)
            if waiter == 2001:
                self << Playbook.STORED
            self << synced(waiter, member_id.encode())
        return self


def join(waiter: int, member_id: str = "", **other: Any) -> JoinRequested:
    values: dict[str, Any] = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": RANGE,
        "client_id": "c",
    }
    return JoinRequested(waiter=waiter, member_id=member_id, **(values | other))


def sync(waiter: int, member_id: str, generation: int = 1, **other: object) -> SyncRequested:
    return SyncRequested(
        waiter=waiter,
        member_id=member_id,
        generation=generation,
        **other,  # type: ignore[arg-type]
    )


def beat(
    waiter: int, member_id: str, generation: int = 1, instance: str | None = None
) -> HeartbeatReceived:
    return HeartbeatReceived(
        waiter=waiter, member_id=member_id, generation=generation, group_instance_id=instance
    )


def commit(
    waiter: int, member_id: str, generation: int = 1, instance: str | None = None
) -> CommitRequested:
    return CommitRequested(
        waiter=waiter, member_id=member_id, generation=generation, group_instance_id=instance
    )


def leave(waiter: int, *members: str | LeavingMember) -> LeaveRequested:
    return LeaveRequested(
        waiter=waiter, members=tuple(LeavingMember(m) if isinstance(m, str) else m for m in members)
    )


def joined(
    waiter: int,
    member_id: str,
    leader: str,
    members: tuple[str | tuple[str, str], ...] = (),
    generation: int = 1,
    **other: object,
) -> GroupAnswer:
    """The answer to a successful join. ``members`` is for the leader only; static members are pairs
    with their instance id.
    """
    pairs = [each if isinstance(each, tuple) else (each, None) for each in members]
    values: dict[str, object] = {
        "member_id": member_id,
        "generation": generation,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": leader,
        "members": tuple(JoinedMember(each, name, b"r") for each, name in pairs),
    }
    return GroupAnswer(waiter, JoinResult(**(values | other)))  # type: ignore[arg-type]


def synced(waiter: int, assignment: bytes) -> GroupAnswer:
    result = SyncResult(protocol_type="consumer", protocol_name="range", assignment=assignment)
    return GroupAnswer(waiter, result)


def refused(waiter: int, result: type[Result], error: ErrorCode, **other: object) -> GroupAnswer:
    """An answer that contains only an error, and optionally a member id."""
    return GroupAnswer(waiter, result(error=error, **other))  # type: ignore[arg-type]


class Words:
    """The functions above, as a fixture for test modules."""

    join = staticmethod(join)
    sync = staticmethod(sync)
    beat = staticmethod(beat)
    commit = staticmethod(commit)
    leave = staticmethod(leave)
    joined = staticmethod(joined)
    synced = staticmethod(synced)
    refused = staticmethod(refused)


@pytest.fixture
def say() -> type[Words]:
    return Words


@pytest.fixture
def make_play() -> Iterator[Callable[..., Playbook]]:
    """Creates playbooks with the given limits. Each must end without unexpected decisions."""
    made: list[Playbook] = []

    def make(**limits: object) -> Playbook:
        values: dict[str, object] = {"initial_rebalance_delay_s": 3.0}
        made.append(Playbook(GroupLimits(**(values | limits))))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for play in made:
        play.finish()


@pytest.fixture
def play(make_play: Callable[..., Playbook]) -> Playbook:
    return make_play()


# ------------------------------------------------------------------------------- logs on disk

OFFSETS_LOG = LogConfig(compact=True, delete=False, delete_retention_ms=0, file_delete_delay_ms=0)


class Disk:
    """A data directory with ``__consumer_offsets``. ``kill`` simulates SIGKILL."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs: dict[int, Log] = {}
        self._hosted: dict[int, Partition] = {}
        self.broken: set[int] = set()

    def open(self, partition: int) -> Partition:
        if partition in self.broken:
            raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
        if partition not in self.logs:
            self.logs[partition] = Log.open(
                self.directory, OFFSETS_TOPIC, partition, OFFSETS_LOG, now_ms=START_MS
            )
            log = self.logs[partition]
            self._hosted[partition] = Partition(
                log, bytes(16), broker_id=1, leader_id=1, leader_epoch=0
            )
        return self._hosted[partition]

    def partitions(self) -> list[int]:
        """The partitions that exist."""
        names = [path.name for path in self.directory.iterdir()]
        return sorted(int(name.removeprefix(f"{OFFSETS_TOPIC}-")) for name in names)

    def kill(self) -> None:
        for log in self.logs.values():
            log.abandon()
        self.logs.clear()

    def compact(self, partition: int) -> None:
        compact(self.open(partition), START_MS)

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.directory.rglob("*.log"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.kill()

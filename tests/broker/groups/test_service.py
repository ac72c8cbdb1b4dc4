"""The service answers waiting requests, runs timers, and keeps acknowledged changes in a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.groups import group_manager as manager_module
from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.events import JoinResult, LeavingMember, Moment, SyncResult
from minibroker.broker.groups.group import GroupLimits
from minibroker.broker.groups.offsets import CommittedOffset, OffsetTable
from minibroker.broker.groups.service import GroupService, report_transitions
from minibroker.broker.groups.states import GroupState, StateTransition, TransitionCause
from minibroker.broker.log.errors import LogError
from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from tests.broker.groups.conftest import Disk, Words

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
OK = ErrorCode.NONE


class Worker:
    """An I/O worker that can be killed and restarted with the same data."""

    def __init__(self, disk: Disk, say: type[Words], limits: GroupLimits) -> None:
        self.disk = disk
        self.say = say
        self.limits = limits
        self.lives = 0
        self.groups = self.start()

    def start(self) -> GroupService:
        self.lives += 1
        self.disk.kill()
        groups = GroupService(
            self.limits,
            partitions=50,
            open_partition=self.disk.open,
            now=trio.current_time,
            wall_ms=lambda: START_MS + round(trio.current_time() * 1000),
            random=Random(self.lives),
        )
        groups.load(self.disk.partitions())
        return groups

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.groups.run)
            yield
            nursery.cancel_scope.cancel()

    async def join(self, member_id: str = "", **other: Any) -> JoinResult:
        return await settled(self.groups.join("g", self.say.join(0, member_id, **other)))

    async def sync(self, joined: JoinResult, **other: Any) -> SyncResult:
        event = self.say.sync(0, joined.member_id, joined.generation, **other)
        return await settled(self.groups.sync("g", event))

    def beat(self, joined: JoinResult) -> ErrorCode:
        event = self.say.beat(0, joined.member_id, joined.generation)
        return self.groups.heartbeat("g", event).error

    def commit(
        self, joined: JoinResult | None = None, metadata: str = "", **offsets: int
    ) -> dict[tuple[str, int], ErrorCode]:
        who = ("", -1) if joined is None else (joined.member_id, joined.generation)
        values = {
            (topic, 0): CommittedOffset(offset, -1, metadata, self.groups._wall_ms())
            for topic, offset in offsets.items()
        }
        return self.groups.commit("g", self.say.commit(0, *who), values)

    def committed(self, group_id: str = "g") -> OffsetTable:
        found = self.groups.committed(group_id)
        assert not isinstance(found, ErrorCode)
        return found

    async def pair(self) -> tuple[JoinResult, JoinResult]:
        """Create a stable group of two members."""
        first, second = await gather(
            lambda: self.join(client_id="a"), lambda: self.join(client_id="b")
        )
        leader, other = sorted((first, second), key=lambda each: not each.members)
        given = tuple((each.member_id, each.member_id.encode()) for each in leader.members)
        await gather(lambda: self.sync(leader, assignments=given), lambda: self.sync(other))
        return leader, other


T = TypeVar("T")


async def settled(result: T | Awaitable[T]) -> T:
    return await result if isinstance(result, Awaitable) else result


async def gather(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    async def one(index: int, call: Callable[[], Awaitable[Any]]) -> None:
        results[index] = await call()

    async with trio.open_nursery() as nursery:
        for index, call in enumerate(calls):
            nursery.start_soon(one, index, call)
    return results


@pytest.fixture
async def worker(autojump_clock: MockClock, disk: Disk, say: type[Words]) -> Worker:
    return Worker(disk, say, GroupLimits())


async def test_join_waits_for_members_and_sync_for_leader(
    autojump_clock: MockClock, worker: Worker
) -> None:
    async with worker.running():
        first, second = await gather(
            lambda: worker.join(client_id="a"), lambda: worker.join(client_id="b")
        )
        assert trio.current_time() == pytest.approx(6.0)
        assert first.generation == second.generation == 1
        leader, other = sorted((first, second), key=lambda each: not each.members)
        assert len(leader.members) == 2
        given = tuple((each.member_id, each.member_id.encode()) for each in leader.members)
        synced, waited = await gather(
            lambda: worker.sync(leader, assignments=given), lambda: worker.sync(other)
        )
        assert synced.assignment == leader.member_id.encode()
        assert waited.assignment == other.member_id.encode()
        assert worker.beat(leader) is OK
        assert not worker.groups._parked


async def test_changed_states_are_reported(autojump_clock: MockClock, worker: Worker) -> None:
    reported: list[tuple[str, str, str | None, str | None]] = []
    worker.groups.on_state = lambda *report: reported.append(report)
    async with worker.running():
        await worker.pair()
        await trio.sleep(10.1)
    assert {(what, name) for what, name, _, _ in reported} == {("group", "g")}
    assert [after for _, _, _, after in reported] == [
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "PreparingRebalance",
        "Empty",
    ]


async def test_session_timeout_fires_without_request(
    autojump_clock: MockClock, worker: Worker
) -> None:
    async with worker.running():
        await worker.pair()
        await trio.sleep(9.9)
        assert worker.groups.list_groups()[0].state == "Stable"
        await trio.sleep(0.2)
        assert worker.groups.list_groups()[0].state == "Empty"


async def test_heartbeats_continue_after_crash(autojump_clock: MockClock, worker: Worker) -> None:
    async with worker.running():
        leader, other = await worker.pair()
        assert worker.commit(leader, t=42) == {("t", 0): OK}
    before = worker.groups.describe("g", full=True)
    worker.groups = worker.start()
    async with worker.running():
        assert worker.groups.describe("g", full=True) == before
        assert worker.beat(leader) is OK
        assert worker.beat(other) is OK
        assert (await worker.sync(other)).assignment == other.member_id.encode()
        found = worker.committed().get("t", 0)
        assert found is not None
        assert found.offset == 42
        await trio.sleep(9)
        assert worker.beat(leader) is OK
        await trio.sleep(2)  # the last heartbeat of the other member was 11 s ago
        assert worker.beat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


async def test_crash_during_rebalance_restores_last_generation(
    autojump_clock: MockClock, worker: Worker
) -> None:
    async with worker.running(), trio.open_nursery() as nursery:
        leader, other = await worker.pair()
        nursery.start_soon(worker.join, leader.member_id)
        await trio.testing.wait_all_tasks_blocked()
        assert worker.beat(other) is ErrorCode.REBALANCE_IN_PROGRESS
        nursery.cancel_scope.cancel()
    worker.groups = worker.start()
    async with worker.running():
        assert worker.beat(other) is OK
        rejoined, also = await gather(
            lambda: worker.join(leader.member_id), lambda: worker.join(other.member_id)
        )
        # The second join gets the generation that the leader's join started.
        assert {rejoined.generation, also.generation} <= {1, 2}


async def test_cancelled_waiter_is_removed(autojump_clock: MockClock, worker: Worker) -> None:
    async with worker.running():
        with trio.move_on_after(1):
            await worker.join(client_id="a")
        assert not worker.groups._parked
        joined = await worker.join(client_id="b")
        assert worker.groups.list_groups()[0].members == 2
        assert joined.generation == 1
        assert worker.groups._answers == {}


async def test_requests_for_missing_group_are_rejected(
    autojump_clock: MockClock, worker: Worker, say: type[Words]
) -> None:
    groups = worker.groups
    unknown, invalid = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.INVALID_GROUP_ID
    assert (await worker.join("m")).error is unknown
    assert (await settled(groups.join("", say.join(0)))).error is invalid
    assert (await settled(groups.sync("g", say.sync(0, "m")))).error is unknown
    assert (await settled(groups.sync("", say.sync(0, "m")))).error is invalid
    assert groups.heartbeat("g", say.beat(0, "m")).error is unknown
    assert groups.heartbeat("", say.beat(0, "m")).error is invalid
    left = groups.leave("g", say.leave(0, "m"))
    assert (left.error, left.members) == (OK, ((LeavingMember("m"), unknown),))
    assert groups.leave("", say.leave(0, "m")).error is invalid
    missing = ErrorCode.GROUP_ID_NOT_FOUND
    offsets = {("t", 0): CommittedOffset(1, -1, "", 0)}
    assert groups.commit("g", say.commit(0, "m", 1), offsets) == {("t", 0): missing}
    assert groups.delete_group("g") is missing
    assert groups.delete_offsets("g", [("t", 0)]) == (missing, {})
    assert groups.delete_offsets("", [("t", 0)]) == (invalid, {})
    assert groups.describe("g") is None
    assert len(worker.committed()) == 0
    assert groups.list_groups() == []


async def test_requests_for_unloaded_group_get_load_in_progress(
    autojump_clock: MockClock, worker: Worker, say: type[Words]
) -> None:
    assert worker.commit(t=5) == {("t", 0): OK}
    (partition,) = worker.disk.partitions()
    worker.disk.broken.add(partition)
    worker.groups = groups = worker.start()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert groups.unloaded == {partition: "no space"}
    assert (await worker.join()).error is loading
    assert (await settled(groups.sync("g", say.sync(0, "m", 1)))).error is loading
    assert groups.heartbeat("g", say.beat(0, "m", 1)).error is OK
    assert groups.leave("g", say.leave(0, "m")).error is loading
    assert worker.commit(t=6) == {("t", 0): loading}
    offsets = {("t", 0): CommittedOffset(6, -1, "", 0)}
    assert groups.commit("g", say.commit(0, "m", 1), offsets) == {("t", 0): loading}
    assert groups.committed("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert groups.delete_offsets("g", [("t", 0)]) == (loading, {})
    assert groups.delete_group("g") is loading
    assert groups.missing_group_error("g") is loading
    assert groups.missing_group_error("another") is ErrorCode.GROUP_ID_NOT_FOUND
    assert len(worker.committed("another")) == 0

    assert groups.load(tuple(groups.unloaded)) == 0
    worker.disk.broken.clear()
    assert groups.load(tuple(groups.unloaded)) == 1
    assert not groups.unloaded
    assert [each for *each, _ in worker.committed()] == [["t", 0]]
    assert worker.commit(t=6) == {("t", 0): OK}


async def test_reset_clears_unloaded_partitions(autojump_clock: MockClock, worker: Worker) -> None:
    worker.commit(t=5)
    worker.disk.broken.update(worker.disk.partitions())
    worker.groups = worker.start()
    worker.groups.reset()
    assert not worker.groups.unloaded
    assert len(worker.committed()) == 0


async def test_join_with_invalid_session_timeout_creates_no_group(
    autojump_clock: MockClock, worker: Worker
) -> None:
    joined = await worker.join(session_timeout_ms=1)
    assert joined.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert worker.groups.list_groups() == []


async def test_join_above_group_limit_is_rejected(
    autojump_clock: MockClock, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "GROUPS_MAX", 0)
    assert (await worker.join()).error is ErrorCode.POLICY_VIOLATION
    assert worker.commit(t=1) == {("t", 0): ErrorCode.POLICY_VIOLATION}


async def test_commit_without_group_management_stores_offsets(
    autojump_clock: MockClock, worker: Worker
) -> None:
    assert not worker.groups.has("g")
    assert worker.commit(t=5, u=6) == {("t", 0): OK, ("u", 0): OK}
    assert worker.groups.has("g")
    worker.groups = worker.start()
    assert [each for *each, _ in worker.committed()] == [["t", 0], ["u", 0]]
    overview = worker.groups.list_groups()[0]
    assert (overview.state, overview.protocol_type, overview.offsets) == ("Empty", "", 2)


async def test_oversized_offset_metadata_is_rejected_per_partition(
    autojump_clock: MockClock, worker: Worker, say: type[Words]
) -> None:
    assert worker.groups.accepts("m" * 4096)
    assert not worker.groups.accepts("m" * 4097)
    offsets = {
        ("t", 0): CommittedOffset(1, -1, "m" * 4096, 0),
        ("t", 1): CommittedOffset(1, -1, "m" * 4097, 0),
    }
    errors = worker.groups.commit("g", say.commit(0, "", -1), offsets)
    assert errors == {("t", 0): OK, ("t", 1): ErrorCode.OFFSET_METADATA_TOO_LARGE}


async def test_rejected_commit_changes_nothing(autojump_clock: MockClock, worker: Worker) -> None:
    async with worker.running():
        await worker.pair()
        assert worker.commit(None, t=1) == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}
        assert len(worker.committed()) == 0


async def test_delete_group_with_members_is_rejected(
    autojump_clock: MockClock, worker: Worker, say: type[Words]
) -> None:
    async with worker.running():
        leader, other = await worker.pair()
        worker.commit(leader, t=1)
        assert worker.groups.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
        worker.groups.leave("g", say.leave(0, leader.member_id, other.member_id))
        assert worker.groups.delete_group("g") is OK
        assert worker.groups.list_groups() == []
    worker.groups = worker.start()
    assert worker.groups.list_groups() == []


async def test_delete_offsets_of_consumed_topic_is_rejected(
    autojump_clock: MockClock, worker: Worker
) -> None:
    subscription = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"
    async with worker.running():
        joined = await worker.join(protocols=(("range", subscription),))
        await worker.sync(joined)
        worker.commit(joined, t=1, old=2)
        error, errors = worker.groups.delete_offsets("g", [("t", 0), ("old", 0), ("old", 1)])
        assert error is OK
        assert errors == {
            ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ("old", 0): OK,
            ("old", 1): OK,
        }
        assert worker.committed().topics() == ["t"]


async def test_delete_offsets_of_other_protocol_requires_empty_group(
    autojump_clock: MockClock, worker: Worker
) -> None:
    async with worker.running():
        await worker.join(protocol_type="connect")
        assert worker.groups.delete_offsets("g", [("t", 0)]) == (ErrorCode.NON_EMPTY_GROUP, {})


async def test_offsets_of_deleted_topics_are_deleted(
    autojump_clock: MockClock, worker: Worker
) -> None:
    worker.commit(t=1, u=2)
    worker.groups.on_topics_deleted(["t", "never"])
    assert worker.committed().topics() == ["u"]
    worker.groups = worker.start()
    assert worker.committed().topics() == ["u"]


async def test_cleanup_expires_offsets_and_idle_groups(
    autojump_clock: MockClock, disk: Disk, say: Any
) -> None:
    limits = GroupLimits(offsets_retention_ms=5 * MINUTE_MS, retention_check_interval_s=60.0)
    worker = Worker(disk, say, limits)
    async with worker.running():
        worker.commit(t=1)
        await trio.sleep(4 * 60)
        worker.commit(u=1)
        await trio.sleep(2 * 60)
        assert worker.committed().topics() == ["u"]
        await trio.sleep(4 * 60)
        assert worker.groups.list_groups() == []
    worker.groups = worker.start()
    assert worker.groups.list_groups() == []


async def test_reset_removes_groups_and_rejects_waiters(
    autojump_clock: MockClock, worker: Worker
) -> None:
    async with worker.running():
        worker.commit(t=1)
        async with trio.open_nursery() as nursery:

            async def waiting() -> None:
                assert (await worker.join()).error is ErrorCode.NOT_COORDINATOR

            nursery.start_soon(waiting)
            await trio.testing.wait_all_tasks_blocked()
            assert worker.groups.reset() == 1
        assert worker.groups.list_groups() == []
        assert not worker.groups._manager.logs
        worker.commit(u=1)
        assert (await worker.join()).generation == 1
    worker.groups = worker.start()
    assert worker.committed().topics() == ["u"]


async def test_full_disk_is_reported_and_group_continues(
    autojump_clock: MockClock, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker.running():
        joined = await worker.join()
        log = worker.groups._manager.log_of("g").log

        def refuse(*_: object, **__: object) -> None:
            raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left")

        with monkeypatch.context() as patch:
            patch.setattr(log, "append_prepared", refuse)
            assert (await worker.sync(joined)).error is ErrorCode.NOT_COORDINATOR
        again = await worker.join(joined.member_id)
        assert again.generation == 2
        assert (await worker.sync(again)).error is OK


async def test_timer_queue_stays_short(
    autojump_clock: MockClock, worker: Worker, say: type[Words]
) -> None:
    for number in range(300):
        group_id = f"g{number % 3}"
        event = say.join(0, require_known_member_id=True)
        result = worker.groups.join(group_id, event)
        assert isinstance(result, JoinResult), "what needs no waiting is answered at once"
        worker.groups.leave(group_id, say.leave(0, result.member_id))
    assert len(worker.groups._manager.timers) < 100


async def test_names_from_clients_are_escaped_in_log(
    autojump_clock: MockClock,
    worker: Worker,
    say: type[Words],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with worker.running():
        await worker.join(client_id="a\nforged line", reason="x" * 30_000)
    assert caplog.messages
    assert all(len(line) < 1100 and line.isprintable() for line in caplog.messages)


async def test_same_seed_gives_same_ids(autojump_clock: MockClock, disk: Disk, say: Any) -> None:
    first = await Worker(disk, say, GroupLimits()).join(require_known_member_id=True)
    second = await Worker(disk, say, GroupLimits()).join(require_known_member_id=True)
    assert first.member_id == second.member_id


async def test_join_while_storage_rejects_writes_gets_load_in_progress(
    worker: Worker, autojump_clock: MockClock
) -> None:
    async with worker.running():
        worker.groups.can_store = False
        for _ in range(2):
            assert (await worker.join()).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert worker.groups.list_groups() == []
        worker.groups.can_store = True
        assert (await worker.join()).error is OK


async def test_drop_groups_with_members(autojump_clock: MockClock, worker: Worker) -> None:
    async with worker.running():
        await worker.pair()
        for prefix, left in (("x", 1), ("g", 0)):
            worker.groups.drop_groups(prefix)
            assert len(worker.groups.list_groups()) == left


EMPTY, PREPARING, STABLE = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.STABLE,
)


@dataclass
class Reports:
    """What was reported."""

    all: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)

    def __call__(self, what: str, name: str, before: str | None, after: str | None) -> None:
        self.all.append((what, name, before, after))


def move(group: ClassicGroup, before: GroupState, after: GroupState) -> None:
    cause = next(iter(TransitionCause))
    group.past_transitions.append(StateTransition(0.0, before, cause, after))


def group_of_test() -> ClassicGroup:
    return ClassicGroup("g", GroupLimits(), lambda: "id", Moment(0.0, 0))


def test_transitions_since_the_last_one_are_reported_in_order() -> None:
    group, reports = group_of_test(), Reports()
    assert not group.past_transitions
    move(group, EMPTY, PREPARING)
    move(group, PREPARING, STABLE)
    report_transitions(reports, group, None)
    assert reports.all == [
        ("group", "g", "Empty", "PreparingRebalance"),
        ("group", "g", "PreparingRebalance", "Stable"),
    ]
    since = group.past_transitions[-1]
    move(group, STABLE, EMPTY)
    reports.all.clear()
    report_transitions(reports, group, since)
    assert reports.all == [("group", "g", "Stable", "Empty")]


def test_equal_transitions_are_reported_each() -> None:
    group, reports = group_of_test(), Reports()
    move(group, EMPTY, EMPTY)
    since = group.past_transitions[-1]
    move(group, EMPTY, EMPTY)
    report_transitions(reports, group, since)
    assert len(reports.all) == 1


def test_nothing_is_reported_without_a_transition_or_without_a_receiver() -> None:
    group, reports = group_of_test(), Reports()
    move(group, EMPTY, STABLE)
    report_transitions(reports, group, group.past_transitions[-1])
    report_transitions(None, group, None)
    assert reports.all == []

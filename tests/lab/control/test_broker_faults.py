"""Fault rules are published, counted once for all processes, awaited, and released."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.metadata.image import (
    BROKER,
    TOPIC,
    BrokerGone,
    Change,
    ConfigChanged,
    Image,
    PartitionsAdded,
    Topic,
    TopicCreated,
    TopicDeleted,
    Update,
)
from minibroker.broker.process.messages import (
    ClockAdvanced,
    ImageApplied,
    RegisterRole,
)
from minibroker.broker.roles.metadata_publisher import MetadataPublisher
from minibroker.lab.control import broker_faults as tested
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.broker_faults import BrokerFaults, _affected
from minibroker.lab.errors import ApiError, Conflict, NotFound
from minibroker.lab.faults.actions import Advance, Error, Hold, Kill, Observe, Pause
from minibroker.lab.faults.fault_rule import RULES_MAX, FaultHold, FaultRule, FaultView
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.register import FaultStore
from minibroker.lab.observers.messages import FaultAct, FaultHeld, FaultMatched, FaultRules
from minibroker.lab.schema import InvalidJson
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.roles import RoleState, RoleStatus
from minibroker.runtime.rpc import RpcConnection, memory_channel_pair
from tests.lab.faults.messages import SERVED

HOLD = FaultRule(Hold(), name="held")
OBSERVE = FaultRule(Observe())
REQUEST = FaultHold("processor-0", "HEARTBEAT", "client", 7, group="g")


class Processor:
    """A processor that applies rules when the test lets it."""

    def __init__(self, publisher: MetadataPublisher, nursery: trio.Nursery) -> None:
        here, there = memory_channel_pair()
        self.applied: list[FaultRules] = []
        self.clock_changes = 0
        self.gate = trio.Event()
        self.gate.set()
        self.rpc = RpcConnection(here, self._apply)
        nursery.start_soon(publisher.serve_role, there)
        nursery.start_soon(self.rpc.run)

    async def _apply(self, request: Any) -> None:
        await self.gate.wait()
        if isinstance(request, ClockAdvanced):
            self.clock_changes += 1
        elif not isinstance(request, Update):
            assert isinstance(request, FaultRules)
            self.applied.append(request)

    async def register(self) -> FaultRules | None:
        registered = await self.rpc.request(RegisterRole("processor", 0, 1))
        await self.rpc.request(ImageApplied())
        return next((each for each in registered.further if isinstance(each, FaultRules)), None)


class At:
    """The controller's rules and one processor."""

    def __init__(self, clock: MockClock, nursery: trio.Nursery, directory: Path) -> None:
        self.nursery = nursery
        self.directory = directory
        self.publisher = MetadataPublisher(Image, lambda _: None, 0)
        self.clock = SimulatedClock(clock)
        self.statuses: list[RoleStatus] = []
        self.faults = self.new_faults()
        self.processor = Processor(self.publisher, nursery)

    def new_faults(self) -> BrokerFaults:
        """The rules of a controller of this start of the broker, whose journal is off."""
        env = SimpleNamespace(
            processors=1,
            workers=0,
            clock=self.clock,
            statuses=lambda: self.statuses,
            on_note=None,
        )
        broker = ControlledBroker(cast("Any", env), cast("Any", None), self.publisher, print)
        store = FaultStore(self.directory, 1)
        return BrokerFaults(broker.env, self.publisher, broker.processes, store, served=SERVED)

    def fire(self, *ids: str) -> list[str]:
        matched = FaultMatched(tuple(Candidate(each, None) for each in ids))
        return [each.rule_id for each in self.faults.decide(matched)]


@pytest.fixture
async def at(autojump_clock: MockClock, tmp_path: Path) -> AsyncIterator[At]:
    async with trio.open_nursery() as nursery:
        made = At(autojump_clock, nursery, tmp_path)
        await made.processor.register()
        yield made
        nursery.cancel_scope.cancel()


async def test_added_rule_is_applied_by_processors_before_the_answer(at: At) -> None:
    at.processor.gate = trio.Event()
    added: list[str] = []

    async def add() -> None:
        added.append((await at.faults.add(OBSERVE)).id)

    at.nursery.start_soon(add)
    await wait_all_tasks_blocked()
    assert added == []
    at.processor.gate.set()
    await wait_all_tasks_blocked()
    assert added == ["1"]
    (rules,) = at.processor.applied
    assert (rules.number, [each.id for each in rules.added], rules.replaces) == (1, ["1"], False)


async def test_processor_that_registers_later_gets_the_rules(at: At) -> None:
    await at.faults.add(OBSERVE)
    rules = await Processor(at.publisher, at.nursery).register()
    assert rules is not None
    assert ([each.id for each in rules.added], rules.replaces) == (["1"], True)


async def test_changes_are_sent_one_after_the_other(at: At) -> None:
    await at.faults.add(OBSERVE)
    at.processor.gate = trio.Event()
    for _ in range(3):
        at.nursery.start_soon(at.faults.add, OBSERVE)
    at.nursery.start_soon(at.faults.remove, "1")
    await wait_all_tasks_blocked()
    at.processor.gate.set()
    await wait_all_tasks_blocked()
    changes = at.processor.applied
    assert [each.number for each in changes] == [1, 2, 3, 4, 5]
    assert sorted(rule.id for each in changes for rule in each.added) == ["1", "2", "3", "4"]
    assert [rule for each in changes for rule in each.removed] == ["1"]


async def test_change_that_was_cancelled_is_part_of_the_next_one(at: At) -> None:
    at.processor.gate = trio.Event()
    with trio.move_on_after(1):
        await at.faults.add(OBSERVE)
    at.processor.gate.set()
    await at.faults.add(OBSERVE)
    last = at.processor.applied[-1]
    assert ([each.id for each in last.added], last.replaces) == (["1", "2"], True)
    at.processor.gate = trio.Event()
    with trio.move_on_after(1):
        await at.faults.remove_all()
    at.processor.gate.set()
    await at.faults.add(OBSERVE)
    last = at.processor.applied[-1]
    assert ([each.id for each in last.added], last.replaces) == (["3"], True)


async def test_matches_and_hits_are_counted(at: At) -> None:
    await at.faults.add(OBSERVE._replace(every=2))
    assert [at.fire("1") for _ in range(3)] == [[], ["1"], []]
    view = at.faults.register.view("1")
    assert (view.matches, view.hits) == (3, 1)
    assert at.faults.register.views() == (view,)


async def test_wait_returns_when_the_rule_has_fired(at: At) -> None:
    await at.faults.add(OBSERVE)
    hits: list[int] = []

    async def wait() -> None:
        hits.append((await at.faults.register.wait("1", 2, 60_000)).hits)

    at.nursery.start_soon(wait)
    for _ in range(2):
        await wait_all_tasks_blocked()
        assert hits == []
        at.fire("1")
    await wait_all_tasks_blocked()
    assert hits == [2]
    assert (await at.faults.register.wait("1", 0, 0)).hits == 2


async def test_wait_ends_at_its_timeout_with_what_was_seen(at: At) -> None:
    await at.faults.add(OBSERVE)
    at.fire("1")
    with pytest.raises(ApiError, match="fired 1 of 2 times within 50 ms") as caught:
        await at.faults.register.wait("1", 2, 50)
    assert caught.value.status == 408
    with pytest.raises(NotFound):
        await at.faults.register.wait("2", 1, 50)


async def test_wait_for_removed_rule_ends(at: At) -> None:
    await at.faults.add(OBSERVE)
    ended = trio.Event()

    async def wait() -> None:
        with pytest.raises(NotFound):
            await at.faults.register.wait("1", 1, 600_000)
        ended.set()

    at.nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    await at.faults.remove("1")
    await wait_all_tasks_blocked()
    assert ended.is_set()


@pytest.mark.parametrize("by", ["release", "remove", "remove all"])
async def test_held_request_is_released(at: At, by: str) -> None:
    await at.faults.add(HOLD)
    (fired,) = at.faults.decide(FaultMatched((Candidate("held", None),)))
    released = trio.Event()

    async def hold() -> None:
        await at.faults.hold(FaultHeld(fired.rule_id, fired.releases, REQUEST))
        released.set()

    at.nursery.start_soon(hold)
    await wait_all_tasks_blocked()
    assert not released.is_set()
    view = at.faults.register.view("held")
    assert (view.held, view.holds) == (1, (REQUEST,))
    if by == "release":
        assert at.faults.register.release("held") == 1
    elif by == "remove":
        await at.faults.remove("held")
    else:
        await at.faults.remove_all()
    await wait_all_tasks_blocked()
    assert released.is_set()


async def test_wait_for_a_hold_returns_when_something_is_held(at: At) -> None:
    await at.faults.add(HOLD)
    views: list[FaultView] = []

    async def wait() -> None:
        views.append(await at.faults.register.wait("held", 1, 60_000))

    at.nursery.start_soon(wait)
    (fired,) = at.faults.decide(FaultMatched((Candidate("held", None),)))
    await wait_all_tasks_blocked()
    assert not views
    at.nursery.start_soon(at.faults.hold, FaultHeld("held", fired.releases, REQUEST))
    await wait_all_tasks_blocked()
    assert [each.holds for each in views] == [(REQUEST,)]


async def test_change_of_metadata_is_held_before_it_is_published(at: At) -> None:
    rule = FaultRule(Hold(point="controller.applied"), name="held", topic="t*")
    await at.faults.add(rule)
    published: list[int] = []

    async def publish(number: int, name: str) -> None:
        change = TopicCreated(Topic(name, bytes(16), ()))
        await at.publisher.publish([Update(0, number, (change,))])
        published.append(number)

    at.nursery.start_soon(at.publisher.run)
    at.nursery.start_soon(publish, 1, "other")
    await wait_all_tasks_blocked()
    assert published == [1]
    at.nursery.start_soon(publish, 2, "t1")
    await wait_all_tasks_blocked()
    at.nursery.start_soon(publish, 3, "other")
    await wait_all_tasks_blocked()
    assert published == [1]
    view = at.faults.register.view("held")
    assert view.holds == (FaultHold("controller", topic="t1"),)
    at.faults.register.release("held")
    await wait_all_tasks_blocked()
    assert published == [1, 2, 3]
    await at.faults.remove_all()
    assert at.publisher.before_sending is None


async def test_release_before_the_request_arrives_is_not_lost(at: At) -> None:
    await at.faults.add(HOLD)
    (fired,) = at.faults.decide(FaultMatched((Candidate("held", None),)))
    assert at.faults.register.release("held") == 0
    await at.faults.hold(FaultHeld(fired.rule_id, fired.releases, REQUEST))
    await at.faults.hold(FaultHeld("removed", 0, REQUEST))
    assert at.faults.register.view("held").held == 0


async def test_invalid_duplicate_and_surplus_rules_are_rejected(at: At) -> None:
    with pytest.raises(InvalidJson, match="error: there is no error"):
        await at.faults.add(FaultRule(Error("NO_SUCH_ERROR")))
    await at.faults.add(HOLD)
    with pytest.raises(Conflict, match="held"):
        await at.faults.add(HOLD)
    for _ in range(RULES_MAX - 1):
        await at.faults.add(OBSERVE)
    with pytest.raises(Conflict, match="1000 rules are set"):
        await at.faults.add(OBSERVE)


async def test_rules_counts_and_holds_survive_the_controller(at: At) -> None:
    await at.faults.add(HOLD)
    await at.faults.add(OBSERVE._replace(first=2, name="seen"))
    (fired,) = at.faults.decide(FaultMatched((Candidate("held", None),)))
    held = FaultHeld("held", fired.releases, REQUEST)
    at.nursery.start_soon(at.faults.hold, held)
    assert at.fire("seen") == ["seen"]
    await wait_all_tasks_blocked()
    at.faults = at.new_faults()
    rules = await Processor(at.publisher, at.nursery).register()
    assert rules is not None
    assert [each.id for each in rules.added] == ["held", "seen"]
    at.nursery.start_soon(at.faults.hold, held._replace(again=True))
    await wait_all_tasks_blocked()
    view = await at.faults.register.wait("held", 1, 0)
    assert (view.hits, view.held, view.age_ms) == (1, 1, 0)
    with pytest.raises(ApiError):
        await at.faults.register.wait("held", 2, 0)
    assert [at.fire("seen") for _ in range(2)] == [["seen"], []]
    assert (await at.faults.add(OBSERVE)).id == "3"
    await at.faults.remove_all()
    assert list(at.directory.iterdir()) == []


async def test_removed_rule_is_unknown(at: At) -> None:
    await at.faults.add(OBSERVE)
    await at.faults.remove("1")
    for call in (at.faults.register.view, at.faults.register.release):
        with pytest.raises(NotFound):
            call("1")
    with pytest.raises(NotFound):
        await at.faults.remove("1")
    assert at.processor.applied[-1].removed == ("1",)
    assert at.fire("1") == []


@contextmanager
def process(at: At, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the broker that does nothing."""
    with subprocess.Popen(["sleep", "60"]) as running:
        at.statuses = [RoleStatus(name, running.pid, 1, RoleState.READY, 0, None)]
        yield running
        running.kill()


async def test_clock_is_advanced_for_all_processes(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[float] = []
    monkeypatch.setattr(tested, "note_clock", lambda _, before_ms: notes.append(before_ms))
    await at.faults.add(FaultRule(Advance(advance_ms=5000)))
    before, before_ms = at.clock.now(), at.clock.wall_ms()
    await at.faults.act(FaultAct("1"))
    assert at.clock.now() - before >= 5
    assert at.processor.clock_changes == 1
    assert notes == [before_ms]
    await at.faults.act(FaultAct("removed"))


async def test_process_is_killed(at: At) -> None:
    with process(at, "worker-0") as running:
        await at.faults.add(FaultRule(Kill(process="worker-0")))
        await at.faults.act(FaultAct("1"))
        assert running.wait() == -signal.SIGKILL
    at.statuses = []
    await at.faults.act(FaultAct("1"))


async def test_paused_process_continues(at: At) -> None:
    with process(at, "worker-0") as running:
        await at.faults.add(FaultRule(Pause(process="worker-0", pause_ms=100)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.faults.act, FaultAct("1"))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert state_of(running) != "T"
        await at.faults.act(FaultAct("1"))
        assert state_of(running) != "T"


def state_of(running: subprocess.Popen[bytes]) -> str:
    """The kernel's letter for the state of a process."""
    return Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    "rule",
    [
        FaultRule(Kill(process="worker-9")),
        FaultRule(Pause(process="controller", pause_ms=1)),
    ],
)
async def test_process_that_cannot_be_acted_on_is_rejected(at: At, rule: FaultRule) -> None:
    with process(at, "controller"), pytest.raises(InvalidJson, match="process: is not one"):
        await at.faults.add(rule)


def test_changes_of_topics_and_configs_are_named_and_others_are_not() -> None:
    changes: tuple[Change, ...] = (
        TopicCreated(Topic("created", bytes(16), ())),
        TopicDeleted("deleted", bytes(16)),
        PartitionsAdded("grown", ()),
        ConfigChanged(TOPIC, "configured", {}),
        ConfigChanged(BROKER, "1", {}),
        BrokerGone(1),
    )
    assert list(map(_affected, changes)) == [
        ("created", None),
        ("deleted", None),
        ("grown", None),
        ("configured", "configured"),
        (None, "1"),
        (None, None),
    ]

"""Observers, rules and the journal are attached to the roles of a process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.admission.connection_events import ConnectionEvents
from minibroker.broker.groups.hooks import PREPARED
from minibroker.broker.log.segment import SegmentFiles
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import (
    ACCEPTOR,
    PROCESSOR,
    WORKER,
    Environment,
    note,
    note_state,
)
from minibroker.broker.process.metadata_client import MetadataClient
from minibroker.broker.process.storage_watch import StorageWatch
from minibroker.broker.settings import Settings
from minibroker.lab.faults.actions import FailAppend, Hold, Observe
from minibroker.lab.faults.fault_rule import ActiveRule, FaultRule
from minibroker.lab.journal.records import NOTE_KIND, JournalBuffer, JournalChunk, entry_of, split
from minibroker.lab.observers.attaching import (
    FollowedRules,
    ObservedWorker,
    ProcessJournal,
    WorkerRules,
    note_listener,
    save_records,
)
from minibroker.lab.observers.hold_points import ProcessHoldPoints
from minibroker.lab.observers.messages import FaultRules, JournalRequest, JournalSwitch, KillProcess
from minibroker.lab.observers.request_journal import JournalFiles
from minibroker.runtime.rpc import PeerFailed
from tests.broker.process.conftest import MakeEnvironment, make_env
from tests.broker.process.test_metadata_client import Controller, welcome, with_controller

__all__ = ["make_env"]


def fault_rules(number: int, *ids: str, replaces: bool = False) -> FaultRules:
    rules = tuple(ActiveRule(each, FaultRule(Observe())) for each in ids)
    return FaultRules(number, rules, replaces=replaces)


async def test_fault_rules_are_applied_in_order_and_end_with_their_controller(
    make_env: MakeEnvironment,
) -> None:
    env = make_env(PROCESSOR)
    applied: list[FaultRules] = []

    async def apply(rules: FaultRules) -> None:
        applied.append(rules)

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        rules = fault_rules(3, "a", replaces=True)
        controller.welcome = controller.welcome._replace(further=(rules,))
        first = await controller.meet()
        await client.wait_image()
        assert applied == [fault_rules(3, "a", replaces=True)]
        await first.request(fault_rules(3, "a"))  # It was there at the registration.
        await first.request(fault_rules(4, "b"))
        assert applied[1:] == [fault_rules(4, "b")]
        first.close()
        controller.welcome = welcome(0, epoch=2)
        second = await controller.meet()
        await client.wait_image()
        assert applied[2:] == [fault_rules(0, replaces=True)]
        await second.request(fault_rules(1, "d"))
        assert applied[3:] == [fault_rules(1, "d")]

    client = MetadataClient(env)
    FollowedRules(client, apply)
    await with_controller(env, client, play)


async def test_rules_reach_hold_points_and_storage_of_a_worker(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    env, files = make_env(WORKER, 0), SegmentFiles()
    watch = StorageWatch(env, EventLog(env.name))
    worker = SimpleNamespace(segment_files=files, storage=watch)
    hold_points = ProcessHoldPoints()
    faults = WorkerRules(env, cast("ObservedWorker", worker), hold_points, lambda: None)
    before = watch.fails_on_purpose()
    hold = ActiveRule("1", FaultRule(Hold(point="transaction.prepared")))
    fail = ActiveRule("2", FaultRule(FailAppend()), slot=0)
    await faults.change(FaultRules(1, (hold, fail)))
    assert hold_points.may_hold(PREPARED, "tx")
    assert vars(files)["write_fault"] is not None
    assert watch.fails_on_purpose()
    await faults.change(FaultRules(2, removed=("1", "2")))
    assert not hold_points.may_hold(PREPARED, "tx")
    assert vars(files)["write_fault"] is None
    assert (before, watch.fails_on_purpose()) == (False, False)


async def test_disabled_activity_has_no_sender(make_env: MakeEnvironment) -> None:
    env = make_env(ACCEPTOR)
    events = ConnectionEvents(1, env.clock.now)
    role = SimpleNamespace(
        metadata_client=MetadataClient(env), events=events, services=[], last_services=[]
    )
    env.observe(role)
    assert (events.on_event, role.services, role.last_services) == (None, [], [])


async def test_activity_of_an_acceptor_is_sent(make_env: MakeEnvironment) -> None:
    settings = Settings.from_sources(pairs=["activity.enable=true"])
    env = make_env(ACCEPTOR, settings=settings)
    events = ConnectionEvents(1, env.clock.now)
    role = SimpleNamespace(
        metadata_client=MetadataClient(env), events=events, services=[], last_services=[]
    )
    env.observe(role)
    assert events.on_event is not None
    assert len(role.services) == len(role.last_services) == 1


async def test_note_is_recorded_with_its_time_and_connection(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    env = make_env(WORKER)
    buffer = JournalBuffer(0, env.journal_counts.word(env.name))
    env.on_note = note_listener(buffer, env.clock.now)
    note_state(env, "group", "g", "Empty", "Stable")
    note(env, "fault", {"rule": "1"}, (7, "::1", 5000), (0, 9, 1, "etl"))
    (part,) = buffer.take().parts
    state, fault = (
        entry_of(kind, record, env.name, env.clock.epoch_s)
        for _, kind, record in split(part.packed)
    )
    assert state.details == {"what": "group", "name": "g", "from": "Empty", "to": "Stable"}
    assert abs(state.clock_ms - env.clock.wall_ms()) <= 1
    assert state.role == "worker-0"
    assert (fault.connection, fault.address, fault.api) == ("7", "[::1]:5000", "Produce")
    assert (fault.client_id, fault.correlation_id) == ("etl", 1)


def records_journal(env: Environment) -> bool:
    return env.on_note is not None


async def test_journal_is_switched_by_registration_and_by_request(
    make_env: MakeEnvironment,
) -> None:
    env = make_env(WORKER)

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        controller.welcome = welcome(5)._replace(further=(JournalSwitch(is_on=True),))
        first = await controller.meet()
        await client.wait_image()
        assert env.on_note is not None
        note(env, "clock", {"to": 1})
        chunk = await first.request(JournalRequest(0))
        (part,) = chunk.parts
        assert [kind for _, kind, _ in split(part.packed)] == [NOTE_KIND]
        assert await first.request(JournalRequest(0)) == chunk, "its receipt is unknown"
        assert (await first.request(JournalRequest(chunk.number))).parts == ()
        before = env.on_note
        await first.request(JournalSwitch(is_on=True))
        assert env.on_note is before, "what it has recorded is kept"
        note(env, "clock", {"to": 2})
        await first.request(JournalSwitch(is_on=False))
        assert not records_journal(env)
        (part,) = (await first.request(JournalRequest(chunk.number + 1))).parts
        assert part.entries == 1, "what it has recorded is handed over"
        await first.request(JournalSwitch(is_on=True))
        first.close()
        controller.welcome = welcome(0, epoch=2)
        await controller.meet()
        await client.wait_image()
        note(env, "clock", {"to": 1})
        assert env.on_note is None, "the journal of the former controller is lost"

    client = MetadataClient(env)
    ProcessJournal(env, client, env.journal_counts, {})
    await with_controller(env, client, play)


async def test_process_that_is_asked_to_end_saves_its_records_first(
    make_env: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env(WORKER)
    files = JournalFiles(env.data_dir, env.started_us, EventLog("test"))
    saved: list[Sequence[JournalChunk]] = []
    monkeypatch.setattr("os.kill", lambda *_: saved.append(files.take_chunks(env.name)))

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        controller.welcome = welcome(5)._replace(further=(JournalSwitch(is_on=True),))
        rpc = await controller.meet()
        await client.wait_image()
        note(env, "clock", {"to": 1})
        with suppress(PeerFailed):  # It lives on in this test.
            await rpc.request(KillProcess())

    client = MetadataClient(env)
    ProcessJournal(env, client, env.journal_counts, {})
    await with_controller(env, client, play)
    ((first, _),) = saved
    assert [part.entries for part in first.parts] == [1]


async def test_records_of_all_roles_of_a_process_are_saved(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    counts = env.journal_counts
    buffers = {name: JournalBuffer(0, counts.word(name)) for name in (env.name, "processor-0")}
    note_listener(buffers[env.name], env.clock.now)("clock", {"to": 1}, None, None)
    save_records(env, counts, buffers)
    found = JournalFiles(env.data_dir, env.started_us, EventLog("test"))
    assert sum(part.entries for chunk in found.take_chunks(env.name) for part in chunk.parts) == 1
    assert [chunk.parts for chunk in found.take_chunks("processor-0")] == [()]
    assert found.take_chunks("worker-1") == ()

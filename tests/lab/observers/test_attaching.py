"""Observers, rules and the journal are attached to the roles of a process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import trio
from trio.testing import MockClock

from minibroker.broker.admission.connection_events import ConnectionEvents
from minibroker.broker.groups.hooks import PREPARED
from minibroker.broker.log.segment import SegmentFiles
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import ACCEPTOR, PROCESSOR, WORKER
from minibroker.broker.process.metadata_client import MetadataClient
from minibroker.broker.process.storage_watch import StorageWatch
from minibroker.broker.settings import Settings
from minibroker.lab.faults.actions import FailAppend, Hold, Observe
from minibroker.lab.faults.fault_rule import ActiveRule, FaultRule
from minibroker.lab.observers.attaching import FollowedRules, ObservedWorker, WorkerRules
from minibroker.lab.observers.hold_points import ProcessHoldPoints
from minibroker.lab.observers.messages import FaultRules
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
    hold_points = ProcessHoldPoints(env.name)
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

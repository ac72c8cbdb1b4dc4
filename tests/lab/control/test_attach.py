"""What is attached to the controller role when it starts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.controller.metadata_publisher import MetadataPublisher
from minibroker.broker.log.data_directory import FAULT_RULES_FILE
from minibroker.broker.settings import Settings
from minibroker.lab.control.attach import attach_control
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.operations import OPERATIONS
from minibroker.lab.control.serve import open_listener
from minibroker.lab.faults.actions import Hold, Observe
from minibroker.lab.faults.fault_rule import FaultHold, FaultRule
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.observers.messages import (
    FaultAct,
    FaultHeld,
    FaultMatched,
    FaultRules,
    JournalSwitch,
)
from tests.lab.control.running_broker import At

ON = Settings.from_sources(pairs=["journal.enable=true"])


@asynccontextmanager
async def attached(at: At, **changes: Any) -> AsyncIterator[ControlledBroker]:
    """A controller with such an environment, to which the control API is attached."""
    env, scope = replace(at.env, **changes), at.scope
    publisher = MetadataPublisher(lambda: scope.image, lambda _: None, scope.image.number)
    async with trio.open_nursery() as nursery:
        yield attach_control(env, scope, publisher, nursery)
        nursery.cancel_scope.cancel()


def further(broker: ControlledBroker, role: str) -> list[object]:
    """What a role must handle when it registers."""
    requests = [ask(role) for ask in broker.publisher.further]
    return [request for request in requests if request is not None]


async def test_requests_of_roles_about_faults_are_handled(at: At) -> None:
    async with attached(at) as broker:
        handlers: dict[type, Callable[[Any], Any]] = broker.publisher.handlers
        assert "faults" not in vars(broker)
        matched = FaultMatched((Candidate("held", None),))
        assert await handlers[FaultMatched](matched) == ()
        await broker.faults.add(FaultRule(Hold(), name="held"))
        (fired,) = await handlers[FaultMatched](matched)
        assert fired.rule_id == "held"
        async with trio.open_nursery() as nursery:
            held = FaultHeld("held", fired.releases, FaultHold("processor-0"))
            nursery.start_soon(handlers[FaultHeld], held)
            await wait_all_tasks_blocked()
            assert broker.faults.register.release("held") == 1
        await handlers[FaultAct](FaultAct("removed"))


async def test_rules_of_a_killed_controller_are_there_before_roles_register(at: At) -> None:
    async with attached(at) as first:
        await first.faults.add(FaultRule(Observe(), name="seen"))
    assert (at.env.data_dir / FAULT_RULES_FILE).exists()
    async with attached(at, incarnation=2) as second:
        (rules,) = further(second, "worker")
        assert isinstance(rules, FaultRules)
        assert further(second, "acceptor") == []
        assert [each.id for each in rules.added] == ["seen"]


@pytest.mark.parametrize(
    ("changes", "is_on"),
    [
        ({}, False),
        ({"settings": ON}, True),
        ({"settings": ON, "incarnation": 2}, False),
    ],
)
async def test_journal_begins_with_the_first_controller_if_it_is_enabled(
    at: At, changes: dict[str, Any], is_on: bool
) -> None:
    async with attached(at, **changes) as broker:
        assert ("journal" in vars(broker)) is is_on
        assert further(broker, "acceptor") == ([JournalSwitch(True)] if is_on else [])


async def test_journal_that_was_on_continues_in_the_next_controller(at: At) -> None:
    async with attached(at, settings=ON):
        pass
    async with attached(at, incarnation=2) as broker:
        assert further(broker, "worker") == [JournalSwitch(True)]


async def test_control_api_is_served_on_the_listener(at: At, autojump_clock: MockClock) -> None:
    with open_listener("127.0.0.1", 0) as listener:
        async with attached(at, control=listener) as broker:
            assert broker.operations == OPERATIONS
            autojump_clock.autojump_threshold = float("inf")  # Its client is a real socket.
            async with await trio.open_tcp_stream(*listener.getsockname()[:2]) as stream:
                await stream.send_all(b"GET /v1/clock HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")

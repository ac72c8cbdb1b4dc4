"""What is held waits until the controller says that no rule holds it, however often it restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.groups.hooks import PREPARED, REBALANCE
from minibroker.lab.faults.actions import Hold
from minibroker.lab.faults.fault_rule import ActiveRule, FaultHold, FaultRule
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.rulebook import Firing
from minibroker.lab.observers.hold_points import ControllerDecisions, ProcessHoldPoints
from minibroker.lab.observers.messages import FaultHeld, FaultMatched, FaultRules
from minibroker.runtime.rpc import Link, PeerFailed, PeerLost, RpcConnection, memory_channel_pair

RULES = FaultRules(
    1,
    (
        ActiveRule("1", FaultRule(Hold(point=REBALANCE), group="g*")),
        ActiveRule("2", FaultRule(Hold(point=PREPARED))),
    ),
)


class Controller:
    """A controller that holds until the test lets it answer."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.fires = True
        self.requests: list[Any] = []
        self.released = trio.Event()
        self.rpc: RpcConnection | None = None
        self.link = Link(self._connect, self._register)
        nursery.start_soon(self.link.run)

    async def _connect(self) -> Any:
        here, there = memory_channel_pair()
        self.rpc = RpcConnection(there, self._answer)
        self._nursery.start_soon(self.rpc.run)
        return here

    async def _register(self, rpc: RpcConnection) -> None:
        del rpc

    async def _answer(self, request: Any) -> Any:
        self.requests.append(request)
        if isinstance(request, FaultMatched):
            return [Firing(each.rule_id, 0.0, 4) for each in request.candidates if self.fires]
        await self.released.wait()
        return None


class At:
    """The hold points of one process, and its controller."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.controller = Controller(nursery)
        self.points = ProcessHoldPoints()
        self.points.decisions = ControllerDecisions(self.controller.link, "worker-0")
        self.continued: list[str] = []
        nursery.start_soon(self.points.run)

    async def hold(self, point: str, subject: str) -> None:
        self.points.hold(point, subject, lambda: self.continued.append(subject))
        await wait_all_tasks_blocked()


@pytest.fixture
async def at() -> AsyncIterator[At]:
    async with trio.open_nursery() as nursery:
        made = At(nursery)
        made.points.change_rules(RULES)
        yield made
        nursery.cancel_scope.cancel()


async def test_rules_hold_what_they_select_at_their_point(at: At) -> None:
    assert at.points.may_hold(REBALANCE, "g1")
    assert not at.points.may_hold(REBALANCE, "other")
    assert at.points.may_hold(PREPARED, "any")
    at.points.change_rules(FaultRules(2, removed=("1", "2", "none")))
    assert not at.points.may_hold(PREPARED, "any")


async def test_held_continues_when_it_is_released(at: At) -> None:
    await at.hold(REBALANCE, "g1")
    held = FaultHeld("1", 4, FaultHold("worker-0", group="g1"))
    assert (at.controller.requests[1:], at.continued) == ([held], [])
    at.controller.released.set()
    await wait_all_tasks_blocked()
    assert at.continued == ["g1"]


async def test_held_continues_if_no_rule_fires_or_none_is_left(at: At) -> None:
    at.controller.fires = False
    await at.hold(PREPARED, "tx")
    assert at.continued == ["tx"]
    at.points.change_rules(FaultRules(2, removed=("1", "2", "none")))
    await at.hold(PREPARED, "other")
    assert at.continued == ["tx", "other"]
    assert len(at.controller.requests) == 1


async def test_held_stays_held_while_the_controller_restarts(at: At) -> None:
    await at.hold(PREPARED, "tx")
    assert at.controller.rpc is not None
    at.controller.rpc.close()
    await wait_all_tasks_blocked()
    assert at.continued == []
    assert at.controller.requests[-1].again
    at.controller.released.set()
    await wait_all_tasks_blocked()
    assert at.continued == ["tx"]


CANDIDATES = (Candidate("1", None),)
GROUP = FaultHold("", group="g")
HELD = FaultHeld("1", 0, FaultHold("worker-0", group="g"))


class AnsweringLink:
    """A link to a controller with some answers, or errors."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []
        self.is_closed = False

    async def request(self, request: Any, *, may_wait: bool = False) -> Any:
        await trio.lowlevel.checkpoint()
        assert may_wait == isinstance(request, FaultHeld)
        self.requests.append(request)
        answer = self.answers.pop(0)
        self.is_closed = not self.answers
        if isinstance(answer, Exception):
            raise answer
        return answer


def decisions(link: Any) -> ControllerDecisions:
    return ControllerDecisions(link, "worker-0")


async def test_decision_of_the_restarted_controller_counts() -> None:
    link: Any = AnsweringLink(PeerLost("killed"), (Firing("1", 0.0, 0),))
    assert [each.rule_id for each in await decisions(link).decide(CANDIDATES)] == ["1"]
    assert link.requests == [FaultMatched(CANDIDATES)] * 2


@pytest.mark.parametrize("error", [PeerLost("stopped"), PeerFailed("broken")])
async def test_nothing_fires_without_a_controller(error: Exception) -> None:
    assert await decisions(AnsweringLink(error)).decide(CANDIDATES) == ()
    await decisions(AnsweringLink(error)).hold("1", 0, GROUP)


async def test_nothing_is_requested_without_candidates() -> None:
    link: Any = AnsweringLink()
    assert await decisions(link).decide(()) == ()
    assert link.requests == []


async def test_held_stays_held_by_the_restarted_controller() -> None:
    link: Any = AnsweringLink(PeerLost("killed"), None)
    await decisions(link).hold("1", 0, GROUP)
    assert link.requests == [HELD, HELD._replace(again=True)]

"""Rules are added, counted, awaited, released and removed in one place."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.lab.errors import ApiError, Conflict, NotFound
from minibroker.lab.faults.actions import Error, Hold, Observe
from minibroker.lab.faults.fault_rule import FaultHold, FaultRule
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.register import FaultRegister
from minibroker.lab.schema import InvalidJson
from tests.lab.faults.messages import SERVED

OBSERVE = FaultRule(Observe(), name="seen")
HOLD = FaultRule(Hold(), name="held")
WHAT = FaultHold("processor-0", "FETCH", "client", 7, topic="t")
SEEN = [Candidate("seen", None)]


def made() -> FaultRegister:
    return FaultRegister(SERVED, trio.current_time, trio.sleep)


async def test_rules_keep_their_order_and_are_found_by_id() -> None:
    register = made()
    register.add(HOLD)
    register.add(OBSERVE)
    assert [each.id for each in register.book.active()] == ["held", "seen"]
    assert [each.id for each in register.views()] == ["held", "seen"]
    assert register.view("seen").rule["action"] == "observe"
    assert register.book.find("other") is None
    with pytest.raises(Conflict):
        register.add(HOLD)
    with pytest.raises(InvalidJson):
        register.add(FaultRule(Error("NO_SUCH_ERROR")))


async def test_wait_ends_with_a_hit_or_at_the_timeout(autojump_clock: MockClock) -> None:
    register = made()
    register.add(OBSERVE)
    hits: list[int] = []

    async def wait() -> None:
        hits.append((await register.wait("seen", 1, 60_000)).hits)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert [each.rule_id for each in register.decide(SEEN)] == ["seen"]
    assert hits == [1]
    with pytest.raises(ApiError, match="fired 1 of 2 times within 50 ms"):
        await register.wait("seen", 2, 50)


@pytest.mark.parametrize("by", ["release", "remove", "clear"])
async def test_hold_ends_when_the_rule_is_released_or_removed(by: str) -> None:
    register = made()
    register.add(HOLD)
    (fired,) = register.decide([Candidate("held", None)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(register.hold, fired.rule_id, fired.releases, WHAT)
        await wait_all_tasks_blocked()
        view = register.view("held")
        assert (view.held, view.holds) == (1, (WHAT,))
        if by == "release":
            assert register.release("held") == 1
        elif by == "remove":
            register.remove("held")
        else:
            register.clear()
    await register.hold("removed", 0, WHAT)


async def test_removed_rule_is_unknown_and_does_not_fire() -> None:
    register = made()
    register.add(OBSERVE)
    register.remove("seen")
    assert register.decide(SEEN) == ()
    with pytest.raises(NotFound):
        register.view("seen")
    with pytest.raises(NotFound):
        await register.wait("seen", 1, 0)

from __future__ import annotations

from typing import get_args

import pytest
from trio.testing import MockClock

from minibroker.lab.errors import NotFound
from minibroker.lab.faults.actions import (
    Action,
    Advance,
    Close,
    FailAppend,
    Hold,
    Kill,
    Observe,
    Pause,
    StallAppend,
)
from minibroker.lab.faults.fault_rule import FaultHold, FaultRule
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.places import FaultPoint
from minibroker.lab.proxy.faults import ProxyFaults
from minibroker.lab.schema import InvalidJson
from tests.lab.faults.test_execution import Client


@pytest.mark.parametrize(
    "action",
    [Kill("worker-0"), Pause("worker-0", 1), Advance(1), FailAppend(), StallAppend(1)],
    ids=lambda action: action.name,
)
async def test_broker_s_actions_are_rejected_with_advice(action: Action) -> None:
    with pytest.raises(InvalidJson, match=r"action: \w+ acts on a broker .*`minibroker start`"):
        await ProxyFaults(list).add(FaultRule(action))


async def test_only_the_hold_point_of_an_answered_request_is_accepted() -> None:
    for point in get_args(FaultPoint):
        rule = FaultRule(Hold(point=point))
        if point in ("produce.appended", "share.acquired", "share.acknowledged"):
            assert (await ProxyFaults(list).add(rule)).rule == {
                "action": "hold",
                "point": point,
            }
        else:
            with pytest.raises(InvalidJson, match=f"point: {point} is inside of a broker"):
                await ProxyFaults(list).add(rule)


async def test_namespace_is_rejected() -> None:
    with pytest.raises(InvalidJson, match="namespace: is that of a broker; a proxy has none"):
        await ProxyFaults(list).add(FaultRule(Observe(), topic="t", namespace="ns"))


async def test_principal_is_rejected_with_advice() -> None:
    with pytest.raises(InvalidJson, match="principal: is not known to a proxy"):
        await ProxyFaults(list).add(FaultRule(Observe(), principal="User:a"))


async def test_rules_apply_when_the_call_returns(autojump_clock: MockClock) -> None:
    client = Client()
    faults = ProxyFaults(lambda: [client])
    view = await faults.add(FaultRule(Hold(), name="h", api="Fetch"))
    assert faults.executor.matcher.concerns(b"\0\1")
    assert faults.register.views() == (view,)
    assert faults.register.view("h").rule["api"] == "Fetch"
    (fired,) = await faults.decide([Candidate("h", None)])
    assert faults.register.release("h") == 0
    await faults.hold("h", fired.releases, FaultHold("", "FETCH"))
    assert (await faults.register.wait("h", 1, 10)).hits == 1
    await faults.act("h")
    await faults.remove("h")
    assert not faults.executor.matcher.concerns(b"\0\1")
    with pytest.raises(NotFound):
        faults.register.view("h")
    await faults.add(FaultRule(Close()))
    assert client.done == ["closed by 2"]
    await faults.remove_all()
    assert not faults.executor.matcher.rules

"""The operations on fault rules reach the rules of a broker or a proxy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from trio.testing import MockClock

from minibroker.lab.control.faults import (
    FaultContext,
    FaultRelease,
    FaultWait,
    add_fault,
    get_fault,
    list_faults,
    release_fault,
    remove_fault,
    remove_faults,
    wait_fault,
)
from minibroker.lab.faults.actions import Hold, Observe
from minibroker.lab.faults.fault_rule import FaultRule
from minibroker.lab.proxy.faults import ProxyFaults


async def test_all_operations_reach_the_rules(autojump_clock: MockClock) -> None:
    context = cast("FaultContext", SimpleNamespace(faults=ProxyFaults(list)))
    view = await add_fault(context, FaultRule(Hold(), name="h"))
    assert (await list_faults(context)).faults == (view,)
    assert await get_fault(context, "h") == view
    assert await release_fault(context, "h") == FaultRelease(0)
    assert await wait_fault(context, "h", FaultWait(hits="0", timeout_ms="0")) == view
    await remove_fault(context, "h")
    await add_fault(context, FaultRule(Observe()))
    await remove_faults(context)
    assert (await list_faults(context)).faults == ()

"""The clock is changed for all processes."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from minibroker.broker.process.messages import (
    ClockAdvanced,
)
from minibroker.lab.control.clock import ClockChange, get_clock, turn_clock
from minibroker.lab.errors import ApiError
from minibroker.lab.schema import InvalidJson, parse
from minibroker.runtime.clock import ADVANCE_MS_MAX, RATE_MAX, RATE_MIN
from tests.lab.control.running_broker import At


async def test_clock_advance_is_sent_to_all_processes(at: At, autojump_clock: MockClock) -> None:
    before = await get_clock(at.broker)
    after = await turn_clock(at.broker, ClockChange(advance_ms=5000))
    assert after.now - before.now == pytest.approx(5)
    woken = sorted(name for name, request in at.roles.asked if request == ClockAdvanced())
    assert woken == ["acceptor", "processor-0", "worker-0", "worker-1"]
    frozen = await turn_clock(at.broker, ClockChange(freeze=True, rate=2.0))
    assert (frozen.frozen, frozen.rate) == (True, 2.0)
    await turn_clock(at.broker, ClockChange(freeze=False))


@pytest.mark.parametrize("change", [{"advance_ms": -1}, {"rate": 0.0}])
async def test_invalid_clock_change_is_rejected(at: At, change: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        await turn_clock(at.broker, ClockChange(**change))
    assert refused.value.code == "INVALID_CLOCK"


@pytest.mark.parametrize("change", [{"advance_ms": ADVANCE_MS_MAX}, {"rate": RATE_MIN}])
def test_clock_change_at_its_bounds_is_accepted(change: dict[str, float]) -> None:
    assert parse(ClockChange, change) == ClockChange(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"advance_ms": ADVANCE_MS_MAX + 1}, {"rate": RATE_MAX + 1}])
def test_clock_change_beyond_its_bounds_is_rejected(change: dict[str, float]) -> None:
    with pytest.raises(InvalidJson, match="must be from"):
        parse(ClockChange, change)

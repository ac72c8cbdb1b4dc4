"""Without rules nothing is held."""

from __future__ import annotations

from minibroker.broker.groups.hooks import NO_HOLD_POINTS, REBALANCE


def test_nothing_is_held_without_rules() -> None:
    continued: list[str] = []
    assert not NO_HOLD_POINTS.may_hold(REBALANCE, "g")
    NO_HOLD_POINTS.hold(REBALANCE, "g", lambda: continued.append("g"))
    assert continued == ["g"]

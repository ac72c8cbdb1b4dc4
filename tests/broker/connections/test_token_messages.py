"""Where a key's tokens are kept, and which limit a key has."""

from __future__ import annotations

from minibroker.broker.connections.token_messages import TOTAL, DropLimits, home_of


def test_home_of_key_is_constant() -> None:
    assert home_of(TOTAL, 4) == 0
    found = [home_of(f"10.0.0.{number}", 4) for number in range(1, 9)]
    assert found == [3, 1, 3, 0, 2, 0, 2, 3]


def test_keys_are_spread_evenly_over_homes() -> None:
    found = [home_of(f"10.1.{a}.{b}", 5) for a in range(10) for b in range(100)]
    assert all(150 < found.count(home) < 250 for home in range(5))


def test_override_precedes_the_default_limit() -> None:
    limits = DropLimits(9, 3, {"10.0.0.1": 5})
    assert [limits.of(key) for key in (TOTAL, "10.0.0.1", "10.0.0.2")] == [9, 5, 3]
    alone = DropLimits(overrides={"10.0.0.1": 5})
    assert [alone.of(key) for key in (TOTAL, "10.0.0.1", "10.0.0.2")] == [None, 5, None]

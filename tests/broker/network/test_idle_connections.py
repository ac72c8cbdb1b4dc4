"""The connections that have been idle for the longest time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.network.idle_connections import IdleConnections


def test_names_are_ordered_by_last_use() -> None:
    idle: IdleConnections[str] = IdleConnections()
    for now, name in enumerate(["a", "b", "c", "a"]):
        idle.use(name, now)
    assert idle.oldest_use() == 1
    assert idle.idle_since(2) == ["b", "c"]
    assert idle.idle_since(0.9) == []
    assert idle.last_use("a") == 3
    idle.forget("b")
    idle.forget("b")
    assert idle.last_use("b") is None
    assert idle.idle_since(9) == ["c", "a"]


def test_idle_since_without_names_is_empty() -> None:
    idle: IdleConnections[str] = IdleConnections()
    assert idle.oldest_use() is None
    assert idle.idle_since(9) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3))), st.integers(0, 100))
def test_prefix_lookup_matches_linear_search(uses: list[tuple[int, int]], before: int) -> None:
    idle: IdleConnections[int] = IdleConnections()
    last: dict[int, int] = {}
    now = 0
    for name, later in uses:
        now += later
        idle.use(name, now)
        last[name] = now
    expected = {name for name, used in last.items() if used <= before}
    assert set(idle.idle_since(before)) == expected
    assert idle.oldest_use() == min(last.values(), default=None)


def test_in_order_yields_names_by_last_use() -> None:
    order: IdleConnections[str] = IdleConnections()
    for number, name in enumerate(["a", "b", "a"]):
        order.use(name, float(number))
    assert list(order.in_order()) == [("b", 1.0), ("a", 2.0)]

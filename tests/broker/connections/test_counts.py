"""Counts of connections: what each limit admits, rejects and closes."""

from __future__ import annotations

from collections import Counter
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.connections.counts import (
    ConnectionCountLimits,
    ConnectionCounts,
    ExceededCount,
    LastUse,
)

INTERNAL, EXTERNAL = "INTERNAL", "EXTERNAL"
IP = "10.0.0.1"


class Door:
    """Lets connections in as the acceptor does, but for the waiting."""

    def __init__(self, **limits: object) -> None:
        self.counts = ConnectionCounts(ConnectionCountLimits(**limits))  # type: ignore[arg-type]
        self._numbers = count(1)
        self.open: list[int] = []

    def knock(self, ip: str = IP, listener: str = EXTERNAL, processor: int = 0) -> str | None:
        """None if admitted, ``waits``, or a refusal."""
        number = next(self._numbers)
        refusal = self.counts.arrive(number, listener, ip)
        if refusal is not None:
            return refusal.name
        if not self.counts.has_slot(listener):
            self.counts.remove(number)
            return "waits"
        refusal = self.counts.admit(number)
        if refusal is not None:
            return refusal.name
        self.counts.set_processor(number, processor)
        self.open.append(number)
        return None

    def close(self, connections: int = 1) -> None:
        for _ in range(connections):
            assert self.counts.remove(self.open.pop())


def test_without_limits_every_connection_is_admitted() -> None:
    door = Door()
    assert [door.knock() for _ in range(10_000)] == [None] * 10_000
    assert door.counts.by_listener() == {EXTERNAL: 10_000}


def test_listener_limit_and_broker_limit_both_apply() -> None:
    door = Door(total=800, listeners={"A": 200, "B": 200, EXTERNAL: 500})
    for listener, most in (("A", 200), ("B", 200), (EXTERNAL, 400)):
        assert [door.knock(listener=listener) for _ in range(most)] == [None] * most
        assert door.knock(listener=listener) == "waits"
    door.close()
    assert door.knock(listener="A") == "waits"
    assert door.knock(listener=EXTERNAL) is None


def test_inter_broker_listener_is_limited_by_its_own_limit_only() -> None:
    door = Door(total=3, listeners={EXTERNAL: 3, INTERNAL: 2}, protected=INTERNAL)
    assert [door.knock() for _ in range(4)] == [None, None, None, "waits"]
    assert [door.knock(listener=INTERNAL) for _ in range(3)] == [None, None, "waits"]
    assert door.counts.excess() == 2


def test_inter_broker_listener_without_own_limit_is_capped_at_broker_limit() -> None:
    door = Door(total=1, protected=INTERNAL)
    assert [door.knock(listener=INTERNAL) for _ in range(2)] == [None, "waits"]
    assert door.counts.select_excess([LastUse(0, 1)]) == {}


def test_connections_beyond_per_ip_limit_are_rejected() -> None:
    door = Door(per_ip=17)
    assert [door.knock() for _ in range(19)] == [None] * 17 + ["PER_IP"] * 2
    assert door.counts.by_ip() == {IP: 17}  # a rejected connection is not counted
    assert door.knock("10.0.0.2") is None
    door.close()  # the other address's
    door.close(2)
    assert door.counts.by_ip() == {IP: 15}
    assert [door.knock() for _ in range(3)] == [None, None, "PER_IP"]


def test_per_ip_limit_zero_admits_only_overrides() -> None:
    door = Door(per_ip=0, per_ip_overrides={IP: 5})
    assert [door.knock() for _ in range(6)] == [None] * 5 + ["PER_IP"]
    assert door.knock("10.0.0.2") == "PER_IP"


def test_redpanda_total_limit_counts_all_addresses() -> None:
    door = Door(drop_total=10)
    assert [door.knock() for _ in range(11)] == [None] * 10 + ["DROPPED"]
    assert door.knock("10.0.0.2") == "DROPPED"
    door.close()
    assert door.knock("10.0.0.2") is None


def test_redpanda_total_and_per_ip_limits_both_apply() -> None:
    door = Door(drop_total=4, drop_per_ip=2)
    for ip in ("a", "b"):
        assert [door.knock(ip) for _ in range(3)][:2] == [None, None]
    assert door.knock("c") == "DROPPED"
    door.close(2)
    assert door.knock("c") is None


def test_redpanda_override_replaces_per_ip_limit() -> None:
    door = Door(drop_overrides={"a": 1, "b": 0})
    assert [door.knock("a") for _ in range(2)] == [None, "DROPPED_PER_IP"]
    assert door.knock("b") == "DROPPED_PER_IP"
    assert [door.knock("c") for _ in range(5)] == [None] * 5
    door.close(6)
    assert door.knock("a") is None  # nothing leaked


def test_redpanda_limits_count_waiting_connections() -> None:
    counts = ConnectionCounts(ConnectionCountLimits(total=1, drop_total=2, drop_per_ip=2))
    assert counts.arrive(1, EXTERNAL, IP) is None
    assert counts.admit(1) is None
    assert counts.arrive(2, EXTERNAL, IP) is None
    assert not counts.has_slot(EXTERNAL)
    assert counts.arrive(3, EXTERNAL, IP) is ExceededCount.DROPPED
    assert (counts.total, counts.arrived) == (1, 2)


def test_excess_connections_are_closed_least_recently_used_first() -> None:
    door = Door()
    for processor in (0, 1, 0, 1, 0):
        door.knock(processor=processor)
    door.counts.limits = ConnectionCountLimits(total=3)
    offers = [LastUse(used, number) for used, number in ((5, 1), (1, 2), (4, 3), (3, 4), (2, 5))]
    assert door.counts.select_excess(offers) == {1: [2], 0: [5]}
    assert door.counts.excess() == 0
    assert door.counts.select_excess(offers) == {}  # they are on their way
    assert door.counts.remove(2)
    assert door.counts.remove(5)
    assert door.counts.total == 3
    assert door.counts.excess() == 0


def test_connection_that_closes_itself_reduces_the_excess() -> None:
    door = Door()
    for _ in range(3):
        door.knock()
    door.counts.limits = ConnectionCountLimits(total=2)
    door.close()  # number 3
    assert door.counts.select_excess([LastUse(0, 1), LastUse(1, 2)]) == {}


def test_duplicate_close_is_counted_once() -> None:
    door = Door()
    door.knock()
    assert door.counts.remove(1)
    assert not door.counts.remove(1)
    assert not door.counts.remove(99)
    assert (door.counts.total, door.counts.by_ip(), door.counts.by_listener()) == (0, {}, {})


def test_connections_of_dead_processor_are_removed() -> None:
    door = Door()
    for processor in (0, 1, 0):
        door.knock(processor=processor)
    door.counts.processor_died(0)
    assert door.counts.total == 1
    assert not door.counts.remove(1)


def test_reported_connections_are_counted_despite_limits() -> None:
    counts = ConnectionCounts(ConnectionCountLimits(total=1, per_ip=1))
    for number in (1, 2, 3):
        counts.restore(number, EXTERNAL, IP, 0)
    assert (counts.total, counts.by_ip()) == (3, {IP: 3})
    assert counts.select_excess([LastUse(number, number) for number in (1, 2, 3)]) == {0: [1, 2]}


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 4))
@pytest.mark.parametrize("protected", [None, INTERNAL])
def test_random_operations_never_exceed_limits_and_keep_counts(
    protected: str | None, seed: int, total: int, per_ip: int
) -> None:
    random = Random(seed)
    limits = ConnectionCountLimits(
        total, {INTERNAL: 5}, per_ip, {"b": 1}, protected, 14, None, {"c": 2}
    )
    counts, numbers = ConnectionCounts(limits), count(1)
    present: dict[int, tuple[str, str, int]] = {}
    for _ in range(80):
        if present and random.random() < 0.4:
            number = random.choice(list(present))
            assert counts.remove(number)
            del present[number]
            continue
        listener, ip = random.choice([INTERNAL, EXTERNAL]), random.choice("abcdef")
        number = next(numbers)
        if counts.arrive(number, listener, ip) is None:
            if not counts.has_slot(listener):
                assert counts.remove(number)
            elif counts.admit(number) is None:
                counts.set_processor(number, random.randrange(3))
                present[number] = (listener, ip, 0)
        excess = counts.excess()
        leaving = counts.select_excess([LastUse(random.random(), each) for each in present])
        for gone in [number for group in leaving.values() for number in group]:
            assert present.pop(gone)[0] != protected
            assert counts.remove(gone)
            excess -= 1
        assert excess >= 0
        _check(counts, present, limits)
    for number in present:
        assert counts.remove(number)
    assert (counts.total, counts.arrived, counts.by_ip()) == (0, 0, {})


def _check(
    counts: ConnectionCounts,
    present: dict[int, tuple[str, str, int]],
    limits: ConnectionCountLimits,
) -> None:
    assert counts.total == len(present) == counts.arrived <= 14
    assert counts.by_listener() == Counter(listener for listener, _, _ in present.values())
    assert counts.by_ip() == Counter(ip for _, ip, _ in present.values())
    assert all(most <= limits.of_ip(ip) for ip, most in counts.by_ip().items())
    assert counts.by_ip().get("c", 0) <= 2
    assert counts.by_listener().get(INTERNAL, 0) <= 5
    unprotected = counts.total - counts.by_listener().get(limits.protected or "", 0)
    assert unprotected <= limits.total

"""Connections are counted once, rates are kept exactly, and one address has one spelling."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.connections import limits as module
from minibroker.broker.connections.limits import (
    IP_EXPIRES_MS,
    SLOTS,
    ConnectionCountLimits,
    ConnectionCounts,
    ConnectionRateLimits,
    ConnectionRates,
    ExceededCount,
    LastUse,
    Slots,
    client_ip,
)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::ffff:7f00:1", "127.0.0.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_equivalent_address_spellings_are_one_address(host: str, expected: str) -> None:
    assert client_ip(host) == expected


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


def made(samples: int = 2, **limits: object) -> ConnectionRates:
    rates = ConnectionRates([INTERNAL, EXTERNAL], samples, 1000)
    rates.limits = ConnectionRateLimits(**limits)  # type: ignore[arg-type]
    return rates


def test_without_limits_no_connection_waits() -> None:
    rates = made()
    assert {rates.record(EXTERNAL, 0) for _ in range(5000)} == {0}
    assert rates.record_ip(EXTERNAL, IP, 0) == 0
    figures = rates.figures(0, 100)
    assert figures.broker == figures.listeners[EXTERNAL] == 5000
    assert (figures.ips, figures.throttle_ms, figures.ip_throttle_ms) == ({}, {}, {})


def test_longer_of_broker_and_ip_delay_applies() -> None:
    rates = made(total=10, listeners={EXTERNAL: 8})
    delays = [rates.record(EXTERNAL, 0) for _ in range(12)]
    # Over a window of one second: 9 are 1/8 of a second too many for the listener, and so on.
    assert delays == [0] * 8 + [125, 250, 375, 500]
    assert rates.record(INTERNAL, 0) == 300  # 13 for the broker, 1 for the listener
    assert rates.figures(0, 100).throttle_ms == {EXTERNAL: 312.5, INTERNAL: 300}


def test_delay_is_capped_at_one_window() -> None:
    rates = made(total=1)
    assert [rates.record(EXTERNAL, 0) for _ in range(4)] == [0, 1000, 1000, 1000]


def test_steady_connections_are_admitted_at_the_limit() -> None:
    # 40 connections per second are offered; each waits as required before the next one.
    rates, now = made(listeners={EXTERNAL: 30}), 0.0
    for _ in range(600):
        now += max(25, rates.record(EXTERNAL, int(now)))
    assert 600 / (now / 1000) == pytest.approx(30, abs=7)


def test_inter_broker_connections_are_not_recorded_in_broker_rate() -> None:
    rates = made(total=5, protected=INTERNAL)
    assert [rates.record(INTERNAL, 0) for _ in range(6)] == [0] * 5 + [200]  # its own limit
    assert rates.record(EXTERNAL, 0) == 0
    assert rates.figures(0, 100).broker == 1


def test_inter_broker_connections_are_not_delayed_by_broker_rate() -> None:
    rates = made(total=5, listeners={INTERNAL: 100}, protected=INTERNAL)
    assert [rates.record(EXTERNAL, 0) for _ in range(7)][5:] == [200, 400]
    assert rates.record(INTERNAL, 0) == 0


def test_admitted_address_is_recorded_in_all_rates() -> None:
    rates = made(11, ips={IP: 5})
    for _ in range(50):
        assert rates.record(EXTERNAL, 0) == 0
        assert rates.record_ip(EXTERNAL, IP, 0) == 0
    assert rates.figures(0, 100).ips == {IP: 5}


def test_rate_limited_address_is_delayed_and_not_recorded() -> None:
    rates = made(11, ips={IP: 5})
    for _ in range(50):
        rates.record(EXTERNAL, 0)
        rates.record_ip(EXTERNAL, IP, 0)
    for _ in range(3):
        rates.record(EXTERNAL, 0)
        assert rates.record_ip(EXTERNAL, IP, 0) == 200
    figures = rates.figures(0, 100)
    assert figures.broker == figures.listeners[EXTERNAL] == figures.ips[IP] == 5
    assert figures.ip_throttle_ms == {EXTERNAL: 200}


def test_delayed_connection_is_recorded_when_admitted() -> None:
    rates = made(11, ips={IP: 5})
    for _ in range(50):
        rates.record(EXTERNAL, 0)
        rates.record_ip(EXTERNAL, IP, 0)
    assert not rates.admit_delayed(EXTERNAL, IP, 199)
    assert [rates.admit_delayed(EXTERNAL, IP, 200) for _ in range(2)] == [True, False]
    figures = rates.figures(200, 100)
    assert figures.broker == figures.listeners[EXTERNAL] == figures.ips[IP] == 5


def test_repeated_decisions_leave_the_rate_as_taken_ones_do() -> None:
    taken, repeated = made(11, ip_default=5), made(11, ip_default=5)
    for ms in range(0, 30_000, 100):
        admitted = taken.record_ip(EXTERNAL, IP, ms) == 0
        repeated.repeat_ip_decision(IP, ms, admitted=admitted)
        assert taken.of_ip(IP, ms) == repeated.of_ip(IP, ms)


def test_address_with_zero_rate_is_never_admitted() -> None:
    rates = made(ip_default=5, ips={IP: 0})
    assert rates.record_ip(EXTERNAL, IP, 0) == 1000
    assert not rates.admit_delayed(EXTERNAL, IP, 1000)
    assert rates.record_ip(EXTERNAL, "10.0.0.2", 0) == 0


def test_ip_limits_change_while_rates_are_measured() -> None:
    rates = made(11, ip_default=50)
    for _ in range(100):
        assert rates.record_ip(EXTERNAL, IP, 0) == 0
    rates.limits = ConnectionRateLimits(ip_default=50, ips={IP: 5})
    assert rates.record_ip(EXTERNAL, IP, 0) == 1000  # its history holds
    rates.limits = ConnectionRateLimits(ip_default=50)
    assert rates.record_ip(EXTERNAL, IP, 0) == 0
    rates.limits = ConnectionRateLimits()
    assert rates.record_ip(EXTERNAL, IP, 0) == 0
    assert rates.figures(0, 100).ips[IP] == pytest.approx(10.1)


def test_idle_address_expires_after_an_hour() -> None:
    rates = made(ip_default=1)
    rates.record_ip(EXTERNAL, IP, 0)
    assert IP in rates.figures(IP_EXPIRES_MS, 100).ips
    assert rates.figures(IP_EXPIRES_MS + 1, 100).ips == {}


def test_most_recent_addresses_are_listed_first() -> None:
    rates = made(ip_default=9)
    for number in (1, 2, 3, 1):
        rates.record_ip(EXTERNAL, str(number), 0)
    assert rates.figures(0, 2).ips == {"1": 2, "3": 1}


def test_memory_of_active_address_is_below_one_kilobyte() -> None:
    rates = made(11, ip_default=50)
    tracemalloc.start()
    try:
        for second in range(12):
            for number in range(1000):
                rates.record_ip(EXTERNAL, f"10.0.{number}", second * 1000)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 1000 < 1000


def test_tracked_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IPS_MAX", 3)
    rates = made(ip_default=1)
    for number in (1, 2, 3, 1, 4):
        rates.record_ip(EXTERNAL, str(number), number)
    assert set(rates.figures(5, 100).ips) == {"3", "1", "4"}


def joined(processors: int, slots: int = SLOTS) -> Slots:
    made = Slots(processors, slots)
    for processor in range(processors):
        made.joined(processor)
    return made


def test_processor_queue_has_20_slots_as_in_kafka() -> None:
    one = joined(1)
    assert [one.take() for _ in range(21)] == [0] * 20 + [None]


def test_round_robin_skips_full_and_absent_processors() -> None:
    slots = joined(3, 2)
    assert [slots.take() for _ in range(3)] == [0, 1, 2]
    slots.left(1)
    assert [slots.take() for _ in range(3)] == [0, 2, None]
    slots.freed(2)
    assert slots.take() == 2
    slots.joined(1)
    assert [slots.take() for _ in range(3)] == [1, 1, None]


def test_no_processors_means_no_slots() -> None:
    assert Slots(2).take() is None


def test_turn_is_lost_while_full() -> None:
    slots = joined(2, 1)
    assert [slots.take(), slots.take()] == [0, 1]
    slots.freed(1)
    assert slots.take() == 1
    slots.freed(0)
    slots.freed(1)
    assert slots.take() == 0


def test_with_one_slot_each_waits_for_the_one_before() -> None:
    slots = joined(1, 1)
    assert slots.take() == 0
    for _ in range(4):
        assert slots.take() is None
        slots.freed(0)
        assert slots.take() == 0


def test_several_are_freed_at_a_time_but_never_more_than_are_in_use() -> None:
    slots = joined(1, 3)
    assert [slots.take() for _ in range(4)] == [0, 0, 0, None]
    slots.freed(0, 2)
    with pytest.raises(ValueError, match="was not in use"):
        slots.freed(0, 2)
    assert [slots.take() for _ in range(3)] == [0, 0, None]


def test_use_is_shown() -> None:
    slots = joined(1, 5)
    assert (slots.used(0), slots.peak(0)) == (0, 0)
    for _ in range(3):
        slots.take()
    slots.freed(0)
    assert (slots.used(0), slots.peak(0)) == (2, 3)
    slots.left(0)
    assert (slots.used(0), slots.peak(0)) == (0, 3)


@pytest.mark.parametrize("there", [True, False])
def test_freeing_untaken_slot_is_an_error(there: bool) -> None:
    slots = joined(1) if there else Slots(1)
    with pytest.raises(ValueError, match="processor 0 freed a slot"):
        slots.freed(0)


@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(0, 20), max_size=60))
def test_no_processor_ever_holds_more_than_its_slots(
    processors: int, count: int, steps: list[int]
) -> None:
    slots = joined(processors, count)
    held = [0] * processors
    for step in steps:
        if step >= processors:
            taken = slots.take()
            assert (taken is None) == all(used == count for used in held)
            if taken is not None:
                held[taken] += 1
        elif held[step]:
            slots.freed(step)
            held[step] -= 1
        assert [slots.used(processor) for processor in range(processors)] == held
        assert max(held) <= count

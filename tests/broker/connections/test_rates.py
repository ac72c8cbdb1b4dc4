"""Rates of new connections: how long each waits, and what is recorded."""

from __future__ import annotations

import tracemalloc

import pytest

from minibroker.broker.connections import rates as module
from minibroker.broker.connections.rates import IP_EXPIRES_MS, ConnectionRateLimits, ConnectionRates

INTERNAL, EXTERNAL = "INTERNAL", "EXTERNAL"
IP = "10.0.0.1"


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

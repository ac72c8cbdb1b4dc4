"""Figures of connections by listener and address, and the share of blocked time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.admission import connection_figures
from minibroker.broker.admission.connection_figures import (
    SHARE_OVER_S,
    AddressFigures,
    BlockedTime,
    ConnectionFigures,
    largest,
    read_connection_figures,
)
from minibroker.broker.connections.limits import (
    ConnectionCountLimits,
    ConnectionCounts,
    ConnectionRateLimits,
    ConnectionRates,
)

LISTENERS = ["A", "B"]
LIMITS = ConnectionCountLimits(
    per_ip=9, per_ip_overrides={"10.0.0.2": 5}, drop_per_ip=7, drop_overrides={"10.0.0.3": 2}
)


class Door:
    """Counts and rates of a broker."""

    def __init__(self) -> None:
        self.counts = ConnectionCounts(LIMITS)
        self.rates = ConnectionRates(LISTENERS, 11, 1000)
        self.rates.limits = ConnectionRateLimits(ips={"10.0.0.2": 4.0})
        self.waits = BlockedTime(LISTENERS)
        self.numbers = 0

    def come(self, ip: str, listener: str = "A") -> None:
        self.numbers += 1
        assert self.counts.arrive(self.numbers, listener, ip) is None
        assert self.counts.admit(self.numbers) is None
        self.rates.record(listener, 1000)
        self.rates.record_ip(listener, ip, 1000)

    def figures(self) -> ConnectionFigures:
        return read_connection_figures(self.counts, self.rates, self.waits, 1.0, 1000)


def test_everything_is_counted_with_its_limit_and_its_rate() -> None:
    door = Door()
    for ip in ("10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"):
        door.come(ip)
    door.come("10.0.0.2", "B")
    door.waits.begin("B", 1.0, blocks=True)
    door.waits.start_delay("B")
    figures = door.figures()
    assert figures.total == 5
    assert figures.rate == pytest.approx(0.5)
    assert [(each.listener, each.connections) for each in figures.listeners] == [("A", 4), ("B", 1)]
    assert figures.listeners[0].rate == pytest.approx(0.4)
    assert [(each.waiting, each.held) for each in figures.listeners] == [(0, 0), (1, 1)]
    assert figures.addresses == (
        AddressFigures("10.0.0.2", 3, 5, 0.3, 4.0),
        AddressFigures("10.0.0.1", 1, 7, None, None),
        AddressFigures("10.0.0.3", 1, 2, None, None),
    )
    assert figures.addresses_total == 3


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 4)), st.integers(1, 9))
def test_top_n_matches_full_sort(counts: dict[str, int], most: int) -> None:
    found = largest(counts, most)
    assert len(set(found)) == len(found)
    assert [counts[name] for name in found] == sorted(counts.values(), reverse=True)[:most]


def test_no_limits_are_shown_if_none_are_set() -> None:
    door = Door()
    door.counts.limits = ConnectionCountLimits()
    door.come("10.0.0.1")
    assert door.figures().addresses == (AddressFigures("10.0.0.1", 1, None, None, None),)


def test_rate_limited_addresses_are_shown_after_connected_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_figures, "ADDRESSES_SHOWN_MAX", 3)
    door = Door()
    for number in (5, 6, 6, 7, 7, 8):
        door.come(f"10.0.0.{number}")
    door.rates.record_ip("A", "10.0.0.2", 1000)
    figures = door.figures()
    assert [each.ip for each in figures.addresses][:2] == ["10.0.0.6", "10.0.0.7"]
    assert (len(figures.addresses), figures.addresses_total) == (3, 4)
    monkeypatch.setattr(connection_figures, "ADDRESSES_SHOWN_MAX", 9)
    last = door.figures().addresses[-1]
    assert (last.ip, last.connections) == ("10.0.0.2", 0)
    assert last.rate == pytest.approx(0.1)


A, B = "A", "B"


@pytest.fixture
def waits() -> BlockedTime:
    return BlockedTime([A, B])


def test_waiting_and_delayed_connections_are_counted_by_listener(waits: BlockedTime) -> None:
    waits.begin(A, 1.0, blocks=True)
    waits.begin(A, 1.0, blocks=False)
    waits.start_delay(A)
    waits.start_delay(B)
    assert (waits.waiting(A), waits.held(A), waits.waiting(B), waits.held(B)) == (2, 1, 0, 1)
    assert waits.all_delayed() == 2
    waits.end(A, 2.0, blocks=True)
    waits.end_delay(A)
    assert (waits.waiting(A), waits.held(A), waits.all_delayed()) == (1, 0, 1)


def test_share_is_that_of_the_last_seconds(waits: BlockedTime) -> None:
    waits.begin(A, 100.0, blocks=True)
    waits.end(A, 102.5, blocks=True)
    assert waits.blocked_share(A, 110.0 - 2**-20) == pytest.approx(0.25, abs=1e-5)
    assert waits.blocked_share(A, 111.5) == pytest.approx(0.5 / 9.5)
    assert waits.blocked_share(A, 112.0) == 0
    assert waits.blocked_share(B, 112.0) == 0


def test_current_block_counts_up_to_now(waits: BlockedTime) -> None:
    waits.begin(A, 100.25, blocks=True)
    assert waits.blocked_share(A, 101.0) == pytest.approx(0.75 / 9)
    assert waits.blocked_share(A, 5000.0) == 1
    waits.end(A, 5000.0, blocks=True)
    assert waits.blocked_share(A, 5000.0) == 1
    assert waits.blocked_share(A, 5004.5) == pytest.approx(5 / 9.5)


def test_two_concurrent_waits_block_once(waits: BlockedTime) -> None:
    waits.begin(A, 100.0, blocks=True)
    waits.begin(A, 101.0, blocks=True)
    waits.end(A, 102.0, blocks=True)
    waits.end(A, 103.0, blocks=True)
    assert waits.blocked_share(A, 109.5) == pytest.approx(3 / 9.5)


def test_wait_that_blocks_no_other_connection_is_not_blocked_time(waits: BlockedTime) -> None:
    waits.begin(A, 100.0, blocks=False)
    assert waits.blocked_share(A, 105.0) == 0


def test_number_of_kept_entries_is_bounded(waits: BlockedTime) -> None:
    for step in range(1000):
        waits.begin(A, step / 2, blocks=True)
        waits.end(A, step / 2 + 0.25, blocks=True)
    assert len(waits._blocked[A]._by_second) <= SHARE_OVER_S
    assert waits.blocked_share(A, 499.75) == pytest.approx(0.5, abs=0.02)

"""Recent connection events are bounded, and rejections are kept separately."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.admission import connection_events
from minibroker.broker.admission.connection_events import (
    EVENTS_MAX,
    REJECTIONS_MAX,
    SHARE_OVER_S,
    AddressFigures,
    BlockedTime,
    ConnectionEvent,
    ConnectionEventLog,
    ConnectionEvents,
    ConnectionFigures,
    ExceededLimit,
    largest,
    read_connection_figures,
)
from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.connections.limits import (
    ConnectionCountLimits,
    ConnectionCounts,
    ConnectionRateLimits,
    ConnectionRates,
)


def who(number: int) -> AcceptedConnection:
    return AcceptedConnection("PLAINTEXT", ("127.0.0.1", 9092), ("10.0.0.1", 51234), number)


@pytest.fixture
def kept() -> ConnectionEvents:
    return ConnectionEvents(3, count(100.0).__next__)


def test_events_are_reported_in_order_with_their_times(kept: ConnectionEvents) -> None:
    kept.note("accepted", who(7))
    kept.note("handed", who(7), processor=1)
    recent = kept.recent()
    assert (recent.incarnation, recent.events_total, recent.rejections_total) == (3, 2, 0)
    assert recent.events == (
        ConnectionEvent(7, 100.0, "accepted", "PLAINTEXT", "10.0.0.1", 51234, None, None),
        ConnectionEvent(7, 101.0, "handed", "PLAINTEXT", "10.0.0.1", 51234, 1, None),
    )


def test_many_accepted_connections_keep_the_rejections(kept: ConnectionEvents) -> None:
    limit = ExceededLimit("max.connections.per.ip", 2)
    kept.reject(who(1), "max_connections_per_ip", limit)
    for number in range(connection_events.EVENTS_MAX):
        kept.note("accepted", who(number))
    recent = kept.recent()
    assert {each.kind for each in recent.events} == {"accepted"}
    assert (recent.events_total, recent.rejections_total) == (connection_events.EVENTS_MAX + 1, 1)
    (refusal,) = recent.rejections
    assert (refusal.event.at, refusal.event.kind) == (100.0, "refused")
    assert (refusal.event.reason, refusal.limit) == ("max_connections_per_ip", limit)


def test_rejection_has_the_time_of_its_decision(kept: ConnectionEvents) -> None:
    kept.reject(who(1), "ip_connection_creation_rate", at=98.5)
    assert kept.recent().events[0].at == 98.5


def test_failed_authentication_is_kept_with_its_text(kept: ConnectionEvents) -> None:
    kept.fail_authentication(who(1), "tls_failed", "w" * 1000, 0)
    (refusal,) = kept.recent().rejections
    assert (refusal.event.kind, refusal.limit) == ("closed", None)
    assert refusal.why == "w" * connection_events.WHY_MAX


def test_number_of_kept_entries_is_bounded(kept: ConnectionEvents) -> None:
    for number in range(connection_events.EVENTS_MAX + 5):
        kept.reject(who(number), "limit")
    recent = kept.recent()
    assert len(recent.events) == connection_events.EVENTS_MAX
    assert len(recent.rejections) == connection_events.REJECTIONS_MAX
    assert recent.rejections[-1].event == recent.events[-1]
    assert recent.events_total == recent.rejections_total == connection_events.EVENTS_MAX + 5


LATER = 1e9


class Process:
    """One that notes, at times that the test gives."""

    def __init__(self, life: int = 1) -> None:
        self.now = 0.0
        self.kept = ConnectionEvents(life, lambda: self.now)

    def note(self, number: int, at: float, *, refused: bool = False) -> None:
        self.now = at
        who = AcceptedConnection("A", ("127.0.0.1", 9092), ("10.0.0.1", 1000 + number), number)
        if refused:
            self.kept.reject(who, "limit")
        else:
            self.kept.note("accepted", who)


def numbers(chronicle: ConnectionEventLog) -> list[int]:
    return [happening.number for _, happening in chronicle.events]


def take(chronicle: ConnectionEventLog, until: float = LATER, **reports: Process) -> None:
    chronicle.take({name: process.kept.recent() for name, process in reports.items()}, until)


def test_events_of_processes_are_merged_by_time() -> None:
    a, b, chronicle = Process(), Process(), ConnectionEventLog(1)
    for number, at in ((1, 1.0), (3, 3.0), (4, 3.0)):
        a.note(number, at)
    b.note(2, 2.0, refused=True)
    b.note(5, 3.0, refused=True)
    take(chronicle, a=a, b=b)
    assert numbers(chronicle) == [1, 2, 3, 4, 5]
    assert [each.event.number for each in chronicle.rejections] == [2, 5]


def test_each_event_is_ingested_once_with_its_sequence() -> None:
    a, chronicle = Process(), ConnectionEventLog(1)
    a.note(1, 1.0)
    take(chronicle, a=a)
    take(chronicle, a=a)
    a.note(2, 1.0, refused=True)
    take(chronicle, a=a)
    take(chronicle, a=a)
    assert numbers(chronicle) == [1, 2]
    first, second = (seq for seq, _ in chronicle.events)
    assert second == first + 1
    assert len(chronicle.rejections) == 1


def test_events_after_query_time_are_deferred_to_next_query() -> None:
    a, b, chronicle = Process(), Process(), ConnectionEventLog(1)
    b.note(2, 2.0, refused=True)
    take(chronicle, a=a, b=b, until=1.5)
    assert numbers(chronicle) == []
    assert not chronicle.rejections
    a.note(1, 1.9)
    take(chronicle, a=a, b=b, until=2.0)
    assert numbers(chronicle) == [1, 2]
    assert len(chronicle.rejections) == 1


def test_restarted_process_keeps_its_earlier_events() -> None:
    chronicle, a = ConnectionEventLog(1), Process()
    a.note(1, 1.0)
    take(chronicle, a=a)
    reborn = Process(life=2)
    reborn.note(2, 2.0)
    take(chronicle, a=reborn)
    take(chronicle)
    assert numbers(chronicle) == [1, 2]


def test_late_report_adds_no_duplicate_events() -> None:
    a, chronicle = Process(), ConnectionEventLog(1)
    a.note(1, 1.0, refused=True)
    early = a.kept.recent()
    a.note(2, 2.0, refused=True)
    take(chronicle, a=a)
    chronicle.take({"a": early}, LATER)
    take(chronicle, a=a)
    assert numbers(chronicle) == [1, 2]
    assert len(chronicle.rejections) == 2
    reborn = Process(life=2)
    reborn.note(3, 3.0)
    take(chronicle, a=reborn)
    chronicle.take({"a": early}, LATER)
    take(chronicle, a=reborn)
    assert numbers(chronicle) == [1, 2, 3]


def test_restarted_controller_uses_higher_event_numbers() -> None:
    before, after, a = ConnectionEventLog(1), ConnectionEventLog(2), Process()
    for number in range(EVENTS_MAX):
        a.note(number, 1.0)
    take(before, a=a)
    take(after, a=a)
    assert before.events[-1][0] < after.events[0][0]


def test_number_of_merged_entries_is_bounded() -> None:
    a, b, chronicle = Process(), Process(), ConnectionEventLog(1)
    for number in range(EVENTS_MAX):
        a.note(number, 1.0, refused=True)
        b.note(number, 2.0, refused=True)
    take(chronicle, a=a, b=b)
    assert len(chronicle.events) == EVENTS_MAX
    assert len(chronicle.rejections) == REJECTIONS_MAX
    assert {happening.at for _, happening in chronicle.events} == {2.0}


# -------------------- Figures of connections by listener and address, and the share of blocked time


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
    monkeypatch.setattr(connection_events, "ADDRESSES_SHOWN_MAX", 3)
    door = Door()
    for number in (5, 6, 6, 7, 7, 8):
        door.come(f"10.0.0.{number}")
    door.rates.record_ip("A", "10.0.0.2", 1000)
    figures = door.figures()
    assert [each.ip for each in figures.addresses][:2] == ["10.0.0.6", "10.0.0.7"]
    assert (len(figures.addresses), figures.addresses_total) == (3, 4)
    monkeypatch.setattr(connection_events, "ADDRESSES_SHOWN_MAX", 9)
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


def test_number_of_kept_seconds_is_bounded(waits: BlockedTime) -> None:
    for step in range(1000):
        waits.begin(A, step / 2, blocks=True)
        waits.end(A, step / 2 + 0.25, blocks=True)
    assert len(waits._blocked[A]._by_second) <= SHARE_OVER_S
    assert waits.blocked_share(A, 499.75) == pytest.approx(0.5, abs=0.02)

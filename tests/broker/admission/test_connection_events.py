"""Recent connection events are bounded, and rejections are kept separately."""

from __future__ import annotations

from itertools import count

import pytest

from minibroker.broker.admission import connection_events
from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.admission.connection_events import (
    EVENTS_MAX,
    REJECTIONS_MAX,
    ConnectionEvent,
    ConnectionEventLog,
    ConnectionEvents,
    ExceededLimit,
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

"""Recent connection events are bounded, and rejections are kept separately."""

from __future__ import annotations

from itertools import count

import pytest

from minibroker.broker.admission import connection_events
from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.admission.connection_events import (
    ConnectionEvent,
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

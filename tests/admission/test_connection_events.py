"""What happened lately is kept within bounds, refusals apart from the rest."""

from __future__ import annotations

from itertools import count

import pytest

from minibroker.admission import connection_events
from minibroker.admission.acceptor_messages import Accepted
from minibroker.admission.connection_events import Happening, Happenings, Limit


def who(number: int) -> Accepted:
    return Accepted("PLAINTEXT", ("127.0.0.1", 9092), ("10.0.0.1", 51234), number)


@pytest.fixture
def kept() -> Happenings:
    return Happenings(3, count(100.0).__next__)


def test_what_happened_is_told_in_order_with_its_time(kept: Happenings) -> None:
    kept.note("accepted", who(7))
    kept.note("handed", who(7), processor=1)
    lately = kept.lately()
    assert (lately.life, lately.happened, lately.refused) == (3, 2, 0)
    assert lately.happenings == (
        Happening(7, 100.0, "accepted", "PLAINTEXT", "10.0.0.1", 51234, None, None),
        Happening(7, 101.0, "handed", "PLAINTEXT", "10.0.0.1", 51234, 1, None),
    )


def test_a_storm_of_others_does_not_push_refusals_out(kept: Happenings) -> None:
    limit = Limit("max.connections.per.ip", 2)
    kept.refuse(who(1), "max_connections_per_ip", limit)
    for number in range(connection_events.HAPPENINGS_MAX):
        kept.note("accepted", who(number))
    lately = kept.lately()
    assert {each.kind for each in lately.happenings} == {"accepted"}
    assert (lately.happened, lately.refused) == (connection_events.HAPPENINGS_MAX + 1, 1)
    (refusal,) = lately.refusals
    assert (refusal.happening.at, refusal.happening.kind) == (100.0, "refused")
    assert (refusal.happening.reason, refusal.limit) == ("max_connections_per_ip", limit)


def test_who_does_not_say_who_it_is_is_kept_with_the_words(kept: Happenings) -> None:
    kept.distrust(who(1), "tls_failed", "w" * 1000, 0)
    (refusal,) = kept.lately().refusals
    assert (refusal.happening.kind, refusal.limit) == ("closed", None)
    assert refusal.why == "w" * connection_events.WHY_MAX


def test_what_is_kept_is_bounded(kept: Happenings) -> None:
    for number in range(connection_events.HAPPENINGS_MAX + 5):
        kept.refuse(who(number), "limit")
    lately = kept.lately()
    assert len(lately.happenings) == connection_events.HAPPENINGS_MAX
    assert len(lately.refusals) == connection_events.REFUSALS_MAX
    assert lately.refusals[-1].happening == lately.happenings[-1]
    assert lately.happened == lately.refused == connection_events.HAPPENINGS_MAX + 5

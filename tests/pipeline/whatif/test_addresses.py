from __future__ import annotations

from typing import Any

import pytest

from minibroker.activity.schema import ConnectionStep
from minibroker.pipeline.whatif.addresses import Addresses, AddressTally, arrivals
from minibroker.pipeline.whatif.columns import Lives
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from tests.pipeline.whatif.activity import connection_row, table

IP, OTHER = "10.0.0.1", "10.0.0.2"
A, D, H, M, R, C = ConnectionStep


def came(*rows: dict[str, Any]) -> list[tuple[int, int]]:
    return [(one.ms, one.sequence) for one in arrivals(table(rows), Lives())]


def test_connection_with_several_events_is_counted_once() -> None:
    rows = [
        connection_row(0, 10, 1, IP),
        connection_row(1, 12, 2, IP),
        connection_row(2, 12, 2, IP, happened=H),
        connection_row(3, 300, 2, IP, happened=M),
        connection_row(4, 400, 1, IP, happened=C),
        connection_row(5, 500, 3, IP),
        connection_row(6, 500, 3, IP, happened=R, reason="ip_connection_creation_rate"),
    ]
    assert came(*rows) == came(*reversed(rows)) == [(10, 0), (12, 1), (500, 5)]


def test_delayed_connection_is_admitted_on_time() -> None:
    rows = [
        connection_row(0, 10, 1, IP),
        connection_row(1, 10, 1, IP, happened=D, reason="max.connections"),
        connection_row(2, 90, 1, IP, happened=H),
        connection_row(3, 190, 1, IP, happened=M),
    ]
    assert came(*rows) == [(90, 2)]


def test_connection_rejected_by_limit_is_not_counted() -> None:
    dropped = connection_row(1, 10, 1, IP, happened=R, reason="kafka_connections_max")
    assert came(connection_row(0, 10, 1, IP), dropped) == []


def tally_of(proposal: Proposal, counting: Counting, *rows: dict[str, Any]) -> AddressTally | None:
    found = Addresses(proposal, counting)
    lives = Lives()
    found.feed(table(rows[:40]), lives)
    found.feed(table(rows[40:]), lives)
    found.settle()
    return found.tallies.get((0, IP))


@pytest.mark.parametrize(("rechecks", "refused"), [(True, 0), (False, 1)])
def test_51st_connection_at_rate_of_five_is_throttled(rechecks: bool, refused: int) -> None:
    rows = [connection_row(n, 1000, n, IP) for n in range(51)]
    found = tally_of(Proposal("p", ips={IP: 5.0}), Counting(rechecks=rechecks), *rows)
    assert found is not None
    # 200 ms later the rate is just at its limit, so a recheck admits the connection.
    assert (found.seen, found.throttled, found.longest_ms) == (51, 1, 200)
    assert found.refused == refused
    assert found.minutes == {1_700_000_001_000 // 60_000: (1, 200)}


def test_address_without_rate_is_not_counted() -> None:
    rows = [connection_row(n, 1000, n, IP) for n in range(51)]
    assert tally_of(Proposal("p", ips={OTHER: 1.0}), Counting(), *rows) is None
    assert tally_of(Proposal("p"), Counting(), *rows) is None


def test_first_seconds_only_fill_the_counters() -> None:
    rows = [connection_row(n, 1000 + n, n, IP) for n in range(51)]
    counting = Counting(counted_from_ms={0: 1050})
    found = tally_of(Proposal("p", ips={IP: 5.0}), counting, *rows)
    assert found is not None
    assert (found.seen, found.throttled) == (1, 1)

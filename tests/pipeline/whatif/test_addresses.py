"""What the events of connections say about the rate of their address."""

from __future__ import annotations

import random
from typing import Any

import pytest

from minibroker.lab.activity.events import ConnectionStep
from minibroker.pipeline.whatif.addresses import (
    Addresses,
    AddressTally,
    Arrival,
    Arrivals,
    OtherLimit,
    Recheck,
)
from minibroker.pipeline.whatif.columns import Lives
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from tests.pipeline.whatif.activity import connection_row, table
from tests.pipeline.whatif.recorded_connections import IP, RecordedConnections

# Arrivals ----------------------------------------------------------------------------------------

BY_RATE = "ip_connection_creation_rate"
A, D, H, M, R, C = ConnectionStep


def arrivals(*rows: dict[str, Any], batch: int = 100) -> list[Arrival]:
    found = Arrivals(Lives(), 1000)
    complete = [
        arrival
        for first in range(0, len(rows), batch)
        for arrival in found.add(table(rows[first : first + batch]))
    ]
    return [*complete, *found.rest()]


def came(*rows: dict[str, Any], batch: int = 100) -> list[tuple[int, int]]:
    return [(one.ms, one.sequence) for one in arrivals(*rows, batch=batch)]


def held(sequence: int, ms: int, connection: int, delay_ms: int) -> dict[str, Any]:
    return connection_row(sequence, ms, connection, IP, happened=H) | {"delay_ms": delay_ms}


def test_connection_with_several_events_is_counted_once() -> None:
    rows = [
        connection_row(0, 10, 1, IP),
        connection_row(1, 12, 2, IP),
        connection_row(2, 12, 2, IP, happened=H),
        connection_row(3, 300, 2, IP, happened=M),
        connection_row(4, 400, 1, IP, happened=C),
        connection_row(5, 500, 3, IP),
        connection_row(6, 500, 3, IP, happened=R, reason=BY_RATE),
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
    found = Arrivals(Lives(), 1000)
    dropped = connection_row(1, 10, 1, IP, happened=R, reason="kafka_connections_max")
    assert found.add(table([connection_row(0, 10, 1, IP), dropped])) == found.rest() == []
    assert found.not_replayed[OtherLimit.REJECTED] == 1


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_recorded_delay_and_recheck_belong_to_their_connection(batch: int) -> None:
    rows = [
        connection_row(0, 10, 1, IP),
        held(1, 10, 1, 40),
        connection_row(2, 20, 2, IP),
        held(3, 20, 2, 90),
        connection_row(4, 51, 1, IP, happened=M),
        connection_row(5, 112, 2, IP, happened=R, reason=BY_RATE),
        connection_row(6, 150, 3, IP),
        connection_row(7, 150, 3, IP, happened=R, reason=BY_RATE),
        connection_row(8, 160, 4, IP),
        held(9, 160, 4, 1000),
        connection_row(10, 99_000, 1, IP, happened=C),
        connection_row(11, 99_001, 5, IP),
    ]
    found = arrivals(*rows, batch=batch)
    assert [(one.delay_ms, one.recheck) for one in found] == [
        (40, Recheck(51, 4, True)), (90, Recheck(112, 5, False)), (None, None), (1000, None),
        (0, None),
    ]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 100])
def test_connection_waits_for_another_limit_across_batches(batch: int) -> None:
    found = Arrivals(Lives(), 1000)
    rows = [
        connection_row(0, 10, 1, IP),
        connection_row(1, 10, 1, IP, happened=D, reason="max.connections") | {"delay_ms": 0},
        connection_row(2, 20, 2, IP),
        connection_row(3, 20, 2, IP, happened=D, reason="max.connections") | {"delay_ms": 0},
        connection_row(4, 30, 3, IP),
        connection_row(5, 30, 3, IP, happened=D, reason="max.connection.creation.rate")
        | {"delay_ms": 300},
        connection_row(6, 330, 3, IP, happened=M),
        connection_row(7, 80_000, 1, IP, happened=M),
    ]
    seen = [
        arrival
        for first in range(0, len(rows), batch)
        for arrival in found.add(table(rows[first : first + batch]))
    ]
    seen += found.rest()
    assert [(one.ms, one.sequence) for one in seen] == [(330, 6), (80_000, 7)]
    assert +found.not_replayed == {OtherLimit.WAITING: 1, OtherLimit.DELAYED: 1}


def test_end_of_an_earlier_connection_is_no_arrival() -> None:
    late = connection_row(2, 90_000, 1, IP, happened=M)
    assert came(connection_row(0, 10, 1, IP), held(1, 10, 1, 40), connection_row(9, 80_000, 2, IP),
                late, connection_row(11, 99_999, 3, IP), batch=1) == [
        (10, 0), (80_000, 9), (99_999, 11)]  # fmt: skip


# Decisions ---------------------------------------------------------------------------------------

OTHER = "10.0.0.2"
Rows = list[dict[str, Any]]


def tally_of(
    proposal: Proposal, counting: Counting, rows: Rows, batch: int = 40
) -> AddressTally | None:
    found, lives = Addresses(proposal, counting), Lives()
    arrivals = Arrivals(lives, counting.window_ms)
    for first in range(0, len(rows), batch):
        found.feed(arrivals.add(table(rows[first : first + batch])), lives.brokers())
    found.feed(arrivals.rest(), lives.brokers())
    found.settle(lives.brokers())
    return found.tallies.get((0, IP))


@pytest.mark.parametrize(("rechecks", "refused"), [(True, 0), (False, 1)])
def test_51st_connection_at_rate_of_five_is_throttled(rechecks: bool, refused: int) -> None:
    rows = [connection_row(n, 1000, n, IP) for n in range(51)]
    found = tally_of(Proposal("p", ips={IP: 5.0}), Counting(rechecks=rechecks), rows)
    assert found is not None
    # 200 ms later the rate is just at its limit, so a recheck admits the connection.
    assert (found.seen, found.throttled, found.longest_ms) == (51, 1, 200)
    assert found.refused == refused
    assert found.minutes == {1_700_000_001_000 // 60_000: (1, 200)}


def test_address_without_rate_is_not_counted() -> None:
    rows = [connection_row(n, 1000, n, IP) for n in range(51)]
    assert tally_of(Proposal("p", ips={OTHER: 1.0}), Counting(), rows) is None
    assert tally_of(Proposal("p"), Counting(), rows) is None


def test_first_seconds_only_fill_the_counters() -> None:
    rows = [connection_row(n, 1000 + n, n, IP) for n in range(51)]
    counting = Counting(counted_from_ms={0: 1050})
    found = tally_of(Proposal("p", ips={IP: 5.0}), counting, rows)
    assert found is not None
    assert (found.seen, found.throttled) == (1, 1)


@pytest.mark.parametrize("batch", [7, 100_000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_replay_under_recorded_rate_takes_the_broker_s_decisions(seed: int, batch: int) -> None:
    chance = random.Random(seed)
    broker = RecordedConnections(10.0, lambda: chance.choice([0, 1, 1, 2, 3]), seed)
    broker.run(120, 50)
    found = tally_of(Proposal("p", ips={IP: 10.0}), Counting(), broker.rows, batch)
    assert found is not None
    assert found.throttled == len(broker.delays) > 300
    assert found.total_ms == sum(ms for _, ms in broker.delays)
    assert found.refused == len(broker.refused) > 10


def test_unknown_counters_at_start_do_not_change_later_decisions() -> None:
    broker = RecordedConnections(10.0, lambda: 1, 4)
    broker.run(120, 50, pause_ms=1100)
    # The recording starts when the counters are full. The pause ends the current sample, which may
    # have started before.
    started = 80_000
    rows = [row for row in broker.rows if row["clock_ms"] >= started]
    counted_ms = started + Counting().remembered_ms
    counting = Counting(counted_from_ms={0: counted_ms})
    found = tally_of(Proposal("p", ips={IP: 10.0}), counting, rows)
    arrived = {
        row["connection"]
        for row in rows
        if row["happened"] == ConnectionStep.ACCEPTED and row["clock_ms"] >= counted_ms
    }
    delays = [ms for number, ms in broker.delays if number in arrived]
    assert found is not None
    assert (found.throttled, found.total_ms) == (len(delays), sum(delays))
    assert found.refused == len(arrived.intersection(broker.refused))


def test_broker_s_lives_have_clocks_of_their_own() -> None:
    early = [connection_row(n, 1000, n, IP) for n in range(51)]
    late = [connection_row(100 + n, 9_000_000, n, IP) | {"started_us": 2} for n in range(51)]
    rows = [row for pair in zip(early, late, strict=True) for row in pair]
    found = tally_of(Proposal("p", ips={IP: 5.0}), Counting(), rows, 20)
    assert found is not None
    assert (found.seen, found.throttled, found.refused) == (102, 2, 0)

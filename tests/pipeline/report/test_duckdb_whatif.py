"""The figures of the what-if section, summed a second time by DuckDB: from the recorded events, and
from the decisions that `whatif` writes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb
import pyarrow.parquet as pq
import pytest

from minibroker.pipeline.activity_table import ACTIVITY
from minibroker.pipeline.report import formats
from minibroker.pipeline.report.aggregate import compared
from minibroker.pipeline.report.figures import HEAT_MAX, Outcome, ReportedProposal
from minibroker.pipeline.report.page import page
from minibroker.pipeline.whatif import job
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from minibroker.pipeline.whatif.rows import CLOSED, OPEN
from tests.pipeline.report.sample_figures import figures
from tests.pipeline.whatif import random_workload
from tests.pipeline.whatif.activity import connection_row, request_row, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANCE = Random(29)
REQUESTS = [
    request_row(replace(event, throttle_ms=CHANCE.choice([0, 0, 70])))
    for event in random_workload.events(CHANCE, 2500)
]
CONNECTIONS = [
    connection_row(9000 + n, 1_000_000 + 90 * n, n, f"10.0.0.{n % 3}") for n in range(300)
]
PROPOSALS = [
    random_workload.proposal(CHANCE, "tight"),
    replace(random_workload.proposal(CHANCE, "loose"), ips={"10.0.0.1": 50.0}),
    Proposal("none"),
]
NAMES = [proposal.name for proposal in PROPOSALS]

EACH: Final = """
create table each as
with event as (
  select broker, sequence, coalesce(user, '') as user, coalesce(client_id, '') as client_id,
    clock_ms >= 12000 + min(clock_ms) over (partition by broker) as counted, kind
  from events)
select proposal, loop, user, client_id,
  sum((counted and producer_byte_rate_ms is not null)::int
    + (counted and consumer_byte_rate_ms is not null)::int
    + (counted and request_percentage_ms is not null)::int
    + (counted and controller_mutation_rate_ms is not null)::int) as checks,
  count(*) filter (counted and throttle_ms > 0) as throttled,
  coalesce(sum(throttle_ms) filter (counted), 0) as throttle_ms,
  coalesce(max(throttle_ms) filter (counted), 0) as longest_ms
from decisions join event using (broker, sequence) where kind = 'request'
group by all having checks > 0
"""
"""What a decision on a request adds to its sender; a quota type that was not checked is null."""

OF_ADDRESSES: Final = """
select ip, count(*) from (
  select *, clock_ms >= 12000 + min(clock_ms) over (partition by broker) as counted from events)
where counted and kind = 'connection' and happened = 'accepted' and ip = '10.0.0.1' group by ip
"""

RECORDED: Final = """
with event as (
  select broker, sequence, user, client_id, throttle_ms from events where kind = 'request'),
original as (
  select user, client_id, count(*), count(*) filter (throttle_ms > 0), sum(throttle_ms) as ms
  from event group by all),
said as (
  select user, client_id, count(*), count(*) filter (recorded_ms > 0), sum(recorded_ms)
  from decisions join event using (broker, sequence)
  where proposal = '{proposal}' and loop = '{loop}' group by all)
select (select count(*) from original), count(*), sum(ms)
from (select * from original intersect select * from said) as matching
"""


class Replayed(NamedTuple):
    """The section's figures, and DuckDB with the events and decisions."""

    outcomes: tuple[Outcome, ...]
    proposals: tuple[ReportedProposal, ...]
    connected: duckdb.DuckDBPyConnection

    def rows(self, loop: str) -> dict[tuple[str, str], Any]:
        """By proposal and sender: DuckDB's checks, throttled requests, throttle and maximum."""
        found = self.connected.execute("select * from each where loop = ?", [loop]).fetchall()
        return {
            (proposal, formats.party(user, client)): (*map(int, sums),)
            for proposal, _, user, client, *sums in found
        }


@pytest.fixture(scope="module")
def replayed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    events = table([*REQUESTS, *CONNECTIONS])
    path = tmp_path_factory.mktemp("whatif") / "events.parquet"
    pq.write_table(events, path)
    activity = spark.read.schema(ACTIVITY).parquet(str(path))
    counting = Counting()
    counting = replace(counting, counted_from_ms=job.counted_from(activity, counting))
    outcome, decisions = (
        run(activity, PROPOSALS, counting).union(run(activity, PROPOSALS, counting, closed=True))
        for run in (job.whatif, job.decisions)
    )
    connected = duckdb.connect(config={"threads": 1})
    connected.register("events", events)
    connected.register("decisions", decisions.toArrow())
    connected.execute(EACH)
    return Replayed(*compared(outcome, NAMES, [OPEN, CLOSED]), connected)


def test_outcomes_of_senders(replayed: Replayed) -> None:
    theirs = replayed.rows(OPEN)
    shown = {each.entity for each in replayed.outcomes}
    ours = {
        (each.proposal, each.entity): each[2:]
        for each in replayed.outcomes
        if "closed" not in each.proposal and not each.entity.startswith("address")
    }
    assert ours == {key: row for key, row in theirs.items() if key[1] in shown}
    assert len(shown) < HEAT_MAX
    # All that are throttled at all are shown.
    assert {entity for (_, entity), row in theirs.items() if row[2]} <= shown
    assert sum(row[1] for row in ours.values()) > 100


def test_throttle_in_closed_loop_is_that_of_decisions(replayed: Replayed) -> None:
    theirs = {f"{name}, closed loop": row for name, row in _totals(replayed, CLOSED).items()}
    found = {each.name: each for each in replayed.proposals}
    for name in NAMES:
        closed = f"{name}, closed loop"
        throttle_ms = theirs[closed][2] if closed in theirs else 0
        assert found[closed].throttle_ms - _of_addresses(replayed, closed)[2] == throttle_ms


def test_totals_of_proposals(replayed: Replayed) -> None:
    theirs = _totals(replayed, OPEN)
    found = {each.name: each for each in replayed.proposals}
    assert list(found) == [name for each in NAMES for name in (each, f"{each}, closed loop")]
    for name in NAMES:
        entities, throttled_entities = (
            len([row for (each, _), row in replayed.rows(OPEN).items() if each == name and row[at]])
            for at in (0, 1)
        )
        of_addresses = _of_addresses(replayed, name)
        sums = theirs.get(name, (0, 0, 0, 0))
        whole = found[name]
        assert (whole.requests, whole.throttled, whole.throttle_ms) == tuple(
            sums[at] + of_addresses[at] for at in range(3)
        )
        assert whole.longest_ms == max(sums[3], of_addresses[3])
        assert whole.entities == entities + (of_addresses[0] > 0)
        assert whole.throttled_entities == throttled_entities + (of_addresses[1] > 0)


def _totals(replayed: Replayed, loop: str) -> dict[str, tuple[int, ...]]:
    query = (
        "select proposal, sum(checks), sum(throttled), sum(throttle_ms), max(longest_ms) from each"
        " where loop = ? group by proposal"
    )
    found = replayed.connected.execute(query, [loop]).fetchall()
    return {name: tuple(map(int, sums)) for name, *sums in found}


def _of_addresses(replayed: Replayed, proposal: str) -> tuple[int, int, int, int]:
    """The connections from addresses with a rate, which is never reached."""
    if not proposal.startswith("loose"):
        return 0, 0, 0, 0
    ((_, connections),) = replayed.connected.execute(OF_ADDRESSES).fetchall()
    return connections, 0, 0, 0


@pytest.mark.parametrize("loop", [OPEN, CLOSED])
@pytest.mark.parametrize("proposal", NAMES)
def test_decisions_have_the_recorded_throttles_of_each_sender(
    replayed: Replayed, proposal: str, loop: str
) -> None:
    query = RECORDED.format(proposal=proposal, loop=loop)
    ((senders, same, throttle_ms),) = replayed.connected.execute(query).fetchall()
    assert senders == same > 5
    assert throttle_ms == sum(row["throttle_ms"] for row in REQUESTS) > 0


def test_page_shows_totals(replayed: Replayed) -> None:
    made = replace(figures(), outcomes=replayed.outcomes, proposals=replayed.proposals)
    text = " ".join(re.sub(r"<[^>]*>", " ", page(made)).split())
    for name, (of_senders, throttled, throttle_ms, longest_ms) in _totals(replayed, OPEN).items():
        checks = of_senders + _of_addresses(replayed, name)[0]
        shown = (
            formats.count(throttled),
            formats.share(throttled / checks),
            formats.duration(throttle_ms),
            formats.duration(longest_ms),
        )
        assert " ".join(shown) in text

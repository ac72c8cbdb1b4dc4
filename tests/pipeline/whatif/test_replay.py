from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from minibroker.pipeline.whatif.columns import Senders, requests_of
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from minibroker.pipeline.whatif.replay import Replay, in_order, pick
from tests.pipeline.whatif import oracle, random_workload
from tests.pipeline.whatif.activity import connection_row, request_row, requests_table, table
from tests.pipeline.whatif.oracle import Event


def rows(run: Replay) -> list[dict[str, Any]]:
    return [row for batch in [*run.finished_rows(), *run.end()] for row in batch.to_pylist()]


@pytest.mark.parametrize("seed", range(6))
def test_outcome_sums_match_broker_decisions(seed: int) -> None:
    chance = random.Random(seed)
    proposals = [random_workload.proposal(chance, name) for name in "ab"]
    events = random_workload.events(chance, 700)
    run = Replay(proposals, Counting())
    run.feed(requests_table(events[:300]))
    run.feed(requests_table(events[300:]))
    found = rows(run)
    for proposal in proposals:
        wanted = oracle.open_loop(events, proposal, Counting()).values()
        of_it = [row for row in found if row["proposal"] == proposal.name]
        for by_minute in (False, True):
            part = [row for row in of_it if (row["start_us"] is not None) is by_minute]
            assert sum(row["throttle_ms"] for row in part) == sum(one.ms for one in wanted)
            assert sum(row["throttled"] for row in part) == sum(one.ms > 0 for one in wanted)


def test_decisions_before_counted_from_are_not_reported() -> None:
    chance = random.Random(3)
    proposal, events = random_workload.proposal(chance), random_workload.events(chance, 700)
    from_ms = events[350].clock_ms
    run = Replay([proposal], Counting(counted_from_ms={0: from_ms, 1: from_ms}))
    run.feed(requests_table(events))
    wanted = oracle.open_loop(events, proposal, Counting())
    later = [wanted[event.sequence].ms for event in events if event.clock_ms >= from_ms]
    whole = [row for row in rows(run) if row["start_us"] is None]
    assert (
        sum(row["throttle_ms"] for row in whole)
        == sum(later)
        < sum(one.ms for one in wanted.values())
    )


def test_scenario_may_lack_requests_or_connections() -> None:
    proposal = Proposal("p", random_workload.proposal(random.Random(1)).table, {}, 0.0)
    run = Replay([proposal], Counting())
    run.feed(table([]))
    events = random_workload.events(random.Random(1), 50)
    run.feed(table([*map(request_row, events), connection_row(99, 1_000_000, 1, "10.0.0.1")]))
    kinds = {row["quota_type"] for row in rows(run)}
    assert "connection_creation_rate" in kinds
    assert len(kinds) > 1


UNORDERED = [Event(3, 12, "u"), Event(1, 11, "v"), Event(2, 11, "u"), Event(0, 11, "w")]


def test_only_senders_sharing_a_counter_are_sorted() -> None:
    requests = requests_of(requests_table(UNORDERED), Senders(), delays=False)
    alone = in_order(requests, [0, 1, 2])
    assert alone.sequence.tolist() == [1, 0, 2, 3]
    assert in_order(requests, [0, 0, 0]).sequence.tolist() == [0, 1, 2, 3]
    assert in_order(requests, [0, 1, 0]).sequence.tolist() == [1, 0, 2, 3]


def test_sorted_requests_are_returned_unchanged() -> None:
    requests = requests_of(requests_table(UNORDERED[1:3]), Senders(), delays=False)
    assert in_order(requests, [0, 0]) is requests
    assert in_order(requests, [0, 1]) is requests


def test_some_are_picked_with_all_their_columns() -> None:
    requests = requests_of(requests_table(UNORDERED), Senders(), delays=False)
    found = pick(requests, np.array([1]))
    assert [len(column) for column in found] == [1] * len(found)
    assert found.sequence.tolist() == [1]

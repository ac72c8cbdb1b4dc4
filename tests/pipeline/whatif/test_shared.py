"""Counters shared by several processors: replayed in the order in which these took their locks.

A processor reads the clock before it records, so others may record in between. The replay has to
reproduce the decisions of the broker's own modules over one ledger, for any sharing of counters.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from itertools import count

import pytest

from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import (
    FETCH,
    PRODUCE,
    ClientQuotaManager,
    QuotaCheck,
    Throttle,
)
from minibroker.broker.quotas.types import Entity, QuotaTable, QuotaType
from minibroker.pipeline.whatif.columns import KINDS
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from tests.pipeline.whatif import random_workload
from tests.pipeline.whatif.oracle import Decision, Event

USERS, CLIENTS = ("u", "v"), ("c", "d")
SLOW_MS = 4
"""How long a processor may take from its look at the clock to the lock."""


def table(bytes_of: str, time_of: str) -> QuotaTable:
    """Return quotas of bytes and of time, of users or of clients: the sharing groups differ."""

    def entities(whose: str, bound: float) -> dict[Entity, float]:
        if whose == "user":
            return {Entity(user): bound for user in USERS}
        return {Entity(client=client): bound for client in CLIENTS}

    bounds = {kind: entities(bytes_of, 20_000.0) for kind in KINDS[:2]}
    bounds[QuotaType.REQUEST] = entities(time_of, 20.0)
    kinds = 0
    for of_kind in bounds.values():
        for entity in of_kind:
            kinds |= entity.bit
    return QuotaTable(bounds, kinds)


class Processors:
    """Requests of several connections, each step of which comes when its processor is so far."""

    def __init__(self, proposal: Proposal, chance: random.Random) -> None:
        self.quotas = ClientQuotaManager(QuotaLedger(11, 1000, shared=False))
        self.quotas.set_table(proposal.table)
        self.chance = chance
        self.decided: dict[int, Decision] = {}
        self.events: list[Event] = []

    def connection(self, number: int, requests: int) -> Iterator[int]:
        """Says each time for how many µs it does something else."""
        chance, quotas = self.chance, self.quotas
        who = chance.choice(USERS), chance.choice(CLIENTS)
        for _ in range(requests):
            yield chance.choice([50, 300, 2_000, 60_000])
            size, checked_ns = chance.randrange(4_000), chance.randrange(10**7)
            what = chance.choice(["produce", "fetch", "other"])
            now_ms = self.now_us // 1000
            yield chance.randrange(SLOW_MS * 1000)
            looks: dict[QuotaType, QuotaCheck] = {}
            quotas.on_check = lambda look, looks=looks: looks.update({look.kind: look})
            throttle: Throttle | None
            if what == "produce":
                throttle = quotas.record_bytes_and_time(PRODUCE, who, size, checked_ns, now_ms)
            elif what == "fetch":
                throttle = quotas.record_bytes_and_time(FETCH, who, size, checked_ns, now_ms)
            else:
                worked = quotas.worked(who, checked_ns, now_ms)
                throttle = worked if worked.ms else None
            back = None
            if throttle is not None and what == "fetch":
                yield chance.randrange(500)
                back = quotas.take_back_fetch(who, size, now_ms)
            yield chance.randrange(1000)
            late_ms, late_ns = self.now_us // 1000, chance.randrange(10**6)
            yield chance.randrange(SLOW_MS * 1000)
            late = quotas.record_later_time(who, late_ns, late_ms)
            time = looks[QuotaType.REQUEST].ordinal
            first = looks.get(QuotaType.PRODUCE) or looks.get(QuotaType.FETCH)
            sequence = len(self.events)
            self.decided[sequence] = (
                Decision(throttle.ms, throttle.kind) if throttle else Decision(0, None)
            )
            event = Event(
                sequence, now_ms, *who, what, size, checked_ns=checked_ns, late_ns=late_ns,
                late_clock_ms=late_ms, connection=number,
                throttle_ms=throttle.ms if throttle else 0,
                ordinal=time if first is None else first.ordinal, time_ordinal=time,
                back_ordinal=back, late_ordinal=late,
            )  # fmt: skip
            self.events.append(event)
            if throttle is not None:
                yield min(throttle.ms, 300) * 1000

    def run(self, connections: int, requests: int) -> None:
        numbers = count()
        turns = [(0, next(numbers), self.connection(n, requests)) for n in range(connections)]
        while turns:
            self.now_us, _, steps = heapq.heappop(turns)
            for passes_us in steps:
                heapq.heappush(turns, (self.now_us + passes_us, next(numbers), steps))
                break

    now_us = 0


@pytest.mark.parametrize("shares", ["user user", "client client", "user client", "client user"])
@pytest.mark.parametrize("seed", range(3))
def test_replay_keeps_recorded_order_of_each_counter(shares: str, seed: int) -> None:
    chance = random.Random(seed)
    proposal = Proposal("p", table(*shares.split()))
    ran = Processors(proposal, chance)
    ran.run(connections=12, requests=150)
    found = random_workload.replay(ran.events, proposal, Counting(), shuffle=chance)
    assert found == ran.decided
    throttle = [decision.kind for decision in found.values() if decision.ms]
    assert len(throttle) > 200
    assert set(throttle) == set(KINDS[:3])
    # Not known, some of them come out otherwise: the test does try it.
    without = [
        event.__class__(**{**vars(event), "ordinal": None, "time_ordinal": None,
                           "back_ordinal": None, "late_ordinal": None})
        for event in ran.events
    ]  # fmt: skip
    assert random_workload.replay(without, proposal, Counting()) != ran.decided


def test_restarted_broker_counts_from_zero() -> None:
    proposal = Proposal("p", table("user", "user"))
    first = Event(0, 1_000, "u", what="produce", size=900_000)
    second = Event(1, 1_500, "u", what="produce", size=10)
    throttle = random_workload.replay([first, second], proposal, Counting())
    assert throttle[1].ms > 0
    again = Event(**{**vars(second), "started_us": 2})
    found = random_workload.replay([first, again], proposal, Counting())
    assert found == {0: throttle[0], 1: Decision(0, None)}

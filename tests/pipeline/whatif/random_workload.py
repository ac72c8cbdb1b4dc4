"""Random requests, as columns of a replay, and random quotas of every level."""

from __future__ import annotations

import random
from collections.abc import Sequence

from minibroker.broker.quotas.types import DEFAULT, Entity, QuotaTable
from minibroker.pipeline.whatif.columns import KINDS
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from minibroker.pipeline.whatif.replay import Replay
from tests.pipeline.whatif.activity import requests_table
from tests.pipeline.whatif.oracle import Decision, Event

WHAT = ("produce", "fetch", "mutate", "other")
USERS, CLIENTS = ("u", "v", "a b"), ("c", "d", "")
LEVELS = (
    Entity("u", "c"),
    Entity("u", DEFAULT),
    Entity("u"),
    Entity("a%20b"),
    Entity(DEFAULT, "c"),
    Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT),
    Entity(client="c"),
    Entity(client=DEFAULT),
)
BOUNDS = {KINDS[0]: 1000.0, KINDS[1]: 1500.0, KINDS[2]: 1.5, KINDS[3]: 2.0}


def proposal(chance: random.Random, name: str = "p", *, most: int = 4) -> Proposal:
    """Some quotas at some levels."""
    entities = chance.sample(LEVELS, chance.randrange(1, most + 1))
    bounds = {
        kind: {
            entity: round(bound * chance.choice([0.2, 0.5, 1, 3]), 3)
            for entity in entities
            if chance.random() < 0.8
        }
        for kind, bound in BOUNDS.items()
    }
    kinds = 0
    for of_kind in bounds.values():
        for entity in of_kind:
            kinds |= entity.bit
    defaults = {kind: 800.0 for kind in KINDS[:2] if chance.random() < 0.3}
    return Proposal(name, QuotaTable(bounds, kinds, defaults))


def events(chance: random.Random, number: int, *, step_ms: int = 60) -> list[Event]:
    """Return requests of a few clients over a few connections, some in the same millisecond."""
    found, now_ms = [], 1_000_000
    for sequence in range(number):
        gap = chance.random()
        now_ms += 0 if gap < 0.3 else chance.randrange(step_ms) if gap < 0.99 else 15_000
        connection = chance.randrange(9)
        sender = random.Random(connection)
        what = chance.choice(WHAT)
        late_ms = now_ms + chance.choice([0, 0, 1, 3, 40])
        strict = what == "mutate" and chance.random() < 0.6
        found.append(
            Event(
                sequence,
                now_ms,
                sender.choice(USERS),
                sender.choice(CLIENTS),
                what,
                size=chance.randrange(1000) if what in ("produce", "fetch") else 0,
                permits=chance.randrange(9) if what == "mutate" else 0,
                strict=strict,
                unthrottled=strict and chance.random() < 0.4,
                exempt=chance.random() < 0.1,
                checked_ns=chance.randrange(10**7),
                late_ns=chance.randrange(10**6),
                late_clock_ms=late_ms if chance.random() < 0.9 else None,
                broker=connection % 2,
                connection=connection,
            )
        )
    return found


def replay(
    drawn: Sequence[Event],
    proposal: Proposal,
    counting: Counting,
    *,
    closed: bool = False,
    batches: int = 1,
    shuffle: random.Random | None = None,
) -> dict[int, Decision]:
    """The compiled replay of events, by sequence; each batch is shuffled if that is wished."""
    run = Replay([proposal], counting, closed=closed, answers=True)
    size = max(1, -(-len(drawn) // batches))
    for first in range(0, len(drawn), size):
        batch = list(drawn[first : first + size])
        if shuffle is not None:
            shuffle.shuffle(batch)
        run.feed(requests_table(batch))
    list(run.end())
    return {
        sequence: Decision(ms, KINDS[kind] if kind >= 0 else None)
        for _, requests, answers in run.answered
        for sequence, (ms, kind) in zip(
            requests.sequence.tolist(), answers.throttles.tolist(), strict=True
        )
    }

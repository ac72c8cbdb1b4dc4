"""Every interleaving of a few events with two processors, exhaustively.

A state contains both processors, the messages in flight, and the events that may still happen. Each
state is visited once, however it was reached. When no message is in flight, the counts must be
right and a new connection must be admitted if and only if there is room.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from minibroker.broker.connections.tokens import DropLimits
from tests.broker.connections.token_world import World, frozen

IP = "10.0.0.1"
"""Its home differs from that of the total."""


class Budget(NamedTuple):
    """What may happen how often; messages, links and later terms come at any moment anyway."""

    connects: int = 0
    releases: int = 0
    kills: int = 0


class Left(NamedTuple):
    """A state: the world, pickled, and what may still happen."""

    world: bytes
    budget: Budget


Step = tuple[str, tuple[object, ...], Budget]
"""A method of the world, its arguments, and what may still happen then."""


def steps(world: World, budget: Budget) -> Iterator[Step]:
    """Everything that may happen next."""
    for where in world.deliverable():
        yield "deliver", where, budget
    for where in world.joinable():
        yield "notice_link", where, budget
    for at, processor in sorted(world.living.items()):
        if processor.term + 1 < len(world.terms):
            yield "advance", (at, processor.term + 1), budget
        yield from dear_steps(at, sorted(processor.open), budget)
    for number in range(world.size):
        if number not in world.living:
            for term in range(len(world.terms)):
                yield "bear", (number, term), budget


def dear_steps(at: int, there: list[int], budget: Budget) -> Iterator[Step]:
    """Those at one processor that may happen so often only."""
    if budget.connects:
        yield "connect", (at, IP), budget._replace(connects=budget.connects - 1)
    if budget.releases:
        for number in there:
            yield "release", (at, number), budget._replace(releases=budget.releases - 1)
    if budget.kills:
        yield "kill", (at,), budget._replace(kills=budget.kills - 1)


def explore(world: World, budget: Budget) -> int:
    """How many states there are."""
    seen = set()
    world.nobody_leaves = not (budget.releases or budget.kills or len(world.terms) > 1)
    open_states = [Left(pickle.dumps(world), budget)]
    while open_states:
        state = open_states.pop()
        for name, arguments, left in steps(pickle.loads(state.world), state.budget):
            after: World = pickle.loads(state.world)
            getattr(after, name)(*arguments)
            after.outcomes.clear()
            after.sent = 0
            key = hash((frozen(after), left))
            if key in seen:
                continue
            seen.add(key)
            open_states.append(Left(pickle.dumps(after), left))
            if not after.deliverable() and not after.joinable():
                after.nobody_leaves = False
                after.settle()
                for at in range(after.size):
                    after.probe(at, IP)
    return len(seen)


def begun(*terms: DropLimits) -> World:
    """Two processors that are linked, in the first term."""
    world = World(2, *terms)
    world.arrive()
    return world


CASES = {
    "a limit of one": (begun(DropLimits(per_ip=1)), Budget(connects=3, releases=1)),
    "all at once": (begun(DropLimits(total=2)), Budget(connects=4)),
    "all of one address": (begun(DropLimits(per_ip=3)), Budget(connects=4)),
    "a limit of two": (begun(DropLimits(total=2)), Budget(connects=4, releases=1)),
    "a limit of three": (begun(DropLimits(total=3)), Budget(connects=4, releases=2)),
    "both": (begun(DropLimits(total=2, per_ip=1)), Budget(connects=3, releases=1)),
    "killed": (begun(DropLimits(total=1)), Budget(connects=2, releases=1, kills=1)),
    "killed twice": (begun(DropLimits(total=3)), Budget(connects=2, kills=2)),
    "lowered": (begun(DropLimits(total=3), DropLimits(total=1)), Budget(connects=3, releases=1)),
    "limited": (begun(DropLimits(), DropLimits(per_ip=1)), Budget(connects=3, releases=1)),
    "limited and killed": (begun(DropLimits(), DropLimits(total=2)), Budget(connects=3, kills=1)),
    "set free": (begun(DropLimits(total=1), DropLimits()), Budget(connects=3, releases=1)),
}


@pytest.mark.parametrize("case", CASES)
def test_random_events_never_exceed_a_limit(case: str) -> None:
    world, budget = CASES[case]
    assert explore(world, budget) > 50

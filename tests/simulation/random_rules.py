"""Fault rules drawn at random, and the actor that adds, releases and removes them.

Owns which rules are fair: after them the broker must still keep every promise, so clients may only
see errors, delays, silence, disconnects and unknown fields. It must never know how a rule is
carried out. Invariant: a rule is one of the public schema, is added through the operations of the
control API, and depends only on the random source. A request that could take effect after its retry
is not drawn: an old EndTxn or TxnOffsetCommit of transaction version 0 may end or change the next
transaction, as in Kafka (KIP-890). An old OffsetCommit is fair, because a member whose commit is
not answered joins again as a new one.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple

import trio

from minibroker.lab.errors import ApiError
from minibroker.lab.faults.actions import Hold
from minibroker.lab.faults.fault_rule import FaultRule
from minibroker.lab.faults.places import FaultPoint
from minibroker.lab.schema import parse
from tests.simulation.actors import Actor
from tests.simulation.fair_errors import ERRORS, GROUP_ERRORS, TRANSACTION_ERRORS
from tests.simulation.rare_paths import KILLED_WHILE_HELD
from tests.simulation.surroundings import GROUP, World

RULES_MAX: Final = 6
"""Rules that are set at the same time."""
CALL_S: Final = 5.0
"""How long a change of rules may take, while the controller may be killed."""
HELD_TICKS_MAX: Final = 20
POINTS_SHARE: Final = 0.1
"""Share of rules that hold something inside of the broker."""

WITH_TOPICS: Final = ("Produce", "Fetch")
LATE_SINCE: Final = {"EndTxn": 5, "TxnOffsetCommit": 5}
"""First version whose requests may be executed after their retries."""
LATE: Final = ("delay", "hold", "reorder")
"""Actions that execute a request later if they are carried out before it."""

ACTIONS: Final = (
    *("error", "error", "delay", "hold", "disconnect", "disconnect"),
    *("never_answer", "throttle", "slow", "advance", "reorder", "corrupt"),
)


class RuleTargets(NamedTuple):
    """What random rules may be about."""

    apis: tuple[str, ...]
    points: tuple[FaultPoint, ...]
    topics: tuple[str, ...]
    clients: tuple[str, ...]
    """Client ids without the numbers of connections; those of producers are transactional ids."""

    def joined_with(self, other: RuleTargets) -> RuleTargets:
        """The targets of both."""
        return RuleTargets(
            tuple(dict.fromkeys(self.apis + other.apis)),
            self.points + other.points,
            self.topics + other.topics,
            self.clients + other.clients,
        )


def draw_rule(random: Random, targets: RuleTargets) -> FaultRule:
    """Draw one rule."""
    until_ms = random.choice((300, 1000, 3000))
    if random.random() < POINTS_SHARE:
        return FaultRule(Hold(point=random.choice(targets.points)), until_ms=until_ms)
    api = random.choice(targets.apis)
    action = random.choice(ACTIONS)
    fields: dict[str, Any] = {"api": api, "until_ms": until_ms}
    fields |= _selectors(random, api, targets)
    fields |= random.choice((
        {"first": random.randint(1, 3)},
        {"nth": random.randint(1, 6)},
        {"every": random.randint(2, 4)},
        {"probability": random.choice((0.1, 0.3, 0.6)), "seed": random.randrange(1000)},
        {},
    ))  # fmt: skip
    fields |= _details(random, api, action)
    if action in LATE and fields["at"] == "before" and api in LATE_SINCE:
        fields["version_min"] = LATE_SINCE[api]
    return parse(FaultRule, {"action": action, **fields})


def _selectors(random: Random, api: str, targets: RuleTargets) -> dict[str, Any]:
    choice = random.random()
    if choice < 0.3:
        return {"client_id": f"{random.choice(targets.clients)}*"}
    if choice < 0.6 and api in WITH_TOPICS:
        return {"topic": random.choice(targets.topics)}
    if choice < 0.6 and api in TRANSACTION_ERRORS:
        return {"transactional_id": random.choice(targets.clients)}
    if choice < 0.6 and api in GROUP_ERRORS:
        return {"group": GROUP}
    return {}


def _details(random: Random, api: str, action: str) -> dict[str, Any]:
    at = {"at": random.choice(("before", "after"))}
    match action:
        case "error":
            return at | {"error": random.choice(ERRORS[api])}
        case "delay":
            return at | {"delay_ms": random.choice((20, 300, 3000))}
        case "disconnect":
            place = random.choice(("before", "after", "middle"))
            return {"at": place, "reset": random.random() < 0.5}
        case "never_answer":
            return at | _once()
        case "advance":
            return at | {"advance_ms": random.choice((100, 3000))} | _once()
        case "hold" | "reorder":
            return at
    return _details_of_response(random, action)


def _details_of_response(random: Random, action: str) -> dict[str, Any]:
    """What actions need that have no other place than the response."""
    if action == "throttle":
        return {"throttle_ms": random.choice((50, 1000)), "mute": random.random() < 0.5}
    if action == "slow":
        return {"bytes_per_s": random.choice((2000, 20_000))}
    assert action == "corrupt"
    return {"part": "tagged_field"}


def _once() -> dict[str, Any]:
    """What makes a costly rule fire once."""
    return {"first": 1, "nth": None, "every": None, "probability": None, "seed": None}


class RuleInjector(Actor):
    """Adds random rules, and releases and removes them, until no further faults are injected."""

    def __init__(self, world: World, name: str, targets: RuleTargets) -> None:
        super().__init__(world, name)
        self._targets = targets
        self._active: list[str] = []

    async def run(self) -> None:
        while not self.world.faults_ended:
            await self.pause(2)
            if len(self._active) < RULES_MAX and self.random.random() < 0.6:
                await self._add()
            elif self._active:
                await self._remove(self.random.choice(self._active))

    async def _add(self) -> None:
        rule = draw_rule(self.random, self._targets)
        with trio.move_on_after(CALL_S):
            view = await self.world.broker.control.faults.add(rule)
            self.world.record(self.name, f"adds {view.id}: {view.rule}")
            self._active.append(view.id)
            if isinstance(rule.action, Hold) and self.random.random() < 0.8:
                await self._kill_while_held(view.id)

    async def _kill_while_held(self, fault_id: str) -> None:
        """Kill a process while a request is held, and release the request."""
        broker = self.world.broker
        for _ in range(HELD_TICKS_MAX):
            await self.pause(1)
            with suppress(ApiError):
                if not broker.control.faults.register.view(fault_id).held:
                    continue
                victim = self.random.choice(broker.names)
                self.world.record(self.name, f"kills {victim} while {fault_id} holds")
                self.world.counts[KILLED_WHILE_HELD] += 1
                self.world.kill(victim)
                broker.control.faults.register.release(fault_id)
            return

    async def _remove(self, fault_id: str) -> None:
        self._active.remove(fault_id)
        with trio.move_on_after(CALL_S), suppress(ApiError):
            await self.world.broker.control.faults.remove(fault_id)
        self.world.record(self.name, f"removes {fault_id}")

    async def heal(self) -> None:
        """Remove all rules; ``faults_ended`` must be set."""
        await self.world.broker.wait_ready()
        await self.world.broker.control.faults.remove_all()
        self._active.clear()
        self.world.record(self.name, "removes all rules")

"""Fault rules drawn at random, and the actor that adds, releases and removes them.

Owns which rules are fair: after them the broker must still keep every promise, so clients may only
see errors, delays, silence and disconnects. It must never know how a rule is carried out.
Invariant: a rule is one of the public schema, is added through the operations of the control API,
and depends only on the random source. A request that could take effect after its retry is not
drawn: an old EndTxn or TxnOffsetCommit of transaction version 0 may end or change the next
transaction, as in Kafka (KIP-890).
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any, Final

import trio

from minibroker.control.backend import BackendError
from minibroker.control.fault_shapes import FaultRule
from tests.simulation.actors import Actor
from tests.simulation.rare_paths import KILLED_WHILE_HELD
from tests.simulation.surroundings import World

RULES_MAX: Final = 6
"""Rules that are set at the same time."""
CALL_S: Final = 5.0
"""How long a change of rules may take, while the controller may be killed."""
HELD_TICKS_MAX: Final = 20

_COORDINATOR: Final = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "REQUEST_TIMED_OUT",
)
_TRANSACTION: Final = (*_COORDINATOR, "CONCURRENT_TRANSACTIONS")
_LEADER: Final = ("NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "UNKNOWN_SERVER_ERROR")
_FENCED: Final = ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "TRANSACTION_ABORTABLE")

ERRORS: Final = {
    "Produce": (*_LEADER, "NOT_ENOUGH_REPLICAS", "INVALID_PRODUCER_EPOCH"),
    "Fetch": (*_LEADER, "KAFKA_STORAGE_ERROR"),
    "InitProducerId": _TRANSACTION,
    "AddPartitionsToTxn": (*_TRANSACTION, *_FENCED),
    "AddOffsetsToTxn": (*_TRANSACTION, *_FENCED),
    "TxnOffsetCommit": (*_COORDINATOR, "UNSTABLE_OFFSET_COMMIT", *_FENCED),
    "EndTxn": (*_TRANSACTION, *_FENCED),
    "OffsetFetch": (*_COORDINATOR, "UNSTABLE_OFFSET_COMMIT"),
}
"""Errors of each API that a client may get at any time."""

WITH_TOPICS: Final = ("Produce", "Fetch")
WITH_ID: Final = (
    *("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit"),
    "EndTxn",
)
LATE_SINCE: Final = {"EndTxn": 5, "TxnOffsetCommit": 5}
"""First version whose requests may be executed after their retries."""

ACTIONS: Final = (
    *("error", "error", "delay", "hold", "disconnect", "disconnect"),
    *("never_answer", "throttle", "slow", "advance"),
)


def draw_rule(random: Random, topics: tuple[str, ...], clients: tuple[str, ...]) -> FaultRule:
    """Draw one rule, for some of these topics and clients."""
    api = random.choice(tuple(ERRORS))
    action = random.choice(ACTIONS)
    fields: dict[str, Any] = {"api": api, "until_ms": random.choice((300, 1000, 3000))}
    fields |= _selectors(random, api, topics, clients)
    fields |= random.choice((
        {"first": random.randint(1, 3)},
        {"nth": random.randint(1, 6)},
        {"every": random.randint(2, 4)},
        {"probability": random.choice((0.1, 0.3, 0.6)), "seed": random.randrange(1000)},
        {},
    ))  # fmt: skip
    fields |= _details(random, api, action)
    late = action in ("delay", "hold") and fields["at"] == "before"
    if late and api in LATE_SINCE:
        fields["version_min"] = LATE_SINCE[api]
    return FaultRule(action, **fields)  # type: ignore[arg-type]


def _selectors(
    random: Random, api: str, topics: tuple[str, ...], clients: tuple[str, ...]
) -> dict[str, Any]:
    choice = random.random()
    if choice < 0.3:
        return {"client_id": f"{random.choice(clients)}*"}
    if choice < 0.6 and api in WITH_TOPICS:
        return {"topic": random.choice(topics)}
    if choice < 0.6 and api in WITH_ID:
        return {"transactional_id": random.choice(clients)}
    return {}


def _details(random: Random, api: str, action: str) -> dict[str, Any]:
    place = random.choice(("before", "after"))
    if action == "error":
        return {"error": random.choice(ERRORS[api]), "at": place}
    if action == "delay":
        return {"delay_ms": random.choice((20, 300, 3000)), "at": place}
    if action == "hold":
        return {"at": place}
    if action == "disconnect":
        place = random.choice(("before", "after", "middle"))
        return {"at": place, "reset": random.random() < 0.5}
    if action == "never_answer":
        return {"at": place} | _once()
    if action == "throttle":
        return {"throttle_ms": random.choice((50, 1000)), "mute": random.random() < 0.5}
    if action == "slow":
        return {"bytes_per_s": random.choice((2000, 20_000))}
    assert action == "advance"
    return {"advance_ms": random.choice((100, 3000)), "at": place} | _once()


def _once() -> dict[str, Any]:
    """What makes a costly rule fire once."""
    return {"first": 1, "nth": None, "every": None, "probability": None, "seed": None}


class RuleInjector(Actor):
    """Adds random rules, and releases and removes them, until no further faults are injected."""

    def __init__(
        self, world: World, name: str, topics: tuple[str, ...], clients: tuple[str, ...]
    ) -> None:
        super().__init__(world, name)
        self._topics = topics
        self._clients = clients
        self._active: list[str] = []

    async def run(self) -> None:
        while not self.world.faults_ended:
            await self.pause(2)
            if len(self._active) < RULES_MAX and self.random.random() < 0.6:
                await self._add()
            elif self._active:
                await self._remove(self.random.choice(self._active))

    async def _add(self) -> None:
        rule = draw_rule(self.random, self._topics, self._clients)
        with trio.move_on_after(CALL_S):
            view = await self.world.broker.backend().add_fault(rule)
            self.world.record(self.name, f"adds {view.id}: {view.rule}")
            self._active.append(view.id)
            if rule.action == "hold" and self.random.random() < 0.8:
                await self._kill_while_held(view.id)

    async def _kill_while_held(self, fault_id: str) -> None:
        """Kill a process while a request is held, and release the request."""
        broker = self.world.broker
        for _ in range(HELD_TICKS_MAX):
            await self.pause(1)
            with suppress(BackendError):
                if not (await broker.backend().fault(fault_id)).held:
                    continue
                victim = self.random.choice(broker.names)
                self.world.record(self.name, f"kills {victim} while {fault_id} holds")
                self.world.counts[KILLED_WHILE_HELD] += 1
                broker.kill(victim)
                await broker.backend().release_fault(fault_id)
            return

    async def _remove(self, fault_id: str) -> None:
        self._active.remove(fault_id)
        with trio.move_on_after(CALL_S), suppress(BackendError):
            await self.world.broker.backend().remove_fault(fault_id)
        self.world.record(self.name, f"removes {fault_id}")

    async def heal(self) -> None:
        """Remove all rules; ``faults_ended`` must be set."""
        await self.world.broker.wait_ready()
        await self.world.broker.backend().remove_faults()
        self._active.clear()
        self.world.record(self.name, "removes all rules")

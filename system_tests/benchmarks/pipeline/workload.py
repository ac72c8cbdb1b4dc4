"""Entities of the simulated brokers: their requests, addresses and quotas.

Owns the skew: Zipf's law over entities, log-normal sizes, a few clients that reconnect constantly.
It must never know events or files. Invariant: everything follows from the workload and its seed.
"""

from __future__ import annotations

import shlex
from typing import Final, NamedTuple

import numpy as np

from minibroker.broker.quotas.types import sanitize
from system_tests.benchmarks.pipeline.clients import (
    FETCH,
    PROFILES,
    RATES,
    SAMPLES,
    ClientState,
    Floats,
    Ints,
    Traits,
)

ENTITIES: Final = 2_000
BROKERS: Final = 3
PER_HOUR: Final = 2_000_000
START_US: Final = 1_793_606_400_000_000
"""2 November 2026, 8:00 UTC, when the day is as busy as it is on average."""

SKEW: Final = 1.05
CONNECTIONS_MAX: Final = 12
REQUESTS_PER_S_MAX: Final = 4.0
"""Requests a second above which a client opens one more connection."""
QUOTAS: Final = 30
HOUR_US: Final = 3_600_000_000


class Workload(NamedTuple):
    """Size of a workload; ``hours`` of 0 means a rate of ``PER_HOUR`` events."""

    events: int
    seed: int = 1
    hours: float = 0.0
    entities: int = ENTITIES
    brokers: int = BROKERS

    @property
    def lasts_us(self) -> int:
        return int((self.hours or max(self.events / PER_HOUR, 0.01)) * HOUR_US)


class Entity(NamedTuple):
    """A user and a client-id, with unmodified names."""

    user: str
    client: str


class Population(NamedTuple):
    """All entities. A group is an entity at a broker, ordered by broker."""

    entities: list[Entity]
    ips: list[str]
    """Of each connection."""
    traits: Traits


def _entities(count: int, chance: np.random.Generator) -> list[Entity]:
    found: list[Entity] = []
    user = 0
    while len(found) < count:
        name = f"CN=team-{user},O=Acme" if user % 25 == 7 else f"team-{user:03}"
        clients = int(chance.zipf(1.6)) % 40 + 1
        found += [Entity(name, f"app-{each:02}" if each else "") for each in range(clients)]
        user += 1
    return [found[at] for at in chance.permutation(count)]


def population(workload: Workload) -> Population:
    """Return the entities of a workload."""
    chance = np.random.default_rng(workload.seed)
    entities = _entities(workload.entities, chance)
    groups = workload.entities * workload.brokers
    weight = 1.0 / np.arange(1, workload.entities + 1) ** SKEW
    requests_per_s = np.tile(weight / weight.sum(), workload.brokers) * chance.lognormal(
        0, 0.3, groups
    )
    requests_per_s *= workload.events / (workload.lasts_us / 1e6) / requests_per_s.sum()
    connections = np.minimum(np.ceil(requests_per_s / REQUESTS_PER_S_MAX), CONNECTIONS_MAX).astype(
        np.int64
    )
    profile = np.tile(chance.choice(PROFILES, workload.entities, p=[0.45, 0.5, 0.05]), 1)
    profile = np.tile(profile, workload.brokers).astype(np.int64)
    size = np.tile(chance.lognormal(8.0, 1.2, workload.entities), workload.brokers)
    lifetime_us = chance.lognormal(21.5, 1.0, groups)
    lifetime_us[chance.random(groups) < 0.005] = 20e6
    first = np.concatenate([[0], np.cumsum(connections)]).astype(np.int64)
    answers_us = np.where(profile == FETCH, 18_000.0, 400.0)
    traits = Traits(
        first=first,
        profile=profile,
        think_us=np.maximum(connections / requests_per_s * 1e6 - answers_us, 1_000.0),
        size=size,
        lifetime_us=lifetime_us,
        bounds=_bounds(entities, profile, size, requests_per_s),
    )
    hosts = chance.integers(1, 255, (int(first[-1]), 2))
    group_of = np.repeat(np.arange(groups), connections) % workload.entities
    ips = [f"10.{g % 200}.{a % 8}.{b}" for g, (a, b) in zip(group_of, hosts, strict=True)]
    return Population(entities, ips, traits)


def _bounds(entities: list[Entity], profile: Ints, size: Floats, requests_per_s: Floats) -> Floats:
    """Return quotas of the busiest entities with a client-id, below their demand at busy hours."""
    bounds = np.full((len(profile), RATES), np.inf)
    for group in range(len(profile)):
        entity = group % len(entities)
        if entity < QUOTAS and entities[entity].client and profile[group] < 2:
            by_entity = requests_per_s[entity :: len(entities)].mean()
            bounds[group, profile[group]] = round(by_entity * size[group] * 1.5 + 1_000)
            if entity % 3 == 0:
                bounds[group, 2] = round(float(by_entity) * 0.005, 4) + 0.001
    return bounds


def initial_state(workload: Workload, traits: Traits) -> ClientState:
    """The initial state: every connection has been open for a while."""
    chance = np.random.default_rng(workload.seed + 1)
    count, groups = int(traits.first[-1]), len(traits.profile)
    cycle = np.repeat(traits.think_us, np.diff(traits.first))
    lifetime = np.repeat(traits.lifetime_us, np.diff(traits.first))
    rings = np.zeros((groups, RATES, SAMPLES, 3))
    return ClientState(
        next_us=START_US + (chance.random(count) * cycle).astype(np.int64),
        end_us=START_US + (chance.exponential(1.0, count) * lifetime).astype(np.int64),
        turn=np.zeros(count, np.int64),
        rings=rings,
        at=np.zeros((groups, RATES), np.int64),
    )


def quota_lines(found: Population) -> list[str]:
    """The quotas that are in force, a line an entity, as arguments of kafka-configs.sh."""
    keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
    lines = []
    for entity, bounds in zip(found.entities, found.traits.bounds, strict=False):
        configs = [
            f"{key}={bound:g}" if key == keys[2] else f"{key}={int(bound)}"
            for key, bound in zip(keys, bounds, strict=True)
            if np.isfinite(bound)
        ]
        if configs:
            lines.append(_line(entity, ",".join(configs)))
    return lines


def _line(entity: Entity, configs: str) -> str:
    user, client = shlex.quote(entity.user), shlex.quote(entity.client)
    who = f"--entity-type users --entity-name {user} --entity-type clients --entity-name {client}"
    return f"--alter {who} --add-config {configs}"


def encoded(entity: Entity) -> str:
    """The user's name, encoded as in quotas."""
    return sanitize(entity.user)

"""The plan of an attack: rounds of different kinds, chosen by a seed.

Owns which round comes when and with which broker settings; it starts nothing. The invariant: the
same seed and duration give the same plan, and every kind comes once before any comes again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

ROUND_MAX_S: Final = 60.0
ROUND_MIN_S: Final = 15.0

MIB: Final = 1024 * 1024


class Kind(Enum):
    """The subject of a round. Each has several attacks and honest clients at the same time."""

    PROTOCOL = "protocol"
    """Hostile frames, batches and connections, without faults."""
    KILLS = "kills"
    """Processes and whole brokers are killed under load."""
    DISK = "disk"
    """A file system that is full, read-only, broken or torn."""
    DESCRIPTORS = "descriptors"
    """Few descriptors for many connections and partitions."""
    SECURITY = "security"
    """Damaged TLS handshakes and SASL exchanges."""


class Round(NamedTuple):
    number: int
    kind: Kind
    seconds: float
    settings: Mapping[str, str]
    is_clock_frozen: bool
    brokers: int
    seed: str
    """What everything random in this round is made from."""


def plan(seed: int, seconds: float) -> list[Round]:
    """The rounds that fill ``seconds``: at least one of each kind."""
    dice = random.Random(f"plan {seed}")
    kinds = list(Kind)
    each_s = min(ROUND_MAX_S, max(ROUND_MIN_S, seconds / len(kinds)))
    count = max(len(kinds), int(seconds / each_s))
    order: list[Kind] = []
    while len(order) < count:
        dice.shuffle(kinds)
        order += kinds
    return [
        _round(number, kind, each_s, f"{seed}/{number}")
        for number, kind in enumerate(order[:count])
    ]


def _round(number: int, kind: Kind, seconds: float, seed: str) -> Round:
    dice = random.Random(f"round {seed}")
    settings = {
        "process.mode": dice.choice(("combined", "separate")),
        "acceptor.mode": dice.choice(("single", "sharded")),
        "num.network.threads": str(dice.choice((1, 2, 3))),
        "num.io.threads": str(dice.choice((1, 2, 3))),
        "socket.request.max.bytes": str(16 * MIB),
        "queued.max.request.bytes": str(dice.choice((64, 128)) * MIB),
        "offsets.topic.num.partitions": "8",
    }
    if kind is Kind.DISK and dice.random() < 0.5:
        settings["log.flush.interval.messages"] = "1"
    return Round(
        number=number,
        kind=kind,
        seconds=seconds,
        settings=settings,
        is_clock_frozen=kind is Kind.PROTOCOL and dice.random() < 0.3,
        brokers=2 if kind is Kind.KILLS and dice.random() < 0.5 else 1,
        seed=seed,
    )

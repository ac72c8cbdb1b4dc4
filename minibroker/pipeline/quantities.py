"""Names of quotas and levels, their units, and formatted rates.

Owns what all jobs have in common; it must never know an event, or import what only Spark's workers
need. Invariant: amounts are integers in ``UNITS``. The quotas' names are Kafka's configs.
"""

from __future__ import annotations

from typing import Final

from minibroker.pipeline.report import words
from minibroker.quotas.entity import KEYS
from minibroker.quotas.values import CONNECTION_CREATION_RATE

BROKER, USER, CLIENT, USER_AND_CLIENT, IP = "broker", "user", "client", "user+client", "ip"
LEVELS: Final[dict[str, tuple[str, ...]]] = {
    BROKER: (),
    USER: ("user",),
    CLIENT: ("client_id",),
    USER_AND_CLIENT: ("user", "client_id"),
    IP: ("ip",),
}
"""The levels at which usage is aggregated, and the names that identify an entity of each."""
NAMES: Final = ("user", "client_id", "ip")

PRODUCE, FETCH, REQUEST, MUTATION = KEYS
"""The names of the client quotas, in their fixed order."""
QUOTAS: Final = (*KEYS, CONNECTION_CREATION_RATE)
UNITS: Final = {REQUEST: 10_000_000}
"""Nanoseconds in one percent-second; other quantities are counted in their own unit."""


def amount(quota: str, rate: float) -> str:
    """Format a rate of a quota: `1.2 MB/s`, `12 %`, `3 partitions/s`."""
    if quota == REQUEST:
        return f"{words.figure(rate)} %"
    if quota == MUTATION:
        return f"{words.figure(rate)} partitions/s"
    if quota == CONNECTION_CREATION_RATE:
        return f"{words.figure(rate)} connections/s"
    return words.amount(rate, "B/s")

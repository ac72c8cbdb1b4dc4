"""What is counted and for whom: the names of quotas and levels, units, and a rate in words.

Owns what every job says alike; it must never know an event, nor load what Spark's workers need.
Invariant: amounts are whole numbers of ``UNITS``. The quotas' names are Kafka's configs.
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
"""For whom something is counted, and the names that each has."""
NAMES: Final = ("user", "client_id", "ip")

PRODUCE, FETCH, REQUEST, MUTATION = KEYS
"""The names of the quotas in their order."""
QUOTAS: Final = (*KEYS, CONNECTION_CREATION_RATE)
UNITS: Final = {REQUEST: 10_000_000}
"""Nanoseconds in a hundredth of a second; everything else is counted as it is."""


def amount(quota: str, rate: float) -> str:
    """A rate of a quota in words: `1.2 MB/s`, `12 %`, `3 partitions/s`."""
    if quota == REQUEST:
        return f"{words.figure(rate)} %"
    if quota == MUTATION:
        return f"{words.figure(rate)} partitions/s"
    if quota == CONNECTION_CREATION_RATE:
        return f"{words.figure(rate)} connections/s"
    return words.amount(rate, "B/s")

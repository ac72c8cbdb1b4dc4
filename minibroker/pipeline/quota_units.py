"""Names of quotas and levels, their units, and formatted rates.

Owns what all jobs have in common; it must never know an event, or import what only Spark's workers
need. Invariant: amounts are integers in ``UNITS``. The quotas' names are Kafka's configs.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.quotas.types import BY_KEY, CLIENT_QUOTA_KEYS, QuotaType
from minibroker.pipeline.report import formats

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

PRODUCE: Final = QuotaType.PRODUCE.row.config_key
FETCH: Final = QuotaType.FETCH.row.config_key
REQUEST: Final = QuotaType.REQUEST.row.config_key
MUTATION: Final = QuotaType.CONTROLLER_MUTATION.row.config_key
QUOTAS: Final = tuple(BY_KEY)
CHECKS: Final = {
    key: kind.row.check_field for key, kind in CLIENT_QUOTA_KEYS.items() if kind.row.check_field
}
"""The event field that holds the broker's check of each client quota."""
UNITS: Final = {REQUEST: 10_000_000}
"""Nanoseconds in one percent-second; other quantities are counted in their own unit."""


def amount(quota: str, rate: float) -> str:
    """Format a rate of a quota: `1.2 MB/s`, `12 %`, `3 partitions/s`."""
    unit = BY_KEY[quota].row.unit
    return formats.amount(rate, unit) if unit == "B/s" else f"{formats.figure(rate)} {unit}"

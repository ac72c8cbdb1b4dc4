"""Which quotas there are, and which values each can have.

Owns the names and the limits, for whoever sets quotas: the cluster's rules, and the reader of quota
files; it must never know who has one. Invariant: what is refused here, a broker refuses, in the
same words. Echoes the checks of Kafka's ``ClientQuotaControlManager`` and ``QuotaConfigs``, but
that a connection rate of zero, which shuts an address out, is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from minibroker.quotas.entity import KEYS
from minibroker.quotas.manager import INT_MAX
from minibroker.quotas.rate import LONG_MAX

CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
"""The quota of addresses, connections a second."""

WHOLE_KEYS: Final[Mapping[str, int]] = {
    CONNECTION_CREATION_RATE: INT_MAX,
    "producer_byte_rate": LONG_MAX,
    "consumer_byte_rate": LONG_MAX,
}
"""Quotas that are whole numbers, and the largest each can be."""

_FRACTION_MAX: Final = 1e-6
_EXPONENT_FROM: Final = 1e15
_WHOLE_FROM: Final = 100


def is_quota(key: str, *, of_ip: bool) -> bool:
    """Whether an address, or a user or client, can have a quota of this name."""
    return key == CONNECTION_CREATION_RATE if of_ip else key in KEYS


def value_problem(key: str, value: float) -> str | None:
    """Why a quota can't be that much, or None if it can."""
    if key == CONNECTION_CREATION_RATE:
        if not math.isfinite(value) or value < 0:
            return f"Quota {key} must be 0 or more"
    elif not math.isfinite(value) or value <= 0 or value_text(key, value) == "0":
        return f"Quota {key} must be greater than 0"
    largest = WHOLE_KEYS.get(key)
    if largest is None:
        return None
    if value > float(largest):
        kind = "an INT" if largest == INT_MAX else "a LONG"
        return f"Proposed value for {key} is too large for {kind}."
    if abs(value - round(value)) > _FRACTION_MAX:
        return f"{key} cannot be a fractional value."
    return None


def limit_text(value: float) -> str:
    """A limit for people: every digit that was set, and no exponent."""
    return f"{value:.15g}" if value < _EXPONENT_FROM else f"{value:.0f}"


def measured_text(value: float) -> str:
    """A measured value for people: three digits, or all those before the point."""
    return f"{value:.0f}" if abs(value) >= _WHOLE_FROM else f"{value:.3g}"


def value_text(key: str, value: float) -> str:
    """A value as it is kept and as every tool reads it."""
    largest = WHOLE_KEYS.get(key)
    # The largest double that is not above a LONG's maximum is one more than that.
    return repr(float(value)) if largest is None else str(min(round(value), largest))

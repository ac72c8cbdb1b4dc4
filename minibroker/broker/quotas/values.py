"""Checks and formats of quota values.

Owns the rules for values, for the controller and for quota files; it must never know an entity's
quota. Invariant: a value that is rejected here is rejected by a broker with the same message.
Corresponds to Kafka's ``ClientQuotaControlManager`` and ``QuotaConfigs``, except that a connection
rate of 0, which blocks an address, is allowed.
"""

from __future__ import annotations

import math
from typing import Final

from minibroker.broker.quotas.types import BY_KEY, INT_MAX, EntityKind

_FRACTION_MAX: Final = 1e-6
_EXPONENT_FROM: Final = 1e15
_WHOLE_FROM: Final = 100


def is_quota(key: str, *, of_ip: bool) -> bool:
    """Whether an IP address, or otherwise a user or client-id, can have a quota of this name."""
    kind = BY_KEY.get(key)
    return kind is not None and (kind.row.entity_kind is EntityKind.IP) == of_ip


def integer_max(key: str) -> int | None:
    """Return the largest value of a quota that must be an integer, or None for other keys."""
    return BY_KEY[key].row.integer_max if key in BY_KEY else None


def value_problem(key: str, value: float) -> str | None:
    """Return why a value is invalid, or None if it is valid."""
    if key in BY_KEY and BY_KEY[key].row.zero_allowed:
        if not math.isfinite(value) or value < 0:
            return f"Quota {key} must be 0 or more"
    elif not math.isfinite(value) or value <= 0 or value_text(key, value) == "0":
        return f"Quota {key} must be greater than 0"
    largest = integer_max(key)
    if largest is None:
        return None
    if value > float(largest):
        kind = "an INT" if largest == INT_MAX else "a LONG"
        return f"Proposed value for {key} is too large for {kind}."
    if abs(value - round(value)) > _FRACTION_MAX:
        return f"{key} cannot be a fractional value."
    return None


def limit_text(value: float) -> str:
    """Format a quota for display: all digits that were set, and no exponent."""
    return f"{value:.15g}" if value < _EXPONENT_FROM else f"{value:.0f}"


def measured_text(value: float) -> str:
    """Format a measured value for display: three digits, or all integer digits."""
    return f"{value:.0f}" if abs(value) >= _WHOLE_FROM else f"{value:.3g}"


def value_text(key: str, value: float) -> str:
    """Format a value as it is stored and as tools read it."""
    largest = integer_max(key)
    # The double nearest to LONG_MAX is LONG_MAX + 1.
    return repr(float(value)) if largest is None else str(min(round(value), largest))

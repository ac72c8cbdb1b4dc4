"""The table of quota types: each member of ``QuotaType`` is one row; and what values they can have.

Owns everything that differs between the types except how a request's usage is determined, and the
checks and formats of values. It must never know an entity's quota, a request or a store. Invariant:
the order of client quota types is the order of their counters in shared memory, so a new type comes
after those; and a value that is rejected here is rejected by a broker with the same message.
Corresponds to Kafka's ``QuotaConfigs``, ``QuotaType`` and ``ClientQuotaControlManager``, except
that a connection rate of 0, which blocks an address, is allowed.

To add a type, see docs/guides/add-a-quota-type.md.
"""

from __future__ import annotations

import math
from enum import Enum, StrEnum
from typing import Final, NamedTuple

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class EntityKind(Enum):
    """The kind of entities that a quota type can be set for."""

    CLIENT = "users and client-ids"
    IP = "IP addresses"


class Counter(Enum):
    """How the usage of a client quota is measured."""

    RATE = "rate"
    """A rate over a sliding window, as in Kafka's ``ClientQuotaManager``."""
    TOKENS = "tokens"
    """A token bucket, as in Kafka's ``ControllerMutationQuotaManager``."""


class QuotaRow(NamedTuple):
    """The columns of the table."""

    config_key: str
    """The name of the quota in requests, quota files and the store."""
    unit: str
    control_name: str
    """The name in the control API and as ``--type`` of ``minibroker quotas explain``."""
    short_name: str
    """The name in charts."""
    metric: str = ""
    """The gauge that shows the rate; empty for types that are not counted by clients."""
    check_field: str = ""
    """The field of activity events that records the check; empty if none does."""
    entity_kind: EntityKind = EntityKind.CLIENT
    counter: Counter = Counter.RATE
    integer_max: int | None = None
    """The largest value of a quota that must be an integer; None allows fractions."""
    zero_allowed: bool = False
    is_capped: bool = False
    """Whether a throttle lasts at most one quota window."""
    default_setting: str = ""
    """The deprecated broker setting that provides a default, if there is one."""


class QuotaType(StrEnum):
    """A quota type; its value is Kafka's name of the quota manager."""

    row: QuotaRow

    def __new__(cls, name: str, row: QuotaRow) -> QuotaType:
        """Make a member equal to its name, with its row as an attribute."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.row = row
        return member

    PRODUCE = (
        "Produce",
        QuotaRow(
            config_key="producer_byte_rate",
            unit="B/s",
            control_name="produce",
            short_name="produce",
            metric="minibroker_quota_byte_rate",
            check_field="produce",
            integer_max=LONG_MAX,
            default_setting="quota.producer.default",
        ),
    )
    FETCH = (
        "Fetch",
        QuotaRow(
            config_key="consumer_byte_rate",
            unit="B/s",
            control_name="fetch",
            short_name="fetch",
            metric="minibroker_quota_byte_rate",
            check_field="fetch",
            integer_max=LONG_MAX,
            default_setting="quota.consumer.default",
        ),
    )
    REQUEST = (
        "Request",
        QuotaRow(
            config_key="request_percentage",
            unit="%",
            control_name="request",
            short_name="request",
            metric="minibroker_quota_request_time_percent",
            check_field="request",
            is_capped=True,
        ),
    )
    CONTROLLER_MUTATION = (
        "ControllerMutation",
        QuotaRow(
            config_key="controller_mutation_rate",
            unit="partitions/s",
            control_name="controller_mutation",
            short_name="changes",
            metric="minibroker_quota_controller_mutation_rate",
            check_field="mutation",
            counter=Counter.TOKENS,
        ),
    )
    CONNECTION = (
        "Connection",
        QuotaRow(
            config_key="connection_creation_rate",
            unit="connections/s",
            control_name="connection",
            short_name="connect",
            entity_kind=EntityKind.IP,
            integer_max=INT_MAX,
            zero_allowed=True,
        ),
    )


BY_NAME: Final = {str(kind): kind for kind in QuotaType}

BY_KEY: Final = {kind.row.config_key: kind for kind in QuotaType}
"""All quota types by config key."""

CLIENT_QUOTA_TYPES: Final = tuple(
    kind for kind in QuotaType if kind.row.entity_kind is EntityKind.CLIENT
)
"""Quota types of users and client-ids, in the order of their counters."""

CLIENT_QUOTA_KEYS: Final = {kind.row.config_key: kind for kind in CLIENT_QUOTA_TYPES}
"""Quota types of users and client-ids by config key."""

CONNECTION_CREATION_RATE: Final = QuotaType.CONNECTION.row.config_key


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

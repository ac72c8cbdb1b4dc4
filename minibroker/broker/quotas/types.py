"""Quotas: the table of their types, the entities that have them, and the levels of precedence.

Owns everything that differs between the types except how a request's usage is determined (each
member of ``QuotaType`` is one row), the checks and formats of values, the precedence of KIP-55 as
brokers implement it with the deprecated defaults as the last of eight levels, which clients share a
counter, and how names of users and clients are written in paths and labels. It must never know a
rate, a store or a request. Invariants: the order of client quota types is the order of their
counters in shared memory, so a new type comes after those; a value that is rejected here is
rejected by a broker with the same message; the sharing group (the tags) follows from the kinds of
quotas that were ever set, not from those set now, so a counter never changes its group because a
quota was removed. Kafka's ``QuotaConfigs``, ``QuotaType``, ``ClientQuotaControlManager``,
``ClientQuotaManager.DefaultQuotaCallback`` and ``Sanitizer``, except that a connection rate of 0,
which blocks an address, is allowed.

To add a type, see docs/guides/add-a-quota-type.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_plus

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


DEFAULT: Final = "<default>"
"""The default of all entities of a kind; no encoded name is equal to it."""

CLIENTS_OF: Final = "/clients/"
"""Separates user and client in the name of an entity with both."""


CLIENT, USER, USER_AND_CLIENT = 1, 2, 4
"""The kinds of entities for which quotas were ever set, as bits."""


class Entity(NamedTuple):
    """Entity of a quota: encoded names, ``DEFAULT``, or nothing if the kind does not apply."""

    user: str = ""
    client: str = ""

    @property
    def bit(self) -> int:
        """The kind of the entity."""
        if not self.user:
            return CLIENT
        return USER_AND_CLIENT if self.client else USER

    @property
    def path(self) -> str:
        """Path in the config store, below ``/config``."""
        if not self.user:
            return f"clients/{self.client}"
        return f"users/{self.user}" + (f"{CLIENTS_OF}{self.client}" if self.client else "")


class Tags(NamedTuple):
    """A sharing group: the encoded user and the client-id as it came, either may be empty."""

    user: str
    client: str


@dataclass(frozen=True)
class QuotaTable:
    """Quotas in force: bounds by entity for each type, and the defaults of the broker's settings.

    ``kinds`` are the kinds of all entities with quotas, now or in the table that this one was made
    from. A default of None is unlimited.
    """

    bounds: Mapping[QuotaType, Mapping[Entity, float]] = field(default_factory=dict)
    kinds: int = 0
    defaults: Mapping[QuotaType, float] = field(default_factory=dict)

    def bound(self, kind: QuotaType, entity: Entity) -> float | None:
        """Return the quota of the entity itself."""
        return self.bounds.get(kind, _NONE).get(entity)

    def bits(self, kind: QuotaType) -> int:
        """The kinds of entities that have quotas.

        A quota of one type counts for all, as in Kafka with ZooKeeper, but that a default of the
        settings counts for its own.
        """
        return self.kinds | (CLIENT if kind in self.defaults else 0)

    def with_configs(self, changed: Mapping[tuple[str, str], Mapping[str, str]]) -> QuotaTable:
        """Return the table after the configs of some resources, by kind and name, have changed.

        Only quotas in configs of users and clients matter.
        """
        bounds = {kind: dict(self.bounds.get(kind, _NONE)) for kind in CLIENT_QUOTA_TYPES}
        kinds = self.kinds
        for (resource, name), config in changed.items():
            entity = parse_entity(resource, name)
            if entity is None:
                continue
            for key, kind in CLIENT_QUOTA_KEYS.items():
                if key in config:
                    bounds[kind][entity] = _number(config[key])
                    kinds |= entity.bit
                else:
                    bounds[kind].pop(entity, None)
        return QuotaTable(bounds, kinds, self.defaults)


_NONE: Final[Mapping[Entity, float]] = {}

_number: Final = lru_cache(1024)(float)
"""Most of ten thousand users have the quota of some others; they share the number, too."""


class Level(NamedTuple):
    """One of the eight levels at which a quota may be set, and the clients that share it."""

    entity: Entity
    tags: Tags


def sanitize(name: str) -> str:
    """A name as it is written in paths and labels, with Kafka's encoding.

    ``.`` and ``..`` are encoded as well, because they cannot be parts of a path.
    """
    if name in (".", ".."):
        return "%2E" * len(name)
    return quote(name, safe="").replace("~", "%7E")


def desanitize(text: str) -> str:
    """The name behind it; also behind what Java's encoder writes for a space."""
    return unquote_plus(text)


def levels(user: str, client: str) -> tuple[Level, ...]:
    """Where a request's quota may be set, the first place that has one decides.

    ``user`` is encoded, ``client`` as it came.
    """
    encoded = sanitize(client)
    both, of_user, of_client = Tags(user, client), Tags(user, ""), Tags("", client)
    return (
        Level(Entity(user, encoded), both),
        Level(Entity(user, DEFAULT), both),
        Level(Entity(user), of_user),
        Level(Entity(DEFAULT, encoded), both),
        Level(Entity(DEFAULT, DEFAULT), both),
        Level(Entity(DEFAULT), of_user),
        Level(Entity(client=encoded), of_client),
        Level(Entity(client=DEFAULT), of_client),
    )


def sharing_group(table: QuotaTable, kind: QuotaType, bits: int, user: str, client: str) -> Tags:
    """Return the sharing group of a request; ``bits`` are the kinds of quotas ever set."""
    if bits in (0, CLIENT):
        return Tags("", client)
    if bits == USER:
        return Tags(user, "")
    if bits == USER_AND_CLIENT:
        return Tags(user, client)
    for level in levels(user, client):
        if table.bound(kind, level.entity) is not None:
            return level.tags
    return Tags("", client)


def candidates(tags: Tags) -> tuple[Entity, ...]:
    """Return the entities whose quota may apply to a sharing group; the first one with a quota
    decides.

    An entity without a name, such as that of an empty client-id, is none.
    """
    user, client = tags.user, sanitize(tags.client)
    if user and client:
        return tuple(level.entity for level in levels(user, tags.client) if all(level.entity))
    if user:
        return Entity(user), Entity(DEFAULT)
    if client:
        return Entity(client=client), Entity(client=DEFAULT)
    return ()


class Bound(NamedTuple):
    """Quota of a sharing group, and its entity, or None if it is a setting's default."""

    value: float
    entity: Entity | None


def bound_of(table: QuotaTable, kind: QuotaType, tags: Tags) -> Bound | None:
    """The bound of a sharing group; None if it has none."""
    for entity in candidates(tags):
        value = table.bound(kind, entity)
        if value is not None:
            return Bound(value, entity)
    if tags.client and not tags.user and kind in table.defaults:
        return Bound(table.defaults[kind], None)
    return None


def parse_entity(kind: str, name: str) -> Entity | None:
    """The entity that a config of ``users`` or ``clients`` belongs to; None for any other."""
    if kind == "clients":
        return Entity(client=name) if name and "/" not in name else None
    if kind != "users":
        return None
    user, _, client = name.partition(CLIENTS_OF)
    if not user or "/" in user or "/" in client or (CLIENTS_OF in name and not client):
        return None
    return Entity(user, client)

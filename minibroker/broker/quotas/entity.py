"""Entities of quotas: the eight levels of precedence, and which clients share a counter.

Owns the precedence of KIP-55 as brokers implement it, the deprecated defaults as the last level,
and how names of users and clients are written in paths and labels. It must never know a rate, a
store or a request. Invariant: the sharing group (the tags) follows from the kinds of quotas that
were ever set, not from those set now, so a counter never changes its group because a quota was
removed. Kafka's ``ClientQuotaManager.DefaultQuotaCallback`` and ``Sanitizer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_plus

from minibroker.broker.quotas.types import CLIENT_QUOTA_KEYS, CLIENT_QUOTA_TYPES, QuotaType

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

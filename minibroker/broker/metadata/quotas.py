"""Client quotas: which entities may have which, what a filter matches, and which are in force.

Owns the entities of quotas, the validation of their names and values, the match types, and when the
table of quotas is rebuilt, which takes long if there are many. It must never resolve a host or know
a message. Invariants: an accepted quota is matched by the filter that names its entity; an image
that changes no quotas keeps the table. Kafka's ``ClientQuotaControlManager``, ``ClientQuotasImage``
and ``ClientQuotaMetadataManager``, but a connection rate of zero, which rejects all connections of
an address, is allowed.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from minibroker.broker.metadata.image import (
    CLIENT,
    EMPTY,
    IP,
    USER,
    ChangeRejected,
    ConfigChanged,
    Image,
    Plan,
    plan_of,
)
from minibroker.broker.quotas.manager import AnyLedger, ClientQuotaManager
from minibroker.broker.quotas.types import (
    BY_KEY,
    CLIENT_QUOTA_TYPES,
    CLIENTS_OF,
    CONNECTION_CREATION_RATE,
    DEFAULT,
    QuotaTable,
    QuotaType,
    desanitize,
    is_quota,
    parse_entity,
    sanitize,
    value_problem,
    value_text,
)
from minibroker.broker.settings import ACCEPTOR_MODE, SHARDED, SHARDED_ADVICE, Settings
from minibroker.broker.settings.dynamic import DEFAULT_NAME
from minibroker.broker.settings.setting import LONG_MAX
from minibroker_protocol.errors import ErrorCode

IP_TYPE, USER_TYPE, CLIENT_TYPE = "ip", "user", "client-id"
TYPES = (IP_TYPE, USER_TYPE, CLIENT_TYPE)
"""The types of entities that Kafka knows."""

Names = Mapping[str, str | None]
"""An entity: the name for each of its types, None for the default."""


class Match(enum.IntEnum):
    """How a filter's component matches, with Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class Component(NamedTuple):
    """One component of a filter; ``match_type`` is the requested number, which may be invalid."""

    entity_type: str
    match_type: int
    match: str | None = None


class QuotaChange(NamedTuple):
    """Requested changes of one entity: components are (type, name), a default has no name.

    Operations are (key, value), with None to remove it.
    """

    entity: tuple[tuple[str, str | None], ...]
    operations: tuple[tuple[str, float | None], ...]


def plan_quotas(
    image: Image,
    settings: Settings,
    requested: Sequence[QuotaChange],
    unresolvable: Collection[str] = (),
) -> Plan[tuple[ChangeRejected | None, ...]]:
    """Plan changes of entities independently of each other."""
    times = Counter(one.entity for one in requested)
    plans: list[ConfigChanged | ChangeRejected] = []
    for one in requested:
        problem = sharded_problem(settings, one)
        if times[one.entity] > 1:
            problem = "Ignoring duplicate entity"
        if problem is not None:
            plans.append(ChangeRejected(ErrorCode.INVALID_REQUEST, problem))
        else:
            plans.append(plan_change(image, one, unresolvable))
    return plan_of(plans)


def plan_change(
    image: Image, wanted: QuotaChange, unresolvable: Collection[str]
) -> ConfigChanged | ChangeRejected:
    """Return the new config of an entity, or the reason of the rejection.

    ``unresolvable`` are the hosts in it that have no address.
    """
    names = dict(wanted.entity)
    problem = _entity_problem(wanted.entity)
    if problem is None and names.get(IP_TYPE) in unresolvable:
        problem = f"{names[IP_TYPE]} is not a valid IP or resolvable host."
    if problem is not None:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, problem)
    key = config_key(names)
    config = dict(image.configs.get(key, EMPTY))
    seen: set[str] = set()
    for quota, value in wanted.operations:
        problem = _value_problem(names, quota, value)
        if quota in seen:
            problem = f"Duplicate quota key {quota}"
        if problem is not None:
            return ChangeRejected(ErrorCode.INVALID_REQUEST, problem)
        seen.add(quota)
        if value is not None:
            config[quota] = value_text(quota, value)
        elif quota in BY_KEY:
            config.pop(quota, None)
    return ConfigChanged(*key, config)


def sharded_problem(settings: Settings, wanted: QuotaChange) -> str | None:
    """Return why a connection rate would not be enforced, or None if it would be."""
    for quota, value in wanted.operations:
        rate = quota == CONNECTION_CREATION_RATE and value is not None
        if rate and settings[ACCEPTOR_MODE] == SHARDED:
            return f"{quota}: not with {ACCEPTOR_MODE.name}={SHARDED}: {SHARDED_ADVICE}"
    return None


def config_key(names: Names) -> tuple[str, str]:
    """Return the type and name under which the quotas of an entity are stored."""
    if IP_TYPE in names:
        name = names[IP_TYPE]
        return IP, DEFAULT_NAME if name is None else name
    if USER_TYPE not in names:
        return CLIENT, _encoded(names[CLIENT_TYPE])
    user = _encoded(names[USER_TYPE])
    if CLIENT_TYPE not in names:
        return USER, user
    return USER, f"{user}{CLIENTS_OF}{_encoded(names[CLIENT_TYPE])}"


def entity_names(kind: str, name: str) -> Names | None:
    """Return the entity whose quotas are stored under a type and a name, or None."""
    if kind == IP:
        return {IP_TYPE: None if name == DEFAULT_NAME else name}
    entity = parse_entity(kind, name)
    if entity is None:
        return None
    names: dict[str, str | None] = {}
    if entity.user:
        names[USER_TYPE] = _decoded(entity.user)
    if entity.client:
        names[CLIENT_TYPE] = _decoded(entity.client)
    return names


def _encoded(name: str | None) -> str:
    return DEFAULT if name is None else sanitize(name)


def _decoded(text: str) -> str | None:
    return None if text == DEFAULT else desanitize(text)


def _entity_problem(entity: Sequence[tuple[str, str | None]]) -> str | None:
    if not entity:
        return "Invalid empty client quota entity"
    types: set[str] = set()
    for entity_type, name in entity:
        if entity_type in types:
            return f"Invalid client quota entity, duplicate entity entry {entity_type}"
        if entity_type not in TYPES:
            return f"Unhandled client quota entity type: {entity_type}"
        if name == "":
            return f"Empty {entity_type} not supported"
        # An address is its own node; the others are encoded.
        if entity_type == IP_TYPE and name and (name == DEFAULT_NAME or "/" in name):
            return f"The name {name} cannot be that of an entity"
        types.add(entity_type)
    if IP_TYPE in types and len(types) > 1:
        return "Invalid quota entity combination, ip cannot be combined with user or client-id"
    return None


def _value_problem(names: Names, quota: str, value: float | None) -> str | None:
    if value is None:
        return None
    if not is_quota(quota, of_ip=IP_TYPE in names):
        return f"Invalid configuration key {quota}"
    return value_problem(quota, value)


def filter_problem(components: Sequence[Component]) -> ChangeRejected | None:
    """Return why a filter is invalid, or None if it is valid."""
    types: set[str] = set()
    for entity_type, match_type, match in components:
        if not entity_type:
            return ChangeRejected(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if entity_type in types:
            text = f"Entity type {entity_type} cannot appear more than once in the filter."
            return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
        if entity_type not in TYPES:
            text = f"Unsupported entity type {entity_type}"
            return ChangeRejected(ErrorCode.UNSUPPORTED_VERSION, text)
        problem = _match_problem(match_type, match)
        if problem is not None:
            return ChangeRejected(ErrorCode.INVALID_REQUEST, problem)
        types.add(entity_type)
    if IP_TYPE in types and len(types) > 1:
        text = "Invalid entity filter component combination: ip cannot stand with user or client-id"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    return None


def _match_problem(match_type: int, match: str | None) -> str | None:
    if match_type not in list(Match):
        return f"Unknown match type {match_type}"
    if match_type == Match.EXACT and match is None:
        return "Request specified MATCH_TYPE_EXACT, but set match string to null."
    if match_type != Match.EXACT and match is not None:
        name = Match(match_type).name
        return f"Request specified MATCH_TYPE_{name}, but also specified a match string."
    return None


def find(
    image: Image, components: Sequence[Component], *, strict: bool
) -> Iterator[tuple[Names, Mapping[str, float]]]:
    """Return the matching entities in a stable order, with their quotas.

    A strict filter finds the entities that have exactly its types; any other those that have them
    at least, which is everything if it has none.
    """
    for (kind, name), config in sorted(image.configs.items(), key=lambda entry: entry[0]):
        names = entity_names(kind, name)
        if names is None or (strict and len(names) != len(components)):
            continue
        quotas = {quota: float(text) for quota, text in config.items() if quota in BY_KEY}
        if quotas and all(_matches(component, names) for component in components):
            yield names, quotas


def _matches(component: Component, names: Names) -> bool:
    if component.entity_type not in names:
        return False
    name = names[component.entity_type]
    if component.match_type == Match.EXACT:
        return name is not None and component.match == name
    return component.match_type == Match.SPECIFIED or name is None


# ----------------------------------------------------------------------------------- in force


class EffectiveQuotas:
    """Quotas of one process; call `follow` with every new image."""

    def __init__(self, settings: Settings, ledger: AnyLedger) -> None:
        self._configs: Mapping[tuple[str, str], Mapping[str, str]] = {}
        self.quotas = ClientQuotaManager(ledger)
        self.quotas.set_table(QuotaTable(defaults=defaults(settings)))

    def follow(self, image: Image) -> None:
        """Apply the quotas of a new image."""
        before, self._configs = self._configs, image.configs
        if before is self._configs:
            return
        # An unchanged config is the same object in the next image.
        changed = {
            key: config
            for key, config in image.configs.items()
            if key[0] in (USER, CLIENT) and before.get(key) is not config
        }
        changed.update(
            {key: EMPTY for key in before if key[0] in (USER, CLIENT) and key not in image.configs}
        )
        if changed:
            self.quotas.set_table(self.quotas.table.with_configs(changed))


def defaults(settings: Settings) -> dict[QuotaType, float]:
    """Return the default quotas from the settings."""
    settings_given = {
        kind: settings.value_at(kind.row.default_setting, LONG_MAX)
        for kind in CLIENT_QUOTA_TYPES
        if kind.row.default_setting
    }
    return {kind: float(value) for kind, value in settings_given.items() if value < LONG_MAX}

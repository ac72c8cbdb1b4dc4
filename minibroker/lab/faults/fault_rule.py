"""Fault rules: what goes wrong, for which requests or connections, how often, and what it has done.

Owns the selectors of a rule and when it fires, the checks whether a rule makes sense, and the views
of the control API. What goes wrong is an action of ``faults.actions``. It must never count or
decide. Invariant: a rule is plain data, which travels to every process unchanged, and as JSON a
flat object; a rule that is accepted can fire, and a field that would have no effect is rejected by
its name. Kafka has no equivalent; Trogdor's ``TaskSpec`` describes faults of whole nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from minibroker.lab.faults.actions import (
    ACTIONS,
    INT32_MAX,
    TIME_MS_MAX,
    Action,
    Hold,
    api_of,
    nearest,
)
from minibroker.lab.faults.message_fields import comparable, element_faults, element_fields
from minibroker.lab.faults.places import (
    ENTITY_FIELDS,
    NAMESPACE_FIELDS,
    POINTS,
    SELECTORS,
    HoldPoint,
)
from minibroker.lab.namespaces import prefix_of
from minibroker.lab.schema import (
    Doc,
    Fault,
    InvalidJson,
    Length,
    Range,
    Variants,
    to_json,
)
from minibroker_protocol import registry
from minibroker_protocol.entities import selectable
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Struct
from minibroker_protocol.types import uuid_from_text

RULES_MAX: Final = 1000
"""Rules that may be set at the same time."""

TEXT_MAX: Final = 1024
"""Characters of a text in a rule."""

COUNT_MAX: Final = 1_000_000_000
VERSION_MAX: Final = 2**15 - 1
SEED_MAX: Final = 2**53
"""The largest whole number that every JSON library keeps."""

HOLDS_SHOWN_MAX: Final = 100
"""Held requests of one rule that are shown."""

COUNTS: Final = ("first", "nth", "every", "probability")
"""Fields that say which matches fire; a rule has one of them at most."""

WHEN_FIELDS: Final = (*COUNTS, "per", "seed", "after_rule", "after_ms", "until_ms")

COUNTERS_MAX: Final = 10_000
"""Clients, topics or others that a rule counts separately; the one that matched least recently is
forgotten.
"""

CountedPer: TypeAlias = Literal[
    "connection",
    "client_id",
    "principal",
    "address",
    "topic",
    "partition",
    "group",
    "member",
    "transactional_id",
]

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

ServedVersions: TypeAlias = Mapping[int, tuple[int, int]]
"""The lowest and the highest served version of each API."""


class FaultRule(NamedTuple):
    """A fault rule: what goes wrong, for which requests or connections, and how often.

    All selectors must match. A request that does not have a selected field never matches.
    """

    action: Annotated[Action, Variants(ACTIONS), Doc("What goes wrong.")]
    name: Annotated[
        str | None,
        Length(1, 64),
        Doc("The id of the rule: letters, digits, `.`, `_` and `-`. By default a number."),
    ] = None
    api: Annotated[
        str | None, Length(1, 64), Doc("API by name or key, e.g. `Produce`, `PRODUCE` or `0`.")
    ] = None
    version_min: Annotated[
        int | None, Range(0, VERSION_MAX), Doc("Lowest version of the request.")
    ] = None
    version_max: Annotated[
        int | None, Range(0, VERSION_MAX), Doc("Highest version of the request.")
    ] = None
    client_id: Annotated[
        str | None, Length(0, TEXT_MAX), Doc("Client id of the request; `*` matches any text.")
    ] = None
    principal: Annotated[
        str | None, Length(1, TEXT_MAX), Doc("E.g. `User:alice`; `*` matches any text.")
    ] = None
    connection: Annotated[
        int | None, Range(0, SEED_MAX), Doc("Number of the connection, as in `/v1/connections`.")
    ] = None
    address: Annotated[
        str | None, Length(1, 64), Doc("IP address of the client, or a network, `10.0.0.0/8`.")
    ] = None
    listener: Annotated[
        str | None, Length(1, TEXT_MAX), Doc("Name of the listener, e.g. `PLAINTEXT`.")
    ] = None
    correlation_id: Annotated[
        int | None, Range(-INT32_MAX - 1, INT32_MAX), Doc("Correlation id of the request.")
    ] = None
    topic: Annotated[
        str | None,
        Length(1, TEXT_MAX),
        Doc("Topic, also of requests that have its id; `*` matches any text."),
    ] = None
    topic_id: Annotated[str | None, Length(22, 24), Doc("Topic id in Kafka's base64url form.")] = (
        None
    )
    partition: Annotated[int | None, Range(0, INT32_MAX), Doc("Partition index.")] = None
    group: Annotated[str | None, Length(0, TEXT_MAX), Doc("Group id; `*` matches any text.")] = None
    member: Annotated[str | None, Length(0, TEXT_MAX), Doc("Member id; `*` matches any text.")] = (
        None
    )
    transactional_id: Annotated[
        str | None, Length(0, TEXT_MAX), Doc("Transactional id; `*` matches any text.")
    ] = None
    resource: Annotated[
        str | None,
        Length(0, TEXT_MAX),
        Doc("Name of the resource in requests about configs and ACLs; `*` matches any text."),
    ] = None
    namespace: Annotated[
        str | None,
        Length(1, 32),
        Doc(
            "Namespace whose clients know the names of the other selectors, e.g. `topic`; names in "
            "the holds of the rule are theirs, too. `topic=*` selects all its topics."
        ),
    ] = None
    request: Annotated[
        Mapping[str, object] | None,
        Length(1, 100),
        Doc(
            'Fields of the request with Kafka\'s names in snake case, e.g. `{"acks": 1}`, or of '
            "its elements: an entity matches if it and what is around it have these values."
        ),
    ] = None
    first: Annotated[int | None, Range(1, COUNT_MAX), Doc("Fires for the first n matches.")] = None
    nth: Annotated[int | None, Range(1, COUNT_MAX), Doc("Fires for the n-th match only.")] = None
    every: Annotated[int | None, Range(1, COUNT_MAX), Doc("Fires for each n-th match.")] = None
    probability: Annotated[
        float | None, Range(0, 1), Doc("Fires for a match with this probability.")
    ] = None
    per: Annotated[
        CountedPer | None,
        Doc(
            "Matches are counted separately for each of these, e.g. the `first` of each "
            f"`connection`; the last {COUNTERS_MAX} are known. Of several entities of a request "
            "the first one that matches counts."
        ),
    ] = None
    seed: Annotated[
        int | None,
        Range(0, SEED_MAX),
        Doc("Seed for `probability` and random delays; by default 0."),
    ] = None
    after_rule: Annotated[
        str | None,
        Length(1, 64),
        Doc("Matches only requests after one for which this rule has fired, while that is set."),
    ] = None
    after_ms: Annotated[
        int | None,
        Range(0, TIME_MS_MAX),
        Doc("Matches from this time after the rule was added, on the broker's clock."),
    ] = None
    until_ms: Annotated[
        int | None,
        Range(1, TIME_MS_MAX),
        Doc("Matches until this time after the rule was added, on the broker's clock."),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """Its fields as JSON, without those that are not set."""
        return {name: value for name, value in to_json(self).items() if value is not None}

    @property
    def point(self) -> HoldPoint | None:
        """The hold point at which it acts."""
        point = self.action.point if isinstance(self.action, Hold) else None
        return None if point is None else POINTS[point]

    @property
    def is_inside(self) -> bool:
        """Whether it is about something inside of the broker, instead of requests."""
        return self.point is not None and self.point.api is None

    @property
    def is_about_requests(self) -> bool:
        """Whether it is about requests, instead of connections or the inside of the broker."""
        return self.action.matches == "requests" and not self.is_inside

    @property
    def selected_api(self) -> ApiKey | None:
        """The API that it selects, by its name or by a hold point."""
        if self.point is not None:
            return self.point.api
        return None if self.api is None else api_of(self.api)

    @property
    def request_values(self) -> Mapping[str, frozenset[Any]]:
        """The values of fields of the request that it selects by."""
        if not self.request or self.selected_api is None:
            return {}
        cls = registry.schema(self.selected_api).request
        return {name: comparable(cls, name, value) for name, value in self.request.items()}

    @property
    def selects_elements(self) -> bool:
        """Whether it selects some entities of a request and not others."""
        if self.selected_keys:
            return True
        if not self.request or self.selected_api is None:
            return False
        known = element_fields(registry.schema(self.selected_api).request)
        return any(each.arrays for name in self.request for each in known[name])

    @property
    def entity_selectors(self) -> dict[Meaning, Any]:
        """What it selects of entities, with the names that the broker knows."""
        prefix = "" if self.namespace is None else prefix_of(self.namespace)
        found: dict[Meaning, Any] = {}
        for name, key in ENTITY_FIELDS.items():
            value = getattr(self, name)
            if value is not None:
                found[key] = prefix + value if name in NAMESPACE_FIELDS else value
        return found

    @property
    def selected_keys(self) -> frozenset[Meaning]:
        """The keys of the entities that it selects by."""
        return frozenset(self.entity_selectors)


class ActiveRule(NamedTuple):
    """A rule that is set, with its id; it travels to every process."""

    id: str
    rule: FaultRule
    slot: int = -1
    """The place of its counts in the file that processes share; negative if there is none."""
    added: float = 0.0
    """When it was added, in seconds of the broker's clock."""

    @property
    def place(self) -> str:
        """Where in the course of a request it acts."""
        return self.rule.action.place


class FaultHold(NamedTuple):
    """What a rule holds: a request, or something inside of the broker.

    The entity is the first one that the rule matches.
    """

    process: Annotated[str, Doc("The process that waits.")]
    api: Annotated[str | None, Doc("The API of the request.")] = None
    client_id: str | None = None
    connection: Annotated[int | None, Doc("Number of the connection, as in `/v1/connections`.")] = (
        None
    )
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    member: str | None = None
    transactional_id: str | None = None
    resource: str | None = None

    def in_namespace(self, namespace: str) -> FaultHold:
        """The same with the names that clients of a namespace know."""
        names = {name: getattr(self, name) for name in NAMESPACE_FIELDS}
        return self._replace(
            **{
                name: value.removeprefix(prefix_of(namespace))
                for name, value in names.items()
                if value is not None
            }
        )


class FaultView(NamedTuple):
    """A fault rule and what it has done so far."""

    id: Annotated[str, Doc("Its name, or a number.")]
    rule: Annotated[Mapping[str, object], Doc("Its fields, as in `FaultRule`.")]
    matches: Annotated[
        int,
        Doc("Requests or connections that its selectors matched and that it could change."),
    ]
    hits: Annotated[int, Doc("How often it fired, and changed a response or its time.")]
    held: Annotated[int, Doc("How many requests or others it holds now.")]
    holds: Annotated[
        tuple[FaultHold, ...], Doc(f"What it holds, the first {HOLDS_SHOWN_MAX} of them.")
    ]
    age_ms: Annotated[int, Doc("Time since it was added, on the broker's clock.")]


# Checks -------------------------------------------------------------------------------------------


def check_rule(rule: FaultRule, served: ServedVersions) -> None:
    """Raise ``InvalidJson`` with all fields that make no sense; ``served`` are the served APIs."""
    faults = [*_match_faults(rule), *_when_faults(rule), *rule.action.faults(rule.given)]
    faults += _name_faults(rule, served)
    if faults := faults or [*_api_faults(rule, served)]:
        raise InvalidJson(faults)


def _match_faults(rule: FaultRule) -> Iterator[Fault]:
    for name in SELECTORS:
        if getattr(rule, name) is not None and name not in rule.action.selectors:
            yield Fault(name, f"cannot select for the action {rule.action.name}")
    if rule.address is not None and network_of(rule.address) is None:
        yield Fault("address", "must be an IP address or a network")
    if rule.topic_id is not None:
        try:
            uuid_from_text(rule.topic_id)
        except ValueError:
            yield Fault("topic_id", "must be a topic id in base64url")
    if rule.namespace is not None and all(getattr(rule, name) is None for name in NAMESPACE_FIELDS):
        *names, last = NAMESPACE_FIELDS
        yield Fault("namespace", f"has no effect without {', '.join(names)} or {last}")
    if None not in (rule.version_min, rule.version_max) and rule.version_min > rule.version_max:  # type: ignore[operator]
        yield Fault("version_max", "must not be less than version_min")


def _when_faults(rule: FaultRule) -> Iterator[Fault]:
    counts = [name for name in COUNTS if getattr(rule, name) is not None]
    for name in counts[1:]:
        yield Fault(name, f"excludes {counts[0]}")
    if rule.seed is not None and rule.probability is None and not rule.action.is_random:
        yield Fault("seed", "has no effect without probability or jitter_ms")
    if rule.per is not None and not counts:
        yield Fault("per", f"has no effect without {', '.join(COUNTS[:-1])} or {COUNTS[-1]}")
    if rule.per is not None and rule.per not in _counted_apart(rule):
        yield Fault("per", f"{rule.per} is not known where this rule counts")
    if rule.after_rule is not None and rule.action.matches == "appends":
        yield Fault("after_rule", f"has no effect on {rule.action.name}")
    if rule.probability == 0:
        yield Fault("probability", "must be greater than 0, or the rule never fires")
    if rule.until_ms is not None and rule.until_ms <= (rule.after_ms or 0):
        yield Fault("until_ms", "must be greater than after_ms")


def _counted_apart(rule: FaultRule) -> frozenset[str]:
    """By what a rule can count separately."""
    if rule.action.matches == "appends":
        return frozenset()
    if rule.is_inside:
        return frozenset() if rule.point is None else frozenset(rule.point.selectors)
    return frozenset(rule.action.selectors)


def _name_faults(rule: FaultRule, served: ServedVersions) -> Iterator[Fault]:
    if rule.name is not None and not _NAME.fullmatch(rule.name):
        yield Fault("name", "may have letters, digits, `.`, `_` and `-` only")
    if rule.name is not None and rule.name.isdecimal():
        yield Fault("name", "must not be a number: those are ids of rules without a name")
    if rule.api is not None and api_of(rule.api) is None:
        yield Fault("api", f"there is no API {rule.api!r}{nearest(rule.api, ApiKey)}")
    elif rule.api is not None and api_of(rule.api) not in served:
        yield Fault("api", "is not served by this broker")


def _api_faults(rule: FaultRule, served: ServedVersions) -> Iterator[Fault]:
    """Faults of fields whose meaning depends on the API."""
    key = None if rule.api is None else api_of(rule.api)
    if key is None:
        if rule.action.api_reason:
            yield Fault("api", f"is missing: {rule.action.api_reason}")
        for name in ("version_min", "version_max", "request"):
            if getattr(rule, name) is not None:
                yield Fault("api", f"is missing: {name} depends on it")
                return
        return
    low, high = served[key]
    if (rule.version_min or 0) > high:
        yield Fault("version_min", f"{key.name} is served in versions {low} to {high}")
        return
    if rule.version_max is not None and rule.version_max < low:
        yield Fault("version_max", f"{key.name} is served in versions {low} to {high}")
        return
    low = max(low, rule.version_min or 0)
    high = high if rule.version_max is None else min(high, rule.version_max)
    versions = range(low, high + 1)
    faults = [*_selection_faults(rule, key, versions)]
    faults += rule.action.api_faults(registry.schema(key), low, high)
    yield from faults or _effect_faults(rule, key, versions)


def _selection_faults(rule: FaultRule, key: ApiKey, versions: Sequence[int]) -> Iterator[Fault]:
    """Faults of selectors of entities that no selected version has."""
    schema = registry.schema(key)
    messages = [schema.request, *([schema.response] if rule.action.matches_response else [])]
    known, ever = (
        frozenset().union(*(selectable(each, some) for each in messages))
        for some in (versions, None)
    )
    for name, entity in ENTITY_FIELDS.items():
        if getattr(rule, name) is None or entity in known:
            continue
        if entity in ever:
            yield Fault(name, f"requests of {key.name} have no {name} in these versions")
        else:
            yield Fault(name, f"requests of {key.name} have no {name}")
    if rule.request is not None:
        yield from _field_faults(rule.request, schema.request, versions)


def _field_faults(
    fields: Mapping[str, object], cls: type[Struct], versions: Sequence[int]
) -> Iterator[Fault]:
    """Faults of fields of requests that a rule selects by."""
    faults = [*element_faults(cls, fields, "request")]
    yield from faults
    for name in {} if faults else fields:
        known = element_fields(cls)[name]
        if all(isinstance(each.field.kind, Array | type) for each in known):
            yield Fault(f"request.{name}", "is no single value")
        elif not any(version in each.versions() for each in known for version in versions):
            yield Fault(f"request.{name}", "is in no request of these versions")


def _effect_faults(rule: FaultRule, key: ApiKey, versions: Sequence[int]) -> Iterator[Fault]:
    """The fault of a rule that can change nothing in any selected version."""
    schema = registry.schema(key)
    faults = [rule.action.effect_fault(schema, version) for version in versions]
    if faults[-1] is not None and all(faults):
        yield faults[-1]


@lru_cache(RULES_MAX)
def network_of(text: str) -> IPv4Network | IPv6Network | None:
    """Return the network of an address or of a network."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def is_in_network(address: str, text: str) -> bool:
    """Whether an address is in the network of a selector."""
    network = network_of(text)
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return network is not None and found.version == network.version and found in network

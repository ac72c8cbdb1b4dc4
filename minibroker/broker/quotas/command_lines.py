"""Quotas in the words of kafka-configs.sh: command lines, and files of them with reasons.

Owns the pairing of entity types with names, the checks between options, the syntax of
``--add-config``, and the format of quota files: every line that is neither blank nor a comment
contains the arguments of one alteration, quoted as for a shell, with the reason above it, so that
Kafka's own tool can process the file line by line. It must never open a file, contact a broker or
resolve a host. Invariants: parsed arguments have one entity type, or users with clients, and at
most one name for each; a default's name is empty; a broker accepts what `parse` returns, and
`parse` and Kafka's tool read the same from what `render` writes. The option checks of Kafka's
``ConfigCommand``.
"""

from __future__ import annotations

import ipaddress
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NamedTuple

from minibroker.broker.quotas.types import (
    BY_KEY,
    CLIENT_QUOTA_KEYS,
    CONNECTION_CREATION_RATE,
    DEFAULT,
    Entity,
    QuotaTable,
    is_quota,
    sanitize,
    value_problem,
    value_text,
)

TOPICS, CLIENTS, USERS, BROKERS, IPS = "topics", "clients", "users", "brokers", "ips"
CLIENT_METRICS, GROUPS = "client-metrics", "groups"
TYPES: Final = (TOPICS, CLIENTS, USERS, BROKERS, IPS, CLIENT_METRICS, GROUPS)
"""In the order in which short options count, whatever their order on the command line."""

QUOTA_TYPES: Final = {IPS: "ip", USERS: "user", CLIENTS: "client-id"}
"""Types that can have quotas, and the protocol's names for them."""

DEFAULTS: Final = (CLIENTS, USERS, BROKERS, IPS)
"""Types that have a default entity."""

_BRACKET: Final = re.compile(r"[\[\]]")


class ArgumentMistake(ValueError):
    """Arguments that contradict each other, or that no config can have."""


class Entities(NamedTuple):
    """The entity types of a command line, and their names as far as they were given."""

    types: tuple[str, ...]
    names: tuple[str, ...]


def from_long_options(given: Iterable[tuple[str, str]]) -> Entities:
    """From ``--entity-type``, ``--entity-name`` and ``--entity-default`` in their order.

    Takes pairs of option and value; names belong to types by their place among the names, and may
    stand before them.
    """
    types, names = [], []
    for option, value in given:
        if option == "entity_type":
            types.append(value)
        else:
            names.append(value if option == "entity_name" else "")
    return Entities(tuple(types), tuple(names))


def from_short_options(named: dict[str, str | None], defaults: dict[str, bool]) -> Entities:
    """From options such as ``--ip 1.2.3.4`` and ``--broker-defaults``, by entity type."""
    by_name = [(kind, name) for kind in TYPES if (name := named.get(kind)) is not None]
    by_default = [(kind, "") for kind in DEFAULTS if defaults.get(kind)]
    pairs = by_name + by_default
    return Entities(tuple(kind for kind, _ in pairs), tuple(name for _, name in pairs))


def chosen(long: Entities, short: Entities, *, alter: bool) -> Entities:
    """The one form that was used; `ArgumentMistake` for both, none, or what cannot go together."""
    if any(long) and any(short):
        raise ArgumentMistake(
            "--entity-{type,name,default} should not be used in conjunction with specific entity "
            "flags"
        )
    found = long if any(long) else short
    types, names = found
    if not types:
        raise ArgumentMistake("At least one entity type must be specified")
    for kind in types:
        if kind not in TYPES:
            raise ArgumentMistake(
                f"Invalid entity type {kind}, the entity type must be one of {', '.join(TYPES)}"
            )
    if len(set(types)) < len(types):
        raise ArgumentMistake(f"Duplicate entity type(s) specified: {', '.join(types)}")
    if len(types) > 1 and set(types) != {USERS, CLIENTS}:
        raise ArgumentMistake(
            f"Only '{USERS}' and '{CLIENTS}' entity types may be specified together"
        )
    if len(names) > len(types):
        raise ArgumentMistake("More entity names specified than entity types")
    if alter:
        # A name that is left out means the default, as it did before there were options for it.
        found = Entities(types, names + ("",) * (len(types) - len(names)))
    for kind, name in zip(types, found.names, strict=False):
        _check_name(kind, name)
    return found


def _check_name(kind: str, name: str) -> None:
    if not name:
        if kind not in DEFAULTS:
            raise ArgumentMistake(f"An entity name must be specified with {kind}")
    elif kind == BROKERS and not re.fullmatch(r"-?[0-9]+", name):
        raise ArgumentMistake(
            f"The entity name for {kind} must be a valid integer broker id, but it is: {name}"
        )


def parse_additions(text: str) -> dict[str, str]:
    """``k1=v1,k2=[v1,v2],k3=v3`` taken apart; brackets keep commas together."""
    pairs = [_split_outside_lists(entry, "=") for entry in _split_outside_lists(text, ",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ArgumentMistake(
            f"--add-config {text}: all configs to be added must be in the format key=val"
        )
    return {name.strip(): _BRACKET.sub("", value).strip() for name, value in pairs}


def _split_outside_lists(text: str, separator: str) -> list[str]:
    """Split at separators outside of square brackets, in one pass from the end.

    As for Kafka's ``ConfigCommand``, a separator is in brackets if the next bracket closes.
    """
    first, *parts = text.split(separator)
    entries: list[str] = []
    entry: list[str] = []
    next_bracket = ""
    for part in reversed(parts):
        entry.append(part)
        bracket = _BRACKET.search(part)
        if bracket is not None:
            next_bracket = bracket[0]
        if next_bracket != "]":
            entries.append(separator.join(reversed(entry)))
            entry = []
    return [separator.join([first, *reversed(entry)]), *reversed(entries)]


def parse_deletions(texts: Sequence[str]) -> list[str]:
    """``k1,k2`` taken apart."""
    return [name.strip() for text in texts for name in text.split(",")]


def check_keys(names: Iterable[str]) -> None:
    """`ArgumentMistake` for a name that none can be."""
    for name in names:
        if not re.fullmatch(r"[a-zA-Z0-9._-]*", name):
            raise ArgumentMistake(f"Invalid character found for config key: {name}")


def parse_quota(key: str, text: str) -> float:
    """Parse a quota's value. Raises `ArgumentMistake` if it is not a number."""
    try:
        value = math.nan if "_" in text else float(text)  # Java knows no such digits
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ArgumentMistake(f"Cannot parse quota configuration value for {key}: {text}")
    return value


def quota_text(value: float) -> str:
    """A quota as Java writes a double: ``100.0``, from ten million on ``1.0E7``."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(Decimal(repr(float(value))), "f")
    sign, digits, exponent = Decimal(repr(float(value))).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, *rest = map(str, digits)
    mark = "-" if sign else ""
    return f"{mark}{first}.{''.join(rest) or '0'}E{exponent + len(rest)}"


KINDS: Final = (USERS, CLIENTS, IPS)
"""The types of entities that have quotas."""

_SHORT: Final = {"--user": USERS, "--client": CLIENTS, "--ip": IPS}
_SHORT_DEFAULTS: Final = {f"{option}-defaults": kind for option, kind in _SHORT.items()}
_LONG: Final = {"--entity-type": "entity_type", "--entity-name": "entity_name"}
_WITH_VALUE: Final = {*_SHORT, *_LONG, "--add-config", "--delete-config"}
_FLAGS: Final = {*_SHORT_DEFAULTS, "--entity-default", "--alter"}
_ELSEWHERE: Final = {
    "--bootstrap-server": "pass it to the command that applies the file",
    "--command-config": "pass it to the command that applies the file",
    "--zookeeper": "pass it to the command that applies the file",
    "--add-config-file": "write its contents here, with --add-config",
    "--describe": "a quota file can only alter quotas",
}


class QuotaFileError(ValueError):
    """An invalid line; the message contains the file, the line, the error and its correction."""


class QuotaLine(NamedTuple):
    """Quotas that one entity gets and loses, and the reason if there is one; a default's name is
    empty.
    """

    entities: Entities
    additions: Mapping[str, float]
    deletions: tuple[str, ...] = ()
    reason: tuple[str, ...] = ()
    number: int = 0

    @property
    def is_of_ips(self) -> bool:
        """Whether it is about addresses, not about users and clients."""
        return self.entities.types == (IPS,)

    @property
    def entity(self) -> Entity:
        """Entity of these quotas; not for addresses."""
        assert not self.is_of_ips
        names = dict(zip(*self.entities, strict=True))
        user, client = (
            "" if kind not in names else sanitize(names[kind]) or DEFAULT
            for kind in (USERS, CLIENTS)
        )
        return Entity(user, client)

    @property
    def who(self) -> str:
        """The entity in words."""
        pairs = zip(*self.entities, strict=True)
        return ", ".join(
            f"{kind.removesuffix('s')} {name}" if name else f"the default of {kind}"
            for kind, name in pairs
        )


class IpRates(NamedTuple):
    """Connections a second: of addresses, and of each of all others, None for any number."""

    by_ip: Mapping[str, float]
    default: float | None


@dataclass(frozen=True)
class QuotaFile:
    """The lines of a file, or of standard input for ``name``."""

    name: str
    lines: tuple[QuotaLine, ...]

    def table(self, before: QuotaTable | None = None) -> QuotaTable:
        """The broker's table of users' and clients' quotas after all lines, none before."""
        before = before or QuotaTable()
        configs: dict[Entity, dict[str, str]] = {}
        for line in self.lines:
            if line.is_of_ips:
                continue
            config = configs.get(line.entity)
            if config is None:
                config = configs[line.entity] = dict(_config(before, line.entity))
            config.update({key: value_text(key, at) for key, at in line.additions.items()})
            for key in line.deletions:
                config.pop(key, None)
        return before.with_configs(
            {_resource(entity): config for entity, config in configs.items()}
        )

    def ip_rates(self, before: IpRates | None = None) -> IpRates:
        """The rates of addresses after all lines; `QuotaFileError` for the name of a host."""
        rates = dict(before.by_ip) if before else {}
        default = before.default if before else None
        for line in self.lines:
            if not line.is_of_ips:
                continue
            rate = line.additions.get(CONNECTION_CREATION_RATE)
            name = line.entities.names[0]
            if not name:
                default = rate
            elif rate is None:
                rates.pop(self._address(line), None)
            else:
                rates[self._address(line)] = rate
        return IpRates(rates, default)

    def _address(self, line: QuotaLine) -> str:
        name = line.entities.names[0]
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            raise QuotaFileError(
                f"{self.name}:{line.number}: {name} is not an IP address, and host names are only "
                "resolved by a broker: write the address"
            ) from None
        return str(getattr(address, "ipv4_mapped", None) or address)


def _config(table: QuotaTable, entity: Entity) -> Iterator[tuple[str, str]]:
    for key, kind in CLIENT_QUOTA_KEYS.items():
        bound = table.bound(kind, entity)
        if bound is not None:
            yield key, value_text(key, bound)


def _resource(entity: Entity) -> tuple[str, str]:
    kind, _, name = entity.path.partition("/")
    return kind, name


# Reading -------------------------------------------------------------------------------------


def parse(text: str, name: str) -> QuotaFile:
    """The quotas in the text of a file; `QuotaFileError` at its first mistake."""
    lines: list[QuotaLine] = []
    reason: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#"):
            reason.append(line[1:].strip())
        elif not line.strip():
            reason.clear()
        else:
            try:
                entities, additions, deletions = _alteration(line)
            except ArgumentMistake as mistake:
                raise QuotaFileError(f"{name}:{number}: {mistake}") from None
            lines.append(QuotaLine(entities, additions, deletions, tuple(reason), number))
            reason.clear()
    return QuotaFile(name, tuple(lines))


def _alteration(line: str) -> tuple[Entities, dict[str, float], tuple[str, ...]]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ArgumentMistake(
            f"{error}: quote a name as '…', and a quote within it as '\"'\"'"
        ) from None
    given = list(_options(words))
    options = {option for option, _ in given}
    if "--alter" not in options:
        raise ArgumentMistake(
            "--alter is missing: each line contains the arguments of kafka-configs.sh --alter"
        )
    entities = _entities(given)
    texts = [value for option, value in given if option == "--add-config"]
    if len(texts) > 1:
        raise ArgumentMistake("--add-config is given twice: write k=v,k=v, or two lines")
    additions = parse_additions(texts[0]) if texts else {}
    deletions = parse_deletions([value for option, value in given if option == "--delete-config"])
    if not additions and not deletions:
        raise ArgumentMistake("--add-config or --delete-config is missing")
    return entities, _values(entities, additions, deletions), tuple(deletions)


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs of option and value; a flag's value is empty."""
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option in _WITH_VALUE:
            found = value if equals else next(rest, None)
            if found is None:
                raise ArgumentMistake(f"{option} needs a value")
            yield option, found
        elif word in _FLAGS:
            yield word, ""
        elif not word.startswith("-"):
            raise ArgumentMistake(
                f"{word!r} belongs to no option: quote values that contain spaces"
            )
        else:
            why = _ELSEWHERE.get(option, f"use {', '.join(sorted(_WITH_VALUE | _FLAGS))}")
            raise ArgumentMistake(f"{option} is not allowed in a quota file: {why}")


def _entities(given: list[tuple[str, str]]) -> Entities:
    long = [(_LONG.get(option, "entity_default"), value) for option, value in given
            if option in _LONG or option == "--entity-default"]  # fmt: skip
    named = [(_SHORT[option], value) for option, value in given if option in _SHORT]
    defaults = [_SHORT_DEFAULTS[option] for option, _ in given if option in _SHORT_DEFAULTS]
    for kind in KINDS:
        if [kind for kind, _ in named].count(kind) > 1:
            raise ArgumentMistake(f"more than one of the {kind} is named: write a line for each")
    short = from_short_options(dict(named), dict.fromkeys(defaults, True))
    entities = chosen(from_long_options(long), short, alter=False)
    for kind in entities.types:
        if kind not in KINDS:
            raise ArgumentMistake(f"{kind} cannot have quotas: use {', '.join(KINDS)}")
    if len(entities.names) < len(entities.types):
        raise ArgumentMistake(
            "an entity type has no name: add --entity-name NAME or --entity-default for each type"
        )
    return entities


def _values(
    entities: Entities, additions: Mapping[str, str], deletions: Iterable[str]
) -> dict[str, float]:
    of_ips = entities.types == (IPS,)
    known = ", ".join(key for key in BY_KEY if is_quota(key, of_ip=of_ips))
    for key in (*additions, *deletions):
        if not is_quota(key, of_ip=of_ips):
            raise ArgumentMistake(
                f"{key} is not a quota of {' and '.join(entities.types)}: use {known}"
            )
    values = {key: parse_quota(key, text) for key, text in additions.items()}
    for key, value in values.items():
        problem = value_problem(key, value)
        if problem is not None:
            raise ArgumentMistake(f"{key}={additions[key]}: {problem.rstrip('.')}")
    both = [key for key in deletions if key in additions]
    if both:
        raise ArgumentMistake(f"{both[0]} is both added and deleted: remove one of the two")
    return values


# Writing -------------------------------------------------------------------------------------


def can_be_written(name: str) -> bool:
    """Whether a line can hold a name: an empty one means the default, and a line has one line."""
    return bool(name) and not any(mark in name for mark in "\n\r\0")


def render(lines: Iterable[QuotaLine], head: Iterable[str] = ()) -> str:
    """Return the text of a file; ``head`` is its first comment."""
    parts = ["".join(f"# {text}\n" for text in head)]
    parts += ["".join(f"# {text}\n" for text in line.reason) + _arguments(line) for line in lines]
    return "\n".join(part for part in parts if part)


def _arguments(line: QuotaLine) -> str:
    words = ["--alter"]
    for kind, name in zip(*line.entities, strict=True):
        assert not name or can_be_written(name), name
        words += ["--entity-type", kind]
        if not name:
            words.append("--entity-default")
        elif name.startswith("-"):
            words.append(f"--entity-name={shlex.quote(name)}")
        else:
            words += ["--entity-name", shlex.quote(name)]
    if line.additions:
        pairs = (f"{key}={value_text(key, value)}" for key, value in line.additions.items())
        words += ["--add-config", ",".join(pairs)]
    if line.deletions:
        words += ["--delete-config", ",".join(line.deletions)]
    return " ".join(words) + "\n"

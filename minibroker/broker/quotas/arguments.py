"""Entities and operations in quota command lines, by the rules of kafka-configs.sh.

Owns the pairing of entity types with names, the checks between options, and the syntax of
``--add-config``, on a command line and in the lines of a quota file. It must never contact a broker
or resolve a host. Invariant: the result has one entity type, or users with clients, and at most one
name for each; a default's name is empty. The option checks of Kafka's ``ConfigCommand``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

TOPICS, CLIENTS, USERS, BROKERS, IPS = "topics", "clients", "users", "brokers", "ips"
TYPES: Final = (TOPICS, CLIENTS, USERS, BROKERS, IPS)
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

"""The validity rules of an activity event, and the reasons for rejecting one.

Owns the definition of a malformed event, in plain Python, one event at a time; it must never know
where events come from or how fast they must be read. Invariant: any bytes yield either an event
with the schema's fields or a readable reason. The compiled reader in ``columns`` accepts only what
is accepted here; tests verify that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from minibroker.activity.schema import (
    CHECK_FIELDS,
    FIELDS,
    VERSION,
    ActivityField,
    ActivityKind,
    ActivityType,
)

REASON_MAX: Final = 300
"""Characters of a reason, which quotes the input."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

IDENTITY: Final = frozenset({"user", "client_id", "api_key", "happened", "dropped"})
"""Fields that are required for their kind of event, because it is filed by them."""
SIGNED: Final = frozenset({"broker", "error_code", "clock_ms", "late_clock_ms", "rate"})
"""Numbers that may be negative."""


def needed(field: ActivityField, kind: ActivityKind) -> bool:
    """Whether an event of ``kind`` must have ``field``."""
    return kind in field.kinds and (not field.may_lack or field.name in IDENTITY)


_NAMED: Final = {field.name: field for field in FIELDS}
_CHECKS: Final = {field.name: field for field in CHECK_FIELDS}
_NEEDED: Final = {
    kind: [field.name for field in FIELDS if needed(field, kind)] for kind in ActivityKind
}
_CHECK_NEEDED: Final = [field.name for field in CHECK_FIELDS if not field.may_lack]


class MalformedEvent(Exception):
    """The input is no event of this version; the text says why."""


def parse_event(raw: bytes | None) -> dict[str, Any]:
    """The event in ``raw``. Raises Malformed."""
    if raw is None:
        raise MalformedEvent("it has no value")
    try:
        found = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise MalformedEvent(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise MalformedEvent(_short(f"not JSON: {error}")) from error
    if not isinstance(found, dict):
        raise MalformedEvent(_short(f"not a JSON object but {json.dumps(found)}"))
    if found.get("version") != VERSION or not _whole(found["version"]):
        has = json.dumps(found["version"]) if "version" in found else "missing"
        raise MalformedEvent(_short(f"version is {has}, but only {VERSION} is supported"))
    _check_fields(found, _NAMED, "")
    try:
        kind = ActivityKind(found.get("kind") or "")
    except ValueError:
        raise MalformedEvent(_short(f"kind {json.dumps(found.get('kind'))} is unknown")) from None
    _check_there(found, _NEEDED[kind], "")
    return found


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"`{name}` is given twice")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _check_there(found: Mapping[str, Any], names: Iterable[str], prefix: str) -> None:
    for name in names:
        if found.get(name) is None:
            raise MalformedEvent(f"field `{prefix}{name}` is missing")


def _check_fields(found: dict[str, Any], known: Mapping[str, ActivityField], prefix: str) -> None:
    for name, value in found.items():
        field = known.get(name)
        if field is None:
            raise MalformedEvent(_short(f"version {VERSION} has no field `{prefix}{name}`"))
        if value is not None:
            _check_value(field, value, prefix)
            if field.type is ActivityType.DOUBLE:
                found[name] = float(value)  # JSON may spell it as a whole number.


def _check_value(field: ActivityField, value: Any, prefix: str) -> None:
    if not _fits(field.type, value):
        raise MalformedEvent(
            _short(
                f"field `{prefix}{field.name}` is of type {field.type.value}, not"
                f" {json.dumps(value)}"
            )
        )
    if field.type is ActivityType.CHECK:
        _check_fields(value, _CHECKS, f"{field.name}.")
        _check_there(value, _CHECK_NEEDED, f"{field.name}.")
    elif field.type in _NUMBERS and value < 0 and field.name not in SIGNED:
        raise MalformedEvent(f"field `{prefix}{field.name}` is negative: {value}")


_NUMBERS: Final = frozenset({ActivityType.INT, ActivityType.LONG, ActivityType.DOUBLE})


def _fits(kind: ActivityType, value: Any) -> bool:
    if kind is ActivityType.TEXT:
        return isinstance(value, str) and _encodable(value)
    if kind is ActivityType.FLAG:
        return isinstance(value, bool)
    if kind is ActivityType.CHECK:
        return isinstance(value, dict)
    if kind is ActivityType.DOUBLE:
        return isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
    most = INT_MAX if kind is ActivityType.INT else LONG_MAX
    return _whole(value) and -most - 1 <= value <= most


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _encodable(value: str) -> bool:
    """Whether the string is valid Unicode: JSON can spell half of a surrogate pair."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _short(text: str) -> str:
    printable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return printable if len(printable) <= REASON_MAX else printable[: REASON_MAX - 1] + "…"

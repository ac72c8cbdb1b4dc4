"""Times and durations on the command line.

Owns their syntax. It must never read a clock: callers subtract a duration from their own.
Invariant: a time without a zone is in UTC, as in Kafka's ``--to-datetime``, so a script means the
same on every machine. Kafka's ``--by-duration`` takes ISO 8601 only.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from minibroker.cli.output import InvalidUsage

UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
EPOCH_MS_FROM: Final = 10_000
"""Digits alone from here on are milliseconds since 1970; up to here they are a year."""

_PARTS: Final = re.compile(r"(?:\d{1,9}(?:ms|s|m|h|d))+")
_PART: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_ISO: Final = re.compile(
    r"P(?:(?P<d>\d{1,6})D)?(?:T(?:(?P<h>\d{1,6})H)?(?:(?P<m>\d{1,6})M)?(?:(?P<s>\d{1,6})S)?)?"
)


def parse_duration_ms(text: str) -> int | None:
    """Parse ``90s``, ``1h30m`` or ISO 8601's ``PT1H30M``; None if it is neither."""
    if _PARTS.fullmatch(text):
        return sum(int(count) * UNITS_MS[unit] for count, unit in _PART.findall(text))
    found = _ISO.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    return sum(int(count) * UNITS_MS[unit] for unit, count in found.groupdict("0").items())


def read_duration_ms(option: str, text: str) -> int:
    """Parse the duration of an option. Raises `InvalidUsage`."""
    found = parse_duration_ms(text)
    if found is None:
        raise InvalidUsage(f"{option} {text}: must be a duration, e.g. 90s, 1h30m or PT1H30M")
    return found


def read_time_ms(option: str, text: str, alternative: str = "") -> int:
    """Parse a time as milliseconds since 1970: ISO 8601, or these. Raises `InvalidUsage`.

    ``alternative`` is what else the option takes.
    """
    if text.isdecimal() and int(text) >= EPOCH_MS_FROM:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidUsage(
            f"{option} {text}: must be a time, e.g. 2026-11-28T09:30:00, which is in UTC, "
            "2026-11-28T09:30:00+01:00, or milliseconds since 1970"
            f"{alternative}"
        ) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)

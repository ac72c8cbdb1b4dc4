"""Formats figures and names as text, consistently on the page and in plots.

Owns units, rounding and the conversion of client-supplied names to printable text; it must never
know HTML, which the page's template escapes by itself. Invariant: a name becomes one line of
visible characters, no longer than requested; a client-id may be any string of up to 32,767 bytes.
Kafka has no counterpart.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Final

LABEL_MAX: Final = 28
"""Characters of a short label; longer names lose their middle."""

NAME_MAX: Final = 200
"""Characters of a full name."""

_PREFIXES: Final = ("", "k", "M", "G", "T", "P")


def scale(largest: float) -> tuple[float, str]:
    """The divisor for figures up to ``largest``, and the prefix of their unit."""
    power = 0
    while power < len(_PREFIXES) - 1 and largest >= 1000 ** (power + 1):
        power += 1
    return float(1000**power), _PREFIXES[power]


def figure(number: float) -> str:
    """At least three significant digits: `0.123`, `12.3`, `1,234`."""
    if number == 0:
        return "0"
    size = abs(number)
    if size < 0.001:
        return "< 0.001" if number > 0 else "> -0.001"
    places = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    text = f"{number:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def amount(number: float, unit: str) -> str:
    """`1.2 MB`, `340 kB/s`, `0 B`."""
    by, prefix = scale(abs(number))
    return f"{figure(number / by)} {prefix}{unit}"


def count(number: float) -> str:
    """`12,345`, `1.23 million`."""
    if abs(number) < 1_000_000:
        return f"{round(number):,}"
    if abs(number) < 1_000_000_000:
        return f"{figure(number / 1e6)} million"
    return f"{figure(number / 1e9)} billion"


def many(number: float, one: str, more: str = "") -> str:
    """`1 broker`, `12 brokers`."""
    return f"{count(number)} {one if number == 1 else more or one + 's'}"


def share(part: float) -> str:
    """`12 %`, `0.4 %`, `0.05 %`, `< 0.01 %` of a fraction of 1."""
    percent = part * 100
    if percent == 0:
        return "0 %"
    if percent < 0.095:
        return f"{percent:.2f} %" if percent >= 0.0095 else "< 0.01 %"
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:,.0f} %"


def duration(ms: float) -> str:
    """`0.4 ms`, `40 ms`, `1.2 s`, `1 min`, `2 h 1 min`, `4 d 3 h`."""
    if ms < 999.5:
        return f"{figure(ms)} ms"
    if ms < 59_950:
        return f"{figure(ms / 1000)} s"
    seconds = round(ms / 1000)
    for size, unit, smaller, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= size:
            return _parts(seconds // size, unit, seconds % size // smaller, name)
    return _parts(seconds // 60, "min", seconds % 60, "s")


def _parts(whole: int, unit: str, rest: int, smaller: str) -> str:
    return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"


def moment(us: int) -> str:
    """`2026-11-20 14:05:06`, in UTC."""
    return _utc(us).strftime("%Y-%m-%d %H:%M:%S")


def period(first_us: int, last_us: int) -> str:
    """The first and last time; the day is written once if it is the same."""
    first, last = moment(first_us), moment(last_us)
    same_day = first[:10] == last[:10]
    return f"{first} to {last[11:] if same_day else last} UTC"


def _utc(us: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)


def visible(name: str, most: int = NAME_MAX) -> str:
    """``name`` with invisible characters escaped, and its middle cut to fit ``most`` characters."""
    shown = "".join(
        each if each.isprintable() and each not in _UNSEEN else _escaped(each)
        for each in _ends(name, most)
    )
    return _cut(shown, most)


_UNSEEN: Final = frozenset("\u00ad\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")
"""Characters that Python considers printable, but that are invisible."""


def _escaped(each: str) -> str:
    return f"\\x{ord(each):02x}" if ord(each) < 256 else f"\\u{ord(each):04x}"


def _ends(name: str, most: int) -> str:
    """The part of a long name that could be shown, which limits the cost of escaping."""
    return name if len(name) <= 2 * most else name[:most] + name[-most:]


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    tail = (most - 1) // 3
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


def party(user: str | None, client_id: str | None) -> str:
    """The client: `alice / etl`, `alice`, or the client-id alone for anonymous users."""
    names = [name for name in (user, client_id) if name]
    if len(names) == 2 and user == ANONYMOUS:
        names = names[1:]
    return " / ".join(names) or "(no name)"


def entity(user: str, client_id: str) -> str:
    """The entity of a quota: `user alice, client etl`, `client etl`."""
    named = (("user", user), ("client", client_id))
    return ", ".join(f"{kind} {name}" for kind, name in named if name)


ANONYMOUS: Final = "ANONYMOUS"
"""The user of all connections without authentication."""


def labels(names: Iterable[str], most: int = LABEL_MAX) -> list[str]:
    """Short and distinct labels for distinct ``names``."""
    found: dict[str, None] = {}
    for name in names:
        label = visible(name, most)
        number = 1
        while (unique := label if number == 1 else f"{label} ({number})") in found:
            number += 1
        found[unique] = None
    return list(found)

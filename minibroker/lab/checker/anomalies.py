"""The table of anomalies: names, definitions, and when each is allowed.

Owns the names, which users and scripts rely on. It must never search for an anomaly. Invariant: a
row is allowed by the settings of the history alone. The names and definitions are those of Jepsen's
Kafka workload; ``phantom-read`` is added, for values that no operation sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from minibroker.lab.checker.history import Consumers, HistorySettings, IsolationLevel

Allowed = Callable[[HistorySettings], bool]


LISTED_MAX: Final = 8
"""Values, and steps of a cycle, that one description lists."""


class AnomalyRule(NamedTuple):
    """One row of the table."""

    name: str
    definition: str
    allowed_text: str
    allowed: Allowed


class FoundAnomaly(NamedTuple):
    """One case of an anomaly in a history."""

    name: str
    text: str
    lines: tuple[int, ...]
    """Lines of the history that show it."""
    key: str | None = None


def listed(parts: Sequence[str], separator: str) -> str:
    """Join the first parts of a description, and say how many are left out."""
    if len(parts) <= LISTED_MAX:
        return separator.join(parts)
    left_out = f"{len(parts) - LISTED_MAX} more"
    return separator.join([*parts[:LISTED_MAX], left_out])


def _never(_: HistorySettings) -> bool:
    return False


def _always(_: HistorySettings) -> bool:
    return True


def _without_idempotence(settings: HistorySettings) -> bool:
    return not settings.idempotence


def _read_uncommitted(settings: HistorySettings) -> bool:
    return settings.isolation_level is IsolationLevel.READ_UNCOMMITTED


def _with_subscribe(settings: HistorySettings) -> bool:
    return settings.consumers is Consumers.SUBSCRIBE


def _without_final_polls(settings: HistorySettings) -> bool:
    return not settings.final_polls


_NEVER: Final = ("never", _never)
_ALWAYS: Final = ("always: writes of transactions interleave", _always)
_UNCOMMITTED: Final = ("at read_uncommitted", _read_uncommitted)
_SUBSCRIBE: Final = ("with subscribe", _with_subscribe)

RULES: Final = tuple(
    AnomalyRule(name, definition, *allowed)
    for name, definition, allowed in (
        ("inconsistent-offsets", "one offset of a key has two or more values", _NEVER),
        (
            "duplicate",
            "one value is at two or more offsets of a key",
            ("without idempotence", _without_idempotence),
        ),
        (
            "lost-write",
            "a committed value that no ok operation polled, but one polled its offset or beyond",
            _NEVER,
        ),
        ("aborted-read", "an ok operation polled a value of a failed operation", _UNCOMMITTED),
        ("phantom-read", "an operation polled a value that no operation sent", _NEVER),
        ("precommitted-read", "a transaction polled a value that it sent itself", _UNCOMMITTED),
        (
            "internal-poll-skip",
            "within one operation, successive polls of a key passed over a record",
            _NEVER,
        ),
        (
            "internal-nonmonotonic-poll",
            "within one operation, successive polls of a key repeat or go back",
            _NEVER,
        ),
        (
            "poll-skip",
            "successive operations of a process that polled a key passed over a record",
            _SUBSCRIBE,
        ),
        (
            "nonmonotonic-poll",
            "successive operations of a process that polled a key repeat or go back",
            _SUBSCRIBE,
        ),
        (
            "internal-send-skip",
            "within one operation, records of others are between successive sends to a key",
            _ALWAYS,
        ),
        (
            "internal-nonmonotonic-send",
            "within one operation, successive sends to a key are in another order in the log",
            _NEVER,
        ),
        (
            "nonmonotonic-send",
            "successive operations of a process sent to a key, and the log has another order",
            _NEVER,
        ),
        (
            "unseen",
            "a committed value at the end of a key that no operation polled",
            ("without final polls", _without_final_polls),
        ),
        *(
            (f"G0{suffix}", f"a cycle of ww{edges}", _ALWAYS)
            for suffix, edges in (
                ("", " edges"),
                ("-process", " and process edges"),
                ("-realtime", " and realtime edges"),
            )
        ),
        *(
            (f"G1c{suffix}", f"a cycle of wr{edges}", _UNCOMMITTED)
            for suffix, edges in (
                ("", " edges"),
                ("-process", " and process edges"),
                ("-realtime", " and realtime edges"),
            )
        ),
        *(
            (f"G1c-ww{suffix}", f"a cycle of wr{edges}", _ALWAYS)
            for suffix, edges in (
                ("", " and ww edges"),
                ("-process", ", ww and process edges"),
                ("-realtime", ", ww and realtime edges"),
            )
        ),
    )
)
"""All anomalies, in the order of reports."""

RULE_OF: Final = {rule.name: rule for rule in RULES}

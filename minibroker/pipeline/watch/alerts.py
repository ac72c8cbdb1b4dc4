"""The versioned schema of an alert, as JSON for a topic and as a line for a terminal.

Owns the fields, their meaning and the text; it must never know when an alert is due. Invariant: the
same alert always has the same ``id``, so an alert that was sent twice because the job was killed
can be recognized by its key. Kafka has no counterpart; brokers' alerts are usually Prometheus rules
on JMX metrics.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Final, NamedTuple

from minibroker.pipeline.report import formats

VERSION: Final = 1
"""Version of the schema; any added, removed or redefined field needs a new one."""


class Rule(StrEnum):
    """The monitored conditions."""

    OVER = "over"
    """The rate exceeded a share of the quota in several consecutive intervals."""
    THROTTLED = "throttled"
    """The quota throttled requests in several consecutive intervals."""
    NOISY = "noisy"
    """A new client uses a large share of the broker, and others' latency rises."""
    DROPPING = "dropping"
    """The broker could not write all of its events."""


class State(StrEnum):
    """Whether the alert starts or ends."""

    RAISED = "raised"
    CLEARED = "cleared"


class Subject(NamedTuple):
    """The subject of an alert."""

    rule: Rule
    broker: int
    user: str = ""
    client_id: str = ""
    quota: str = ""


class Alert(NamedTuple):
    """An alert; ``start_s`` is the start of the interval that triggered it."""

    subject: Subject
    state: State
    start_s: int
    interval_s: int
    intervals: int
    value: float
    limit: float


FIELDS: Final = {
    "version": "version of the schema",
    "id": "id of the alert and key of the record; the same if the alert is sent again",
    "rule": "`over`, `throttled`, `noisy` or `dropping`",
    "state": "`raised` or `cleared`",
    "time_us": "end of the interval that triggered the alert, in µs since 1970 UTC",
    "interval_s": "length of an interval, in seconds",
    "intervals": "number of consecutive intervals that triggered the alert",
    "broker": "`broker.id`",
    "user": "user of the quota, percent-encoded; for `noisy`, the user's name; may be empty",
    "client_id": "client-id of the quota, encoded like `user`",
    "quota": "name of the quota, such as `producer_byte_rate`; empty for `noisy` and `dropping`",
    "value": "measured in the last interval, by rule: share of the quota; longest "
    "throttle in ms; share of worker time or bytes; dropped events",
    "limit": "the threshold for `value`",
    "text": "the alert as a sentence",
}
"""The fields of the JSON and their meaning, in order."""


def identity(alert: Alert) -> str:
    """The alert's id: equal for the same alert, different for any other."""
    parts = [alert.start_s, alert.interval_s, alert.state, *alert.subject]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def as_json(alert: Alert) -> str:
    """One JSON object with the fields of the schema, in one line."""
    subject = alert.subject
    values = (
        VERSION,
        identity(alert),
        subject.rule.value,
        alert.state.value,
        _end_us(alert),
        alert.interval_s,
        alert.intervals,
        *subject[1:],
        round(alert.value, 6),
        alert.limit,
        describe(alert),
    )
    return json.dumps(dict(zip(FIELDS, values, strict=True)), ensure_ascii=False)


def line(alert: Alert) -> str:
    """A line for a terminal: time, state and text."""
    return f"{formats.moment(_end_us(alert))}  {alert.state.value:7}  {describe(alert)}"


def _end_us(alert: Alert) -> int:
    return (alert.start_s + alert.interval_s) * 1_000_000


def describe(alert: Alert) -> str:
    """Describe the condition, the entity and the broker."""
    subject, raised = alert.subject, alert.state is State.RAISED
    where = f"broker {subject.broker}"
    of_quota = subject.quota != ""
    who = (formats.entity if of_quota else formats.party)(subject.user, subject.client_id)
    who = formats.visible(who, 80)
    so_long = f"for {formats.duration(alert.intervals * alert.interval_s * 1000)}"
    limit = formats.share(alert.limit)
    match subject.rule:
        case Rule.OVER:
            side = "above" if raised else "no longer above"
            return (
                f"{who} on {where}: {subject.quota} {side} {limit} of the quota {so_long}, "
                f"last {formats.share(alert.value)}"
            )
        case Rule.THROTTLED:
            if raised:
                throttled = f"throttled {so_long}, longest {formats.duration(alert.value)}"
                return f"{who} on {where}: {throttled}, by {subject.quota}"
            return f"{who} on {where}: no longer throttled by {subject.quota} {so_long}"
        case Rule.NOISY:
            if raised:
                taken = f"takes {formats.share(alert.value)} of {where}"
                return f"{who} {taken}, more than before, and slows down others"
            return f"{who} on {where}: no longer a noisy neighbour {so_long}"
        case Rule.DROPPING:
            if raised:
                dropped = formats.many(alert.value, "event")
                return f"{where} dropped {dropped}: reported usage is too low"
            return f"{where} has not dropped events {so_long}"

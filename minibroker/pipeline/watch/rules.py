"""Alert rules: consumes one interval after the other, and returns the alerts that are due.

Owns the rules and their state, and the versioned schema of an alert, as JSON for a topic and as a
line for a terminal; it must never know Spark, a topic or a clock: time is the start of the
interval. Invariants: a raised alert is cleared before it is raised again, the state is bounded by
``TRACKS_MAX`` and ``NEIGHBOURS_MAX``, and the same intervals give the same alerts, also after a
restart; the same alert always has the same ``id``, so an alert that was sent twice because the job
was killed can be recognized by its key. Kafka has no counterpart; brokers' alerts are usually
Prometheus rules on JMX metrics.

An alert is raised after a number of consecutive intervals above a limit, and cleared after as many
below a lower one; values in between change nothing. An interval without activity counts as below.

A client is a noisy neighbour if it takes at least a given share of a broker's worker time or bytes,
took less than half of that share on average before, and other clients' requests take ``RISE`` times
their average at the same time, from queueing to the end of processing, without long polls. Since
this needs an average, a broker's first intervals raise no such alert; and absolute minimums exclude
large shares of a nearly idle broker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

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


TRACKS_MAX: Final = 50_000
"""Subjects with state; above that, no new ones are added until others calm down."""

NEIGHBOURS_MAX: Final = 50
"""Clients per broker whose share is remembered."""

RISE: Final = 1.5
"""Factor by which other requests slow down when there is a noisy neighbour."""

WORK_MIN: Final = 0.05
"""Minimum share of one worker's time; a client below it is never a noisy neighbour."""

BYTES_MIN: Final = 1_000_000
"""The corresponding minimum of bytes per second."""

CLEAR_FACTOR: Final = 0.9
"""Factor for the lower limit, below which an alert is cleared."""

WARM_UP_INTERVALS: Final = 3
"""Intervals before an average is used."""

_WEIGHT: Final = 0.2
"""Weight of a new interval in an average."""


class WatchLimits(NamedTuple):
    """Thresholds."""

    over: float = 0.8
    """Share of a quota."""
    intervals: int = 3
    """Consecutive intervals to raise or clear an alert."""
    noisy: float = 0.3
    """Share of a broker's worker time or bytes."""


class Checked(NamedTuple):
    """Figures of one quota entity at one broker."""

    broker: int
    user: str
    client_id: str
    quota: str
    rate: float | None
    """The highest that the broker measured; None if it measures no rate."""
    bound: float | None
    throttled: int
    throttle_max_ms: int


class ClientUsage(NamedTuple):
    """Figures of one user and client-id at one broker."""

    broker: int
    user: str
    client_id: str
    requests: int
    worked_ns: int
    moved_bytes: int
    served_ns: int
    """Queueing and processing time of all requests."""


@dataclass(frozen=True, kw_only=True)
class WatchInterval:
    """The figures of an interval; ``totals`` are the sums of all clients of a broker."""

    start_s: int
    checked: Sequence[Checked] = ()
    parties: Sequence[ClientUsage] = ()
    totals: Mapping[int, ClientUsage] = field(default_factory=dict)
    dropped: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Track:
    """Consecutive intervals of a subject above and below its limit, and its state."""

    above_count: int = 0
    below_count: int = 0
    raised: bool = False


@dataclass
class BrokerAverages:
    """Averages of a broker."""

    intervals: int = 0
    served_ns: float = 0.0
    """For one request."""
    shares: dict[tuple[str, str], float] = field(default_factory=dict)


class WatchCheck(NamedTuple):
    """A subject in an interval: above its limit, below it, or None in between."""

    above: bool | None
    value: float
    limit: float


class Rules:
    """The state of the rules from interval to interval."""

    def __init__(self, interval_s: int, limits: WatchLimits) -> None:
        self.interval_s = interval_s
        self.limits = limits
        self.last_s: int | None = None
        self._tracks: dict[Subject, Track] = {}
        self._usual: dict[int, BrokerAverages] = {}

    @property
    def tracks(self) -> int:
        """The number of subjects with state."""
        return len(self._tracks)

    def evaluate(self, interval: WatchInterval) -> list[Alert]:
        """The alerts of the next interval, and of empty intervals before it."""
        if self.last_s is not None and interval.start_s <= self.last_s:
            return []
        alerts: list[Alert] = []
        for start_s in self._silent_before(interval.start_s):
            alerts.extend(self._decide(WatchInterval(start_s=start_s)))
        return [*alerts, *self._decide(interval)]

    def _silent_before(self, start_s: int) -> range:
        """The intervals without events, limited to as many as can change the state."""
        if self.last_s is None:
            return range(0)
        first = max(self.last_s, start_s - (self.limits.intervals + 1) * self.interval_s)
        return range(first + self.interval_s, start_s, self.interval_s)

    def _decide(self, interval: WatchInterval) -> Iterator[Alert]:
        self.last_s = interval.start_s
        looks = dict(self._checks(interval))
        for subject in [*looks, *(each for each in self._tracks if each not in looks)]:
            check = looks.get(subject, WatchCheck(False, 0.0, self._limit(subject.rule)))
            alert = self._step(subject, check, interval.start_s)
            if alert is not None:
                yield alert
        for broker, total in interval.totals.items():
            self._update_averages(broker, total, interval.parties)

    def _limit(self, rule: Rule) -> float:
        return {Rule.OVER: self.limits.over, Rule.NOISY: self.limits.noisy}.get(rule, 0.0)

    def _step(self, subject: Subject, check: WatchCheck, start_s: int) -> Alert | None:
        track = self._tracks.get(subject)
        if track is None:
            if not check.above or len(self._tracks) >= TRACKS_MAX:
                return None
            track = self._tracks[subject] = Track()
        track.above_count = track.above_count + 1 if check.above else 0
        track.below_count = track.below_count + 1 if check.above is False else 0
        needed = 1 if subject.rule in _RAISED_AT_ONCE else self.limits.intervals
        if not track.raised and track.above_count >= needed:
            track.raised = True
            return self._alert(subject, State.RAISED, start_s, track.above_count, check)
        if track.raised and track.below_count >= self.limits.intervals:
            del self._tracks[subject]
            return self._alert(subject, State.CLEARED, start_s, track.below_count, check)
        if not track.raised and not track.above_count:
            del self._tracks[subject]
        return None

    def _alert(
        self, subject: Subject, state: State, start_s: int, intervals: int, check: WatchCheck
    ) -> Alert:
        return Alert(subject, state, start_s, self.interval_s, intervals, check.value, check.limit)

    # Evaluation of each rule ---------------------------------------------------------------------

    def _checks(self, interval: WatchInterval) -> Iterator[tuple[Subject, WatchCheck]]:
        for seen in interval.checked:
            of = seen[:4]
            throttle_check = WatchCheck(seen.throttled > 0, float(seen.throttle_max_ms), 0.0)
            yield Subject(Rule.THROTTLED, *of), throttle_check
            if seen.rate is not None and seen.bound:
                yield Subject(Rule.OVER, *of), _compare(seen.rate / seen.bound, self.limits.over)
        for party in interval.parties:
            total = interval.totals[party.broker]
            check = self._neighbour(party, total)
            if check is not None:
                yield Subject(Rule.NOISY, *party[:3]), check
        for broker, dropped in interval.dropped.items():
            yield Subject(Rule.DROPPING, broker), WatchCheck(dropped > 0, float(dropped), 0.0)

    def _neighbour(self, party: ClientUsage, total: ClientUsage) -> WatchCheck | None:
        """Evaluate whether a client is noisy; once raised, only its share matters."""
        share, limit = _share(party, total), self.limits.noisy
        track = self._tracks.get(Subject(Rule.NOISY, *party[:3]))
        if track is not None and track.raised:
            return _compare(share, limit)
        usual = self._usual.get(party.broker)
        if (
            share < limit
            or usual is None
            or usual.intervals < WARM_UP_INTERVALS
            or not self._is_large(party)
        ):
            return None
        before = usual.shares.get(party[1:3], 0.0)
        others = total.requests - party.requests
        if before >= limit / 2 or not others:
            return None
        served_ns = (total.served_ns - party.served_ns) / others
        return WatchCheck(served_ns >= RISE * usual.served_ns, share, limit)

    def _is_large(self, party: ClientUsage) -> bool:
        worked = party.worked_ns >= WORK_MIN * self.interval_s * 1_000_000_000
        return worked or party.moved_bytes >= BYTES_MIN * self.interval_s

    def _update_averages(
        self, broker: int, total: ClientUsage, parties: Sequence[ClientUsage]
    ) -> None:
        """Update a broker's averages with an interval."""
        usual = self._usual.setdefault(broker, BrokerAverages())
        # The first intervals have equal weights, or the very first would dominate.
        usual.intervals += 1
        weight = max(_WEIGHT, 1 / usual.intervals)
        served_ns = total.served_ns / total.requests if total.requests else usual.served_ns
        usual.served_ns += weight * (served_ns - usual.served_ns)
        shares = {each[1:3]: _share(each, total) for each in parties if each.broker == broker}
        known = {*shares, *usual.shares}
        averages = {
            who: (1 - weight) * usual.shares.get(who, 0.0) + weight * shares.get(who, 0.0)
            for who in known
        }
        largest = sorted(averages, key=lambda who: (-averages[who], who))[:NEIGHBOURS_MAX]
        usual.shares = {who: averages[who] for who in largest}

    # State across restarts ----------------------------------------------------------------------

    def saved_state(self) -> dict[str, Any]:
        """The complete state, suitable for JSON."""
        return {
            "interval_s": self.interval_s,
            "last_s": self.last_s,
            "tracks": [
                [*subject, track.above_count, track.below_count, track.raised]
                for subject, track in self._tracks.items()
            ],
            "usual": [
                [
                    broker,
                    each.intervals,
                    each.served_ns,
                    [[*who, n] for who, n in each.shares.items()],
                ]
                for broker, each in self._usual.items()
            ],
        }

    def restore(self, saved_state: Mapping[str, Any]) -> None:
        """Restore a saved state; ignored if the length of intervals changed."""
        if saved_state["interval_s"] != self.interval_s:
            return
        self.last_s = saved_state["last_s"]
        self._tracks = {
            Subject(Rule(rule), *of): Track(above_count, below_count, raised)
            for rule, *of, above_count, below_count, raised in saved_state["tracks"]
        }
        self._usual = {
            broker: BrokerAverages(
                intervals, served_ns, {(user, client): at for user, client, at in shares}
            )
            for broker, intervals, served_ns, shares in saved_state["usual"]
        }


_RAISED_AT_ONCE: Final = frozenset({Rule.NOISY, Rule.DROPPING})
"""Rules that raise in the first interval, because a single occurrence matters."""


def _compare(value: float, limit: float) -> WatchCheck:
    above = True if value >= limit else False if value < CLEAR_FACTOR * limit else None
    return WatchCheck(above, value, limit)


def _share(party: ClientUsage, total: ClientUsage) -> float:
    """The larger of the shares of worker time and of bytes."""
    return max(
        party.worked_ns / total.worked_ns if total.worked_ns else 0.0,
        party.moved_bytes / total.moved_bytes if total.moved_bytes else 0.0,
    )

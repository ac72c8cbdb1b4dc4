"""What a report tells: a bounded number of figures, whatever the number of events they came from.

Owns the shapes between the aggregation and the page, and the limits on how much of each there is;
it must never know Spark, plots or HTML. Invariant: everything that is left out is added up in a
rest or counted, so that the page's totals are those of the table. Kafka has no counterpart; the
figures are those of ``ClientQuotaManager`` and ``RequestMetrics``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

ENTITIES_MAX: Final = 25
"""Entities told one by one; the others are one row."""

SERIES_MAX: Final = 5
"""Entities with a colour of their own over time."""

HEAT_MAX: Final = 20
"""Entities in the map of throttles, and in the comparison of proposals."""

FITS_MAX: Final = 30
"""Quotas of the comparison with the use of those who have them."""

BROKERS_MAX: Final = 30
"""Brokers told one by one."""

PROPOSALS_MAX: Final = 6
"""Proposals compared, as often as there are loops; each has a colour."""

BUCKETS_MAX: Final = 120
"""Points in time."""

STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)
"""Lengths of a bucket among which one is chosen; longer ones are whole days."""

SHORT_STEPS_S: Final = (1, 2, 5, 10, 20, 30)
"""The same where all that happened took a few minutes."""


def step_for(first_us: int, last_us: int) -> int:
    """The shortest length of a bucket, in seconds, of which ``BUCKETS_MAX`` hold the whole time."""
    for step in (*SHORT_STEPS_S, *STEPS_S):
        if last_us // 1_000_000 // step - first_us // 1_000_000 // step < BUCKETS_MAX:
            return step
    days = (last_us - first_us) // 86_400_000_000 // (BUCKETS_MAX - 1) + 1
    return int(days) * 86_400


class Who(NamedTuple):
    """A user and client-id as they came, empty where there is none; or the rest of them."""

    user: str | None
    client_id: str | None


REST: Final = Who(None, None)
"""All who are not told one by one."""


class Broker(NamedTuple):
    """What one broker told."""

    broker: int
    first_us: int
    last_us: int
    events: int
    dropped: int
    sample: float
    """The smallest share of connections written, of 1."""


class Coverage(NamedTuple):
    """What the report is about, and what it can't know."""

    first_us: int
    last_us: int
    events: int
    dropped: int
    sample: float
    quarantined: int | None
    """Malformed events; None if it is not known where they are."""
    brokers: tuple[Broker, ...]
    """At most ``BROKERS_MAX``, those with the most events."""
    broker_count: int


class Use(NamedTuple):
    """What one entity did over the whole time, or all together."""

    who: Who
    requests: float
    bytes_in: float
    bytes_out: float
    worked_ns: float
    throttled: float
    """Requests whose sender was held."""
    throttle_ms: float
    """For how long, added up."""
    errors: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Point(NamedTuple):
    """What an entity of those with a colour, or the rest, did in one bucket."""

    start_s: int
    who: Who
    requests: float
    bytes_in: float
    bytes_out: float
    worked_ns: float


class Latency(NamedTuple):
    """How long requests took in one bucket, from the request read to the response written."""

    start_s: int
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Connections(NamedTuple):
    """What happened to connections in one bucket."""

    start_s: int
    accepted: float
    waited: float
    """Delayed by a rate or a limit, or held back for their address's sake."""
    refused: float
    closed: float


class Heat(NamedTuple):
    """For how long an entity was held in one bucket, its connections added up."""

    start_s: int
    who: Who
    throttled: float
    throttle_ms: float


class Fit(NamedTuple):
    """A recommended quota beside the use that it is for, in the unit of the quota."""

    entity: str
    key: str
    """Of the config, such as ``producer_byte_rate``."""
    p50: float
    p99: float
    most: float
    """The most in one interval."""
    in_force: float | None
    recommended: float
    reason: str


class Outcome(NamedTuple):
    """What one proposal would have done to one entity, all its quotas together."""

    proposal: str
    entity: str
    requests: float
    throttled: float
    throttle_ms: float
    longest_ms: float


class Proposal(NamedTuple):
    """What one proposal would have done to all, in one of the loops of a replay."""

    name: str
    entities: int
    held: int
    """Entities throttled at least once."""
    requests: float
    throttled: float
    throttle_ms: float
    longest_ms: float
    given_up: float
    """Requests, or connections, that would not have been served at all."""
    late_ms: float | None = None
    """By how much anybody's last request ends later; None if nobody waits, as in the open loop."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that the page shows."""

    source: str
    step_s: int
    """Length of a bucket."""
    coverage: Coverage
    total: Use
    entities: tuple[Use, ...]
    """Those that worked the brokers most, at most ``ENTITIES_MAX``; then the rest, if any."""
    entity_count: int
    points: tuple[Point, ...]
    latency: tuple[Latency, ...]
    connections: tuple[Connections, ...]
    heat: tuple[Heat, ...]
    fits: tuple[Fit, ...] | None = None
    """None if no recommendation was given."""
    fit_count: int = 0
    outcomes: tuple[Outcome, ...] = ()
    proposals: tuple[Proposal, ...] = ()

    @property
    def length_s(self) -> float:
        """From the first event to the last, never nothing: figures are divided by it."""
        return max((self.coverage.last_us - self.coverage.first_us) / 1e6, 1.0)

    def seen_s(self, start_s: int) -> float:
        """How much of a bucket there is: the first one and the last may be cut off."""
        first_s, last_s = self.coverage.first_us / 1e6, self.coverage.last_us / 1e6
        return max(min(start_s + self.step_s, last_s) - max(start_s, first_s), 1.0)

    @property
    def starts_s(self) -> range:
        """Of all buckets, also those in which nothing happened."""
        step, cover = self.step_s, self.coverage
        first = cover.first_us // 1_000_000 // step * step
        return range(first, cover.last_us // 1_000_000 + 1, step)

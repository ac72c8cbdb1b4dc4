"""The figures of a report: a bounded number, whatever the number of events.

Owns the types between the aggregation and the page, and the limits of each; it must never know
Spark, plots or HTML. Invariant: whatever is not listed is part of a rest or a count, so the page's
totals are those of the table. Kafka has no counterpart; the figures are those of
``ClientQuotaManager`` and ``RequestMetrics``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

ENTITIES_MAX: Final = 25
"""Entities listed individually; the others are one row."""

SERIES_MAX: Final = 5
"""Entities with a color of their own over time."""

HEAT_MAX: Final = 20
"""Entities in the throttle map, and in the comparison of proposals."""

FITS_MAX: Final = 30
"""Quotas that are compared with their entities' usage."""

BROKERS_MAX: Final = 30
"""Brokers listed individually."""

PROPOSALS_MAX: Final = 6
"""Proposals compared, counted once per loop; each has a color."""

BUCKETS_MAX: Final = 120
"""Points in time."""

STEPS_S: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200,
                  86_400)  # fmt: skip
"""Available bucket lengths; longer ones are whole days."""


def step_for(first_us: int, last_us: int) -> int:
    """The shortest bucket length, in seconds, with which ``BUCKETS_MAX`` cover the period."""
    for step in STEPS_S:
        if last_us // 1_000_000 // step - first_us // 1_000_000 // step < BUCKETS_MAX:
            return step
    days = (last_us - first_us) // 86_400_000_000 // (BUCKETS_MAX - 1) + 1
    return int(days) * 86_400


class ReportedClient(NamedTuple):
    """A user and client-id as sent, empty if missing; or the rest of them."""

    user: str | None
    client_id: str | None


REST: Final = ReportedClient(None, None)
"""All entities that are not listed individually."""


class ReportedBroker(NamedTuple):
    """The completeness of one broker's events."""

    broker: int
    first_us: int
    last_us: int
    events: int
    dropped: int
    sample: float
    """The smallest share of connections that was sampled, 0 to 1."""


class Coverage(NamedTuple):
    """The period and completeness of the report's data."""

    first_us: int
    last_us: int
    events: int
    dropped: int
    sample: float
    quarantined: int | None
    """Malformed events; None if there is no quarantine."""
    brokers: tuple[ReportedBroker, ...]
    """At most ``BROKERS_MAX``, those with the most events."""
    broker_count: int


class Use(NamedTuple):
    """Total usage of one entity, or of all."""

    who: ReportedClient
    requests: float
    bytes_in: float
    bytes_out: float
    worked_ns: float
    throttled: float
    """Throttled requests."""
    throttle_ms: float
    """Total throttle time."""
    errors: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Point(NamedTuple):
    """Usage of an entity with a color, or of the rest, in one bucket."""

    start_s: int
    who: ReportedClient
    requests: float
    bytes_in: float
    bytes_out: float
    worked_ns: float


class Latency(NamedTuple):
    """Latency percentiles in one bucket, from reading the request to writing the response."""

    start_s: int
    p50_ms: float
    p95_ms: float
    p99_ms: float


class ConnectionTotals(NamedTuple):
    """Connection events in one bucket."""

    start_s: int
    accepted: float
    waited: float
    """Delayed by a limit, a rate or the per-IP rate."""
    refused: float
    closed: float


class Heat(NamedTuple):
    """Throttle time of an entity in one bucket, summed over its connections."""

    start_s: int
    who: ReportedClient
    throttled: float
    throttle_ms: float


class Fit(NamedTuple):
    """A recommended quota and its entity's usage, in the quota's unit."""

    entity: str
    key: str
    """The name of the config, such as ``producer_byte_rate``."""
    p50: float
    p99: float
    most: float
    """The maximum in one interval."""
    in_force: float | None
    recommended: float
    reason: str


class Outcome(NamedTuple):
    """The effect of one proposal on one entity, all quotas together."""

    proposal: str
    entity: str
    requests: float
    throttled: float
    throttle_ms: float
    longest_ms: float


class ReportedProposal(NamedTuple):
    """The effect of one proposal on all entities, in one loop of a replay."""

    name: str
    entities: int
    throttled_entities: int
    """Entities throttled at least once."""
    requests: float
    throttled: float
    throttle_ms: float
    longest_ms: float
    given_up: float
    """Requests or connections that would never have been served."""
    late_ms: float | None = None
    """The largest delay of an entity's last request; None in the open loop, without delays."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The contents of the page."""

    source: str
    step_s: int
    """Length of a bucket."""
    coverage: Coverage
    total: Use
    entities: tuple[Use, ...]
    """Those with the most worker time, at most ``ENTITIES_MAX``; then the rest, if any."""
    entity_count: int
    points: tuple[Point, ...]
    latency: tuple[Latency, ...]
    connections: tuple[ConnectionTotals, ...]
    heat: tuple[Heat, ...]
    fits: tuple[Fit, ...] | None = None
    """None if no quota file was given."""
    fit_count: int = 0
    outcomes: tuple[Outcome, ...] = ()
    proposals: tuple[ReportedProposal, ...] = ()

    @property
    def length_s(self) -> float:
        """From the first event to the last, at least 1 because figures are divided by it."""
        return max((self.coverage.last_us - self.coverage.first_us) / 1e6, 1.0)

    def seen_s(self, start_s: int) -> float:
        """The length of a bucket's part within the period; the first and last may be partial."""
        first_s, last_s = self.coverage.first_us / 1e6, self.coverage.last_us / 1e6
        return max(min(start_s + self.step_s, last_s) - max(start_s, first_s), 1.0)

    @property
    def starts_s(self) -> range:
        """The start of each bucket, including empty ones."""
        step, cover = self.step_s, self.coverage
        first = cover.first_us // 1_000_000 // step * step
        return range(first, cover.last_us // 1_000_000 + 1, step)

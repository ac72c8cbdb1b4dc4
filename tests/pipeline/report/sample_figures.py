"""Figures for tests of plots and pages, including small and unusual ones."""

from __future__ import annotations

from dataclasses import replace

from minibroker.pipeline.report.figures import (
    REST,
    ConnectionTotals,
    Coverage,
    Figures,
    Fit,
    Heat,
    Latency,
    Outcome,
    Point,
    ReportedBroker,
    ReportedClient,
    ReportedProposal,
    Use,
)

START_S = 1_795_000_020
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x00'\"&"
ALICE = ReportedClient("alice", "etl")
MALLORY = ReportedClient("ANONYMOUS", HOSTILE)


def use(who: ReportedClient, requests: float = 100, throttled: float = 0) -> Use:
    return Use(who, requests, 1e6, 2e6, 3e8, throttled, 40 * throttled, 1, 0.5, 5, 50)


def figures() -> Figures:
    """Three minutes of two entities and the rest, with content in every section."""
    slots = range(START_S, START_S + 180, 60)
    first_us, last_us = START_S * 1_000_000, (START_S + 179) * 1_000_000
    clients = (ALICE, MALLORY, REST)
    names = ("now.quotas", HOSTILE)
    return Figures(
        source="/data/activity",
        step_s=60,
        coverage=Coverage(
            first_us,
            last_us,
            1234,
            5,
            0.5,
            2,
            (ReportedBroker(7, first_us, last_us, 1234, 5, 0.5),),
            1,
        ),
        total=use(REST, 1234, 20),
        entities=(use(ALICE), use(MALLORY, 90, 20), use(REST, 1044)),
        entity_count=10_002,
        points=tuple(Point(at, who, 60, 6e6, 1e6, 6e9) for at in slots for who in clients),
        latency=(Latency(START_S, 0.5, 5, 50), Latency(START_S + 120, 1, 6, 60)),
        connections=(ConnectionTotals(START_S, 60, 6, 3, 30),),
        heat=(Heat(START_S, MALLORY, 20, 800), Heat(START_S + 120, ALICE, 1, 90_000)),
        fits=(
            Fit("user alice", "producer_byte_rate", 1e5, 5e5, 8e5, 1e6, 6e5, f"why {HOSTILE}"),
            Fit(HOSTILE, "request_percentage", 1, 20, 500, None, 25, ""),
        ),
        fit_count=40,
        outcomes=tuple(
            Outcome(name, who, 100, 10, 4000, 900)
            for name in names
            for who in ("user alice", HOSTILE)
        ),
        proposals=tuple(ReportedProposal(name, 2, 2, 200, 20, 8000, 900, 0) for name in names),
    )


def calm() -> Figures:
    """Return figures without throttles, connections, proposals and recommendation."""
    return replace(figures(), heat=(), connections=(), fits=None, outcomes=(), proposals=())


def lonely() -> Figures:
    """One event: a single moment, bucket and entity."""
    made, us = figures(), START_S * 1_000_000
    return replace(
        calm(),
        step_s=1,
        coverage=Coverage(us, us, 1, 0, 1.0, None, (ReportedBroker(1, us, us, 1, 0, 1.0),), 1),
        total=use(REST, 1),
        entities=(use(ALICE, 1),),
        entity_count=1,
        points=(Point(START_S, ALICE, 1, 100, 50, 1e5),),
        latency=made.latency[:1],
    )


def silent() -> Figures:
    """Connections only: no request at all."""
    return replace(
        lonely(), entities=(), entity_count=0, points=(), latency=(), total=Use(REST, *[0.0] * 10)
    )

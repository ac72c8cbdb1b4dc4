"""Simulated clients: each waits, sends a request, gets the response, and is throttled if necessary.

Owns the behaviour of made-up clients over a slice of time, compiled because there are millions of
requests. It must never know names, files or the schema: entities are numbers here. Invariant: one
connection has one request in flight, and the throttles are those that Kafka's ``Rate`` gives for
the requests, so that a replay of the events finds the same ones. The arithmetic is written a third
time on purpose: this measures that of the pipeline.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SAMPLES: Final = 11
WINDOW_MS: Final = 1_000
"""Kafka's defaults of ``quota.window.num`` and ``quota.window.size.seconds``."""

PRODUCE, FETCH, REQUEST = 0, 1, 2
RATES: Final = 3

REQUESTED, ACCEPTED, CLOSED = 0, 1, 2
"""Kinds of events."""

METADATA, HEARTBEAT, COMMIT, CREATE = 3, 12, 8, 19
PROFILES: Final = 3
"""Client profiles: mostly produce, mostly fetch, or mostly read and change metadata."""

DAY_US: Final = 86_400_000_000
WAVE: Final = 0.6
"""Relative amplitude of the daily load."""


class Traits(NamedTuple):
    """Properties of each group, an entity at one broker. Each array has one value per group."""

    first: Ints
    """Its first connection; the last entry is where the last group ends."""
    profile: Ints
    think_us: Floats
    size: Floats
    lifetime_us: Floats
    bounds: Floats
    """A row a group: bytes/s produced, bytes/s fetched, percent; infinite if there is none."""


class ClientState(NamedTuple):
    """The mutable state: for each connection the time of its next event, its end and its number;
    for each group the samples of its rates.
    """

    next_us: Ints
    end_us: Ints
    turn: Ints
    rings: Floats
    at: Ints


class GeneratedEvents(NamedTuple):
    """Generated events, one array per column, with a fixed capacity."""

    time_us: Ints
    group: Ints
    connection: Ints
    turn: Ints
    kind: Ints
    api: Ints
    request_bytes: Ints
    response_bytes: Ints
    checked_ns: Ints
    late_ns: Ints
    total_ns: Ints
    rates: Floats
    throttles: Ints
    throttled_ms: Ints


def empty_events(count: int) -> GeneratedEvents:
    """Allocate space for events."""
    one = [np.zeros(count, np.int64) for _ in GeneratedEvents._fields]
    events = GeneratedEvents._make(one)
    return events._replace(
        rates=np.full((count, RATES), np.nan), throttles=np.zeros((count, RATES), np.int64)
    )


@numba.njit(cache=True)
def _record(ring, at, value, now_ms):  # type: ignore[no-untyped-def]
    """Add a value; ``ring`` has a row per sample: its start, its last event, its sum."""
    if now_ms - ring[at, 0] >= WINDOW_MS:
        at = (at + 1) % SAMPLES
        ring[at] = (float(now_ms), float(now_ms), 0.0)
    ring[at, 1] = now_ms
    ring[at, 2] += value
    return at


@numba.njit(cache=True)
def _measure(ring, now_ms):  # type: ignore[no-untyped-def]
    """The rate now, and the milliseconds that it is an average over."""
    total, oldest = 0.0, float(now_ms)
    for sample in range(SAMPLES):
        if ring[sample, 1] <= now_ms - (SAMPLES - 1) * WINDOW_MS:
            ring[sample] = (float(now_ms), float(now_ms), 0.0)
        total += ring[sample, 2]
        oldest = min(oldest, ring[sample, 0])
    elapsed = now_ms - oldest
    missing = SAMPLES - 2 - elapsed // WINDOW_MS
    if missing > 0:
        elapsed += missing * WINDOW_MS
    span_ms = max(elapsed, 1.0)
    return total / (span_ms / 1000), span_ms


@numba.njit(cache=True)
def _check_quota(state, which, value, bound, now_ms):  # type: ignore[no-untyped-def]
    """Record a value; return the rate and the throttle time."""
    ring = state.rings[which]
    state.at[which] = _record(ring, state.at[which], value, now_ms)
    events, span_ms = _measure(ring, now_ms)
    if events <= bound:
        return events, 0
    return events, math.floor((events - bound) / bound * span_ms + 0.5)


@numba.njit(cache=True)
def _api(profile, chance):  # type: ignore[no-untyped-def]
    if profile == PRODUCE:
        return PRODUCE if chance < 0.96 else METADATA
    if profile == FETCH:
        if chance < 0.85:
            return FETCH
        if chance < 0.95:
            return HEARTBEAT
        return COMMIT if chance < 0.99 else METADATA
    return METADATA if chance < 0.97 else CREATE


@numba.njit(cache=True)
def _request(traits, state, where, events, at):  # type: ignore[no-untyped-def]
    """One request, written at ``at`` of ``events``."""
    group, connection = where
    time_us = state.next_us[connection]
    now_ms = time_us // 1000
    api = _api(traits.profile[group], np.random.random())
    small = np.int64(np.random.lognormal(4.2, 0.3))
    large = np.int64(min(traits.size[group] * np.random.lognormal(0.0, 1.0), 1 << 20))
    sent = large if api == PRODUCE else small
    answered = large if api == FETCH else small
    checked_ns = np.int64(30_000 * np.random.lognormal(0.0, 0.5) + 0.4 * large)
    late_ns = np.int64(8_000 * np.random.lognormal(0.0, 0.4) + 0.05 * answered)
    waited = np.random.lognormal(16.2, 1.0) if api == FETCH else np.random.lognormal(12.0, 1.0)
    throttle_ms = np.int64(0)
    if api in (PRODUCE, FETCH):
        size = sent if api == PRODUCE else answered + 4
        bound = traits.bounds[group, api]
        events.rates[at, api], events.throttles[at, api] = _check_quota(
            state, (group, api), size, bound, now_ms
        )
        throttle_ms = events.throttles[at, api]
    rate, throttle = _check_quota(
        state, (group, REQUEST), checked_ns / 1e7, traits.bounds[group, REQUEST], now_ms
    )
    throttle = min(throttle, WINDOW_MS)
    events.rates[at, REQUEST], events.throttles[at, REQUEST] = rate, throttle
    throttle_ms = max(throttle_ms, throttle)
    ring = state.rings[group, REQUEST]
    state.at[group, REQUEST] = _record(ring, state.at[group, REQUEST], late_ns / 1e7, now_ms)
    if api == FETCH and throttle_ms > 0:  # The response is empty instead.
        ring = state.rings[group, FETCH]
        state.at[group, FETCH] = _record(ring, state.at[group, FETCH], -(answered + 4.0), now_ms)
    events.kind[at], events.api[at] = REQUESTED, api
    events.request_bytes[at], events.response_bytes[at] = sent, answered
    events.checked_ns[at], events.late_ns[at] = checked_ns, late_ns
    events.total_ns[at] = checked_ns + late_ns + np.int64(waited)
    events.throttled_ms[at] = throttle_ms
    wave = 1 + WAVE * math.sin(2 * math.pi * (time_us % DAY_US / DAY_US - 1 / 3))
    think_us = traits.think_us[group] / wave * np.random.lognormal(-0.5, 1.0)
    state.next_us[connection] = (
        time_us + events.total_ns[at] // 1000 + throttle_ms * 1000 + np.int64(think_us) + 1
    )


@numba.njit(cache=True)
def _open_or_close(traits, state, where, events, at):  # type: ignore[no-untyped-def]
    """Close a connection at its end, and open it again a little later."""
    group, connection = where
    time_us = state.next_us[connection]
    if state.end_us[connection] > 0:
        events.kind[at] = CLOSED
        state.end_us[connection] = 0
        state.next_us[connection] = time_us + np.int64(np.random.lognormal(13.0, 1.0)) + 1
        return
    events.kind[at] = ACCEPTED
    state.turn[connection] += 1
    lifetime_us = traits.lifetime_us[group] * np.random.lognormal(-0.5, 1.0)
    state.end_us[connection] = time_us + np.int64(lifetime_us) + 1_000
    state.next_us[connection] = time_us + 1_000


@numba.njit(cache=True, nogil=True)
def _simulate(traits, state, until_us, events, seed):  # type: ignore[no-untyped-def]
    np.random.seed(seed)
    at, most = 0, len(events.time_us)
    for group in range(len(traits.profile)):
        first, end = traits.first[group], traits.first[group + 1]
        while True:
            connection = first
            for other in range(first + 1, end):
                if state.next_us[other] < state.next_us[connection]:
                    connection = other
            time_us = state.next_us[connection]
            if time_us >= until_us:
                break
            if at == most:
                return -1
            events.time_us[at], events.group[at], events.connection[at] = time_us, group, connection
            if time_us >= state.end_us[connection]:
                _open_or_close(traits, state, (group, connection), events, at)
            else:
                _request(traits, state, (group, connection), events, at)
            events.turn[at] = state.turn[connection]
            at += 1
    return at


def simulate(
    traits: Traits, state: ClientState, until_us: int, expected: int, seed: int
) -> GeneratedEvents:
    """Generate the events until ``until_us``, ordered by group and time; updates ``state``."""
    events = empty_events(expected * 2 + 65_536)
    count = int(_simulate(traits, state, until_us, events, seed))
    if count < 0:
        raise ValueError(
            f"more than {len(events.time_us):,} events where {expected:,} were expected"
        )
    return GeneratedEvents._make(column[:count] for column in events)

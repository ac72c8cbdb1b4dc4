"""Reference for Arrow: the values that one event adds to each quota, and percentiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from minibroker.pipeline.quota_amounts import FETCH, MUTATION, PRODUCE, REQUEST

Event = dict[str, Any]


class Counts(NamedTuple):
    """Of one event, for one quota."""

    quota: str
    amount: int
    throttled_ms: int = 0
    level: str | None = None
    measured: float | None = None
    bound: float | None = None


def counts(event: Event) -> Iterator[Counts]:
    """All that it counts for."""
    if event["kind"] == "dropped":
        yield Counts(REQUEST, 0)
    elif event["kind"] == "connection":
        throttled_ms = event["delay_ms"] if event["happened"] == "held" else 0
        yield Counts("connection_creation_rate", int(event["happened"] == "accepted"), throttled_ms)
    else:
        if event["api_key"] == 0:
            yield _checked(PRODUCE, event["request_bytes"], event["produce"])
        if event["api_key"] == 1 and not event["exempt"]:
            size = 0 if event["throttle_ms"] else event["response_bytes"] + 4
            yield _checked(FETCH, size, event["fetch"])
        if not event["exempt"]:
            worked = event["network_ns"] + event["io_ns"]
            if event["checked_ns"] is not None:
                worked = event["checked_ns"] + (event["late_ns"] or 0)
            yield _checked(REQUEST, worked, event["request"])
        if event["mutations"] is not None:
            left = event["mutations"] - (event["mutations_refused"] or 0)
            yield _checked(MUTATION, left, event["mutation"])._replace(measured=None)


def _checked(quota: str, amount: int, look: Event | None) -> Counts:
    if look is None:
        return Counts(quota, amount)
    names = [name for name, key in (("user", "user"), ("client", "client_id")) if look[key]]
    level = "+".join(names) or None
    return Counts(quota, amount, look["throttle_ms"], level, look["rate"], look["bound"])


def for_all(value: float, event: Event) -> int:
    """Scale a value by the event's sampling rate; halves are rounded up."""
    return 0 if event["sample"] is None else math.floor(value / event["sample"] + 0.5)


def names(event: Event) -> dict[str, str | None]:
    """Return the user and client id of an event."""
    connection = event["kind"] == "connection"
    return {
        "user": event["user"],
        "client_id": event["client_id"] or None,
        "ip": event["ip"] if connection else None,
    }


def three_digits(us: int) -> int:
    """A latency as exactly as it is kept."""
    unit = 10 ** max(len(str(us)) - 3, 0)
    return int((us + unit // 2) // unit * unit)


def percentile(latencies: list[int], percent: int) -> float | None:
    """As SQL's ``percentile``."""
    if not latencies:
        return None
    values = sorted(latencies)
    position = (len(values) - 1) * (percent / 100)
    low, high = math.floor(position), math.ceil(position)
    if low == high:
        return values[low]
    return (high - position) * values[low] + (position - low) * values[high]

"""The columns of a replay: requests, counters and bounds, statistics, answers.

Owns the memory layout for compiled code; it must never know an event's fields, a quota file or
Spark. Invariant: requests are in the order in which their shared counters saw them; amounts are
integers, or floats that represent integers exactly, unless events were sampled. Kafka has no
counterpart, because it decides on live requests.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES
from minibroker.pipeline.whatif.counters import Floats

KINDS: Final = tuple(kind for kind in CLIENT_QUOTA_TYPES if kind.row.check_field)
"""The quota types whose checks are in activity events, by their index here."""

PRODUCE, FETCH, REQUEST, MUTATION = range(4)
NONE: Final = -1
"""No counter, or no quota type: nothing throttles this."""

NEVER: Final = 2**62
"""A time that is never reached."""

PRODUCES, FETCHES, MUTATES, STRICT, EXEMPT, REPEATED, UNTHROTTLED = 1, 2, 4, 8, 16, 32, 64
"""Bits of a request. A ``REPEATED`` one was rejected, or fetched nothing, when it was recorded, so
its client sent it again. An ``UNTHROTTLED`` one counts for its mutations, and these may be
rejected, but the request is not throttled: Metadata requests that create topics.
"""

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


class Requests(NamedTuple):
    """One row per request. Amounts are divided by the sampling rate of connections."""

    ms: Longs
    """The time of its first check, on the broker's clock."""
    order: Longs
    """The ordinal of that check, which defines the order; ties are broken by ``sequence``."""
    sequence: Longs
    group: Ints
    """The number of its sender."""
    flags: Bytes
    amount: Floats
    """Bytes that count for a byte quota, or mutations."""
    checked: Floats
    """Worker time before the check, in percent of a second."""
    late: Floats
    """Worker time after the check."""
    late_ms: Longs
    """The time when ``late`` was recorded, or ``NEVER``."""
    late_order: Longs
    time_order: Longs
    """The ordinal of the time check; equals ``order`` unless other senders share the time counter.
    """
    back_order: Longs
    """The ordinal at which bytes that were not fetched in the end were given back."""
    wall_ms: Longs
    """The wall clock at ``ms``."""
    lag_ms: Ints
    """How long before ``ms`` its mutations were recorded."""
    connection: Longs
    throttled_ms: Ints
    """The recorded throttle time."""


class Sharing(NamedTuple):
    """By group and quota type: the counter, or ``NONE``, and its bound."""

    counter: Ints
    bound: Floats
    counted_from_ms: Longs
    """By group: decisions before this time fill counters only, and are in no statistics."""


# Columns of a tally, by group and quota type; times are of the wall clock. The last three are the
# current minute.
REQUESTS, THROTTLED, TOTAL_MS, LONGEST_MS, FIRST_MS, LAST_MS = range(6)
MINUTE, MINUTE_COUNT, MINUTE_MS = range(6, 9)
Tally = Longs

# Rows of minutes: group, type, minute, number of throttles, throttle time. The first row holds the
# number of rows; rows beyond the capacity are omitted.
Minutes = Longs

# Columns of ends, by group: the end of the last request as recorded and as replayed, and the number
# of abandoned requests; only used in the closed loop.
RECORDED_END_MS, REPLAYED_END_MS, ABANDONED = range(3)
Ends = Longs


class Answers(NamedTuple):
    """The decisions by row; without capacity nothing is stored."""

    throttles: Longs
    """By row: the throttle time, and the quota type that imposed it, or ``NONE``."""
    type_throttles: Longs
    """By row and quota type: the throttle time of that type alone, or -1 if it was not checked."""
    rate: Floats
    """By row and quota type: the measured rate."""


class Pending(NamedTuple):
    """Worked time to be recorded later: an ordered linked list for each counter."""

    items: Longs
    """By item: its ordinal, the request's sequence, the next item (also in the free list), and the
    time.
    """
    values: Floats
    head: Longs
    """The first free item, followed by the first item of each counter."""


class Terms(NamedTuple):
    """The broker's settings for measuring quotas."""

    window_ms: int
    burst_s: float
    delays: bool
    """Whether responses are delayed (``quota.throttle.mode=delay``) instead of muting senders."""
    closed: bool
    """Whether a connection's next request waits for the previous one and its throttle."""
    fetch_cap_s: float
    """The most that one fetch returns, in seconds of the quota."""


def new_tally(groups: int) -> Tally:
    """Empty statistics for a number of groups."""
    return np.zeros((groups, len(KINDS), MINUTE_MS + 1), np.int64)


def new_minutes(rows: int) -> Minutes:
    """Empty rows of minutes."""
    found = np.empty((rows + 1, 5), np.int64)
    found[0, 0] = 0
    return found


def new_answers(rows: int) -> Answers:
    """Empty answers."""
    throttles = np.zeros((rows, 2), np.int64)
    throttles[:, 1] = NONE
    kinds = len(KINDS)
    return Answers(throttles, np.full((rows, kinds), -1, np.int64), np.zeros((rows, kinds)))


def new_pending() -> Pending:
    """Without capacity, for no counter."""
    return Pending(np.empty((0, 4), np.int64), np.empty(0), np.full(1, NONE, np.int64))


def more_pending(pending: Pending, rows: int, counters: int) -> Pending:
    """Add capacity for ``rows`` more items, and for ``counters`` counters in total."""
    items, values, head = pending
    used = len(items)
    fresh = np.empty((rows, 4), np.int64)
    fresh[:, 2] = np.arange(used + 1, used + rows + 1)
    fresh[-1:, 2] = head[0]
    heads = np.full(counters + 1, NONE, np.int64)
    heads[: len(head)] = head
    heads[0] = used if rows else head[0]
    return Pending(np.concatenate((items, fresh)), np.concatenate((values, np.empty(rows))), heads)

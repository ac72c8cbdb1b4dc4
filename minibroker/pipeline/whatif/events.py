"""What the replay is given and what it fills in, as columns: requests, sharing, tallies, answers.

Owns the layout that compiled code works on, and making it; it must never know an event's fields,
a quota file or Spark. Invariant: requests stand in the order in which counters that they share
saw them; numbers are integers, or floats that hold integers exactly, unless events were sampled.
Kafka has nothing like it, for it decides while requests come.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minibroker.pipeline.whatif.counters import Floats
from minibroker.quotas.entity import QuotaType

KINDS: Final = tuple(QuotaType)
"""The types of quotas by the numbers that they have here."""

PRODUCE, FETCH, REQUEST, MUTATION = range(4)
NOBODY: Final = -1
"""No counter, or no type of quota: nothing holds this."""

NEVER: Final = 2**62
"""A time that doesn't come."""

PRODUCES, FETCHES, MUTATES, STRICT, EXEMPT, REPEATED, UNHELD = 1, 2, 4, 8, 16, 32, 64
"""What a request is, as bits; a repeated one was refused, or fetched nothing, when it was recorded,
so that its sender had to make it again. An unheld one is counted for what it changes, and refused
that, but goes on: topics that Metadata would have made."""

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


class Requests(NamedTuple):
    """A row each. Amounts are divided by the share of connections that was recorded."""

    ms: Longs
    """When it was first checked, on the broker's clock."""
    order: Longs
    """The ordinal of that, which counters saw requests by; at one ordinal it is ``sequence``."""
    sequence: Longs
    group: Ints
    """The number of who sent it."""
    flags: Bytes
    amount: Floats
    """Bytes that a quota of bytes counts, or changes of the cluster."""
    checked: Floats
    """Percent of a second that was worked before the check."""
    late: Floats
    """The same of afterwards."""
    late_ms: Longs
    """When that was counted, or ``NEVER``."""
    late_order: Longs
    time_order: Longs
    """When its time was checked, which is ``order`` unless others share the counter of time."""
    back_order: Longs
    """When bytes that were not fetched after all were given back."""
    wall_ms: Longs
    """What the wall clock showed at ``ms``."""
    lag_ms: Ints
    """How long before it its changes of the cluster were counted."""
    connection: Longs
    held_ms: Ints
    """For how long its sender was held in fact."""


class Sharing(NamedTuple):
    """By group and type of quota: the counter, or ``NOBODY``, and its bound."""

    counter: Ints
    bound: Floats
    counted_from_ms: Longs
    """By group: what is decided earlier only fills counters, and is in no tally."""


# Of a tally, by group and type of quota; times are the wall clock's. The last three are the minute
# that is being added up.
REQUESTS, THROTTLED, TOTAL_MS, LONGEST_MS, FIRST_MS, LAST_MS = range(6)
MINUTE, MINUTE_COUNT, MINUTE_MS = range(6, 9)
Tally = Longs

# What was added up by minute: the group, the type, the minute, how often and for how long it was
# held. The first row holds how many rows there are; what there is no room for is left out.
Minutes = Longs

# Of ends, by group: the last request's as it was and as it would have been, and how many requests
# were given up; only where requests wait for each other.
ENDED_MS, WOULD_END_MS, GIVEN_UP = range(3)
Ends = Longs


class Answers(NamedTuple):
    """What is decided for each row; nothing is kept if there is no room."""

    held: Longs
    """By row: for how long, and the type of quota that did it last, or ``NOBODY``."""
    asked: Longs
    """By row and type of quota: what that one alone asked for, or -1 if it was not looked at."""
    rate: Floats
    """The same, of the rate that it saw."""


class Pending(NamedTuple):
    """What is yet to be counted, as worked time: by counter a list in order."""

    items: Longs
    """By item: its ordinal, the request's sequence, the next item, be it of those that are free,
    and when.
    """
    values: Floats
    head: Longs
    """The first item that is free; behind it by counter the first of its own."""


class Terms(NamedTuple):
    """How is counted: as the broker's settings had it."""

    window_ms: int
    burst_s: float
    delays: bool
    """Whether answers are kept back (``quota.throttle.mode=delay``) rather than senders muted."""
    closed: bool
    """Whether a connection's next request waits for the one before it and for its throttle."""
    fetch_cap_s: float
    """The most that is fetched at once, in seconds of the quota."""


def new_tally(groups: int) -> Tally:
    """Of so many groups, of which nothing is known yet."""
    return np.zeros((groups, len(KINDS), MINUTE_MS + 1), np.int64)


def new_minutes(rows: int) -> Minutes:
    """With room for so many."""
    found = np.empty((rows + 1, 5), np.int64)
    found[0, 0] = 0
    return found


def new_answers(rows: int) -> Answers:
    """With room for so many."""
    held = np.zeros((rows, 2), np.int64)
    held[:, 1] = NOBODY
    kinds = len(KINDS)
    return Answers(held, np.full((rows, kinds), -1, np.int64), np.zeros((rows, kinds)))


def new_pending() -> Pending:
    """Without any room, for no counter."""
    return Pending(np.empty((0, 4), np.int64), np.empty(0), np.full(1, NOBODY, np.int64))


def more_pending(pending: Pending, rows: int, counters: int) -> Pending:
    """The same with room for so many more, for so many counters in all."""
    items, values, head = pending
    used = len(items)
    fresh = np.empty((rows, 4), np.int64)
    fresh[:, 2] = np.arange(used + 1, used + rows + 1)
    fresh[-1:, 2] = head[0]
    heads = np.full(counters + 1, NOBODY, np.int64)
    heads[: len(head)] = head
    heads[0] = used if rows else head[0]
    return Pending(np.concatenate((items, fresh)), np.concatenate((values, np.empty(rows))), heads)

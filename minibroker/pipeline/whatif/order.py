"""The order in which counters see requests: by ordinal, then by sequence.

Owns detecting which rows of a batch are out of order, and sorting only those; it must never know
counters, only which senders share any. Invariant: requests of senders that share something are
ordered by ordinal and sequence; a batch in this order, like most of a table's files, is not copied.
Requests of different brokers have no order, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minibroker.pipeline.whatif.counters import compiled
from minibroker.pipeline.whatif.events import Flags, Ints, Longs, Requests


def in_order(requests: Requests, components: Sequence[int]) -> Requests:
    """Sort requests as needed; ``components`` has the component of each group."""
    of_group = np.array(components, np.int32)
    bad = np.zeros(len(of_group), np.bool_)
    _look(requests.order, requests.sequence, requests.group, of_group, bad)
    if not bad.any():
        return requests
    row_is_bad = bad[of_group[requests.group]]
    rows = np.flatnonzero(row_is_bad)
    mended = rows[np.lexsort((requests.sequence[rows], requests.order[rows]))]
    order = np.concatenate((np.flatnonzero(~row_is_bad), mended))
    return pick(requests, order)


def by_time(requests: Requests) -> Longs | None:
    """The rows in the order of their time checks, or None if it is the same order."""
    if np.array_equal(requests.time_order, requests.order):
        return None
    found: Longs = np.lexsort((requests.sequence, requests.time_order))
    return found


def pick(requests: Requests, rows: Longs) -> Requests:
    """Some rows, in the given order."""
    columns: Any = (column[rows] for column in requests)
    return Requests(*columns)


@compiled
def _look(order: Longs, sequence: Longs, group: Ints, of_group: Ints, bad: Flags) -> None:
    """Flag components in which a row comes before an earlier one."""
    last = np.full(len(of_group), -(2**62), np.int64)
    last_sequence = np.full(len(of_group), -1, np.int64)
    for row in range(len(order)):
        component = of_group[group[row]]
        if order[row] < last[component] or (
            order[row] == last[component] and sequence[row] < last_sequence[component]
        ):
            bad[component] = True
        last[component] = order[row]
        last_sequence[component] = sequence[row]

"""The order in which counters see requests: by ordinal, and at one ordinal by sequence.

Owns finding out what of a batch is out of order, and mending only that; it must never know what a
counter is, only who shares any. Invariant: requests of those who share something stand by ordinal
and sequence; a batch that does so already, as most of the files of an activity table, is not
touched. Between brokers there is no order, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minibroker.pipeline.whatif.counters import compiled
from minibroker.pipeline.whatif.events import Flags, Ints, Longs, Requests


def in_order(requests: Requests, components: Sequence[int]) -> Requests:
    """The same requests; ``components`` says by group who share something."""
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
    """The rows in the order in which their time was counted, where that is another one."""
    if np.array_equal(requests.time_order, requests.order):
        return None
    found: Longs = np.lexsort((requests.sequence, requests.time_order))
    return found


def pick(requests: Requests, rows: Longs) -> Requests:
    """Some of them, in an order."""
    columns: Any = (column[rows] for column in requests)
    return Requests(*columns)


@compiled
def _look(order: Longs, sequence: Longs, group: Ints, of_group: Ints, bad: Flags) -> None:
    """Marks the components of which something stands before what came earlier."""
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

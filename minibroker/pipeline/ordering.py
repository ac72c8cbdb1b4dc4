"""Compiled sorting, grouping and deduplication of events by integer keys.

Owns the sorts of a run of events; it must never know strings, files or the schema. Invariant: every
sort is stable, so several in a row sort by all of their keys.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from minibroker.pipeline.compiled_functions import compiled

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_BROKERS: Final = 1024
"""Slots for brokers whose last sequence is remembered during a run."""


@compiled
def number_pairs(ones: Any, others: Any, slots: Any, first: Any, found: Any) -> Any:
    """Number distinct pairs in the order of their first occurrence; return how many there are.

    ``slots`` is full of -1; its length is a power of two and at least twice the number of rows.
    ``first`` receives the row of each pair's first occurrence, ``found`` the pair of each row.
    """
    count, last = 0, len(slots) - 1
    for row in range(len(ones)):
        one, other = ones[row], others[row]
        hashed = (np.uint64(one) * _MIX ^ np.uint64(other)) * _MIX
        slot = np.int64((hashed >> np.uint64(16)) & np.uint64(last))
        while slots[slot] >= 0:
            at = first[slots[slot]]
            if ones[at] == one and others[at] == other:
                break
            slot = (slot + 1) & last
        if slots[slot] < 0:
            slots[slot] = count
            first[count] = row
            count += 1
        found[row] = slots[slot]
    return count


@compiled
def order_by(order: Any, ranks: Any, starts: Any, out: Any) -> None:
    """Counting sort: write the rows in ``order`` to ``out``, sorted by their rank.

    ``starts`` comes in zeroed, with one entry more than there are ranks; it receives the start of
    each rank in ``out``.
    """
    for row in order:
        starts[ranks[row] + 1] += 1
    for rank in range(1, len(starts)):
        starts[rank] += starts[rank - 1]
    for row in order:
        rank = ranks[row]
        out[starts[rank]] = row
        starts[rank] += 1
    for rank in range(len(starts) - 1, 0, -1):
        starts[rank] = starts[rank - 1]
    starts[0] = 0


@compiled
def spans(brokers: Any, sequences: Any, latest: Any, out: Any) -> Any:
    """Find consecutive sequences of each broker; return the number of spans.

    ``out`` receives (broker, first, last) of each span, and has room for one per row; ``latest`` is
    full of -1 and has ``_BROKERS`` entries. Two brokers that share a slot only split a span.
    """
    count = 0
    for row in range(len(brokers)):
        broker, sequence = brokers[row], sequences[row]
        slot = broker & (_BROKERS - 1)
        span = latest[slot]
        if span >= 0 and out[span, 0] == broker and out[span, 2] + 1 == sequence:
            out[span, 2] = sequence
        else:
            out[count, 0], out[count, 1], out[count, 2] = broker, sequence, sequence
            latest[slot] = count
            count += 1
    return count


def spans_of(brokers: Any, sequences: Any) -> Any:
    """Rows of (broker, first, last) for consecutive sequences."""
    latest = np.full(_BROKERS, -1, np.int64)
    out = np.empty((len(brokers), 3), np.int64)
    return out[: spans(brokers, sequences, latest, out)].copy()


def pairs_of(ones: Any, others: Any) -> tuple[Any, Any]:
    """(the row of each distinct pair's first occurrence, the pair number of each row)."""
    count = len(ones)
    slots = np.full(1 << max(2 * count - 1, 1).bit_length(), -1, np.int32)
    first, found = np.empty(count, np.int64), np.empty(count, np.int64)
    return first[: number_pairs(ones, others, slots, first, found)], found


def ordered(order: Any, ranks: Any, count: int) -> tuple[Any, Any]:
    """(the rows of ``order`` by rank, the start of each of ``count`` ranks followed by the end)."""
    starts, out = np.zeros(count + 1, np.int64), np.empty_like(order)
    order_by(order, ranks, starts, out)
    return out, starts

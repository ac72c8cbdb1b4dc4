"""Sets of event sequences as spans: which events a table contains, or a step adds.

Owns sets of (broker, sequence), stored as rows of (broker, first, last); it must never know events,
tables or files. Invariant: a set contains at least the sequences added to it. It contains more only
if it would exceed ``SPANS_MAX`` otherwise: two disjoint sets have no event in common, and
overlapping ones must be compared event by event. A broker numbers its events consecutively, so they
are one span.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

SPANS_MAX: Final = 50_000
"""Spans of a stored set; above that, gaps are filled, the smallest first."""

NO_SPANS: Final = np.empty((0, 3), np.int64)


def spans_of(brokers: Any, sequences: Any) -> Any:
    """Spans of consecutive sequences; a repeated sequence is in two of them."""
    order = np.lexsort((sequences, brokers))
    brokers, sequences = brokers[order], sequences[order]
    if not len(order):
        return NO_SPANS
    ends = (np.diff(brokers) != 0) | (np.diff(sequences) != 1)
    first, last = np.append(True, ends), np.append(ends, True)
    return np.column_stack([brokers[first], sequences[first], sequences[last]])


def spans_overlap(spans: Any) -> bool:
    """Whether any sequence is in two spans."""
    spans = _sorted(spans)
    same = spans[1:, 0] == spans[:-1, 0]
    return bool((same & (spans[1:, 1] <= spans[:-1, 2])).any())


def merge_spans(spans: Any, most: int = SPANS_MAX) -> Any:
    """Merge spans; fill the smallest gaps if more than ``most`` spans would remain."""
    spans = _sorted(spans)
    if not len(spans):
        return spans
    # By the largest end so far of the broker, because a span may be inside another.
    begins = np.flatnonzero(np.diff(spans[:, 0], prepend=spans[0, 0] - 1))
    for begin, end in zip(begins, [*begins[1:], len(spans)], strict=True):
        np.maximum.accumulate(spans[begin:end, 2], out=spans[begin:end, 2])
    gaps = spans[1:, 1] - spans[:-1, 2] - 1
    gaps[spans[1:, 0] != spans[:-1, 0]] = np.iinfo(np.int64).max
    filled = 0
    if (gaps > 0).sum() >= most:
        filled = int(np.partition(gaps, len(gaps) - most)[len(gaps) - most])
    new = np.flatnonzero(np.append(True, gaps > filled))
    last = np.append(new[1:], len(spans)) - 1
    return np.column_stack([spans[new, 0], spans[new, 1], spans[last, 2]])


def _sorted(spans: Any) -> Any:
    return spans[np.lexsort((spans[:, 1], spans[:, 0]))]


def spans_to_json(spans: Any) -> dict[str, list[int]]:
    """Lists of alternating first and last sequences, by broker."""
    return {
        str(broker): spans[spans[:, 0] == broker, 1:].ravel().tolist()
        for broker in np.unique(spans[:, 0]).tolist()
    }


def spans_from_json(found: Mapping[str, list[int]]) -> Any:
    """The inverse of ``spans_to_json``."""
    parts = []
    for broker, flat in found.items():
        pairs = np.array(flat, np.int64).reshape(-1, 2)
        parts.append(np.insert(pairs, 0, int(broker), axis=1))
    return np.concatenate(parts) if parts else NO_SPANS

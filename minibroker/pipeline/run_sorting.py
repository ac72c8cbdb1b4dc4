"""Sorts events into the places (hour and bucket) of their files, and deduplicates them.

Owns what depends on all events of a run together; it must never know files or Spark. Invariant: of
the events of a place with the same broker and sequence only the first is kept, and the reported
sequence spans are those of the kept events.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from minibroker.lab.activity.schema import ActivityKind
from minibroker.pipeline.grouping import coded, joined, numbered, starts_of
from minibroker.pipeline.layout import BUCKETS, HOUR_US, bucket_of, place_of
from minibroker.pipeline.sequence_spans import spans_of, spans_overlap


class SortedRun(NamedTuple):
    """The events of a run by place."""

    places: dict[str, pa.Table]
    """The events of each place, in the order of its file."""
    spans: Any
    """Rows of (broker, first, last): the sequences of the kept events, unsorted."""


def sort_run(events: pa.Table) -> SortedRun:
    """The events of a run, sorted within each place by ``layout.SORTED_BY``.

    Each column of texts has one dictionary.
    """
    brokers, sequences, times = (
        events[name].to_numpy() for name in ("broker", "sequence", "time_us")
    )
    brokers = brokers.astype(np.int64)
    entity_of, ranks, buckets = _entities(events)
    found, at = np.unique(times // HOUR_US, return_inverse=True)
    places = at * BUCKETS + buckets
    order = np.lexsort((brokers, sequences, times, ranks[entity_of], places))
    spans = spans_of(brokers, sequences)
    if spans_overlap(spans):
        order = order[_first_ones(places, brokers, sequences)[order]]
        kept = np.sort(order)
        spans = spans_of(brokers[kept], sequences[kept])
    starts = starts_of(places[order], len(found) * BUCKETS)
    sorted_events = _taken(events, pa.array(order))
    return SortedRun(
        {
            place_of(int(found[place // BUCKETS]), place % BUCKETS): sorted_events[start:end]
            for place, (start, end) in enumerate(pairwise(starts))
            if end > start
        },
        spans,
    )


def _taken(events: pa.Table, order: pa.Array) -> pa.Table:
    """The rows in this order. Many columns contain nothing but nulls, which have no order."""
    columns = [
        pa.nulls(len(order), each.type) if each.null_count == len(each) else each.take(order)
        for each in events.columns
    ]
    return pa.Table.from_arrays(columns, schema=events.schema)


def _first_ones(*keys: Any) -> Any:
    """Flag the rows that are the first with their keys."""
    order = np.lexsort(keys[::-1])
    again = np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys])
    first = np.ones(len(order), np.bool_)
    first[order[1:][again]] = False
    return first


def _entities(events: pa.Table) -> tuple[Any, Any, Any]:
    """(the entity of each row, the sort rank of each entity, the bucket of each row)."""
    (users, user_names), (clients, client_names) = (
        _numbered(events[name]) for name in ("user", "client_id")
    )
    rows, entity_of = numbered(joined([users, clients]))
    names = [(user_names[users[row]], client_names[clients[row]]) for row in rows]
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=lambda at: [(n is not None, n) for n in names[at]])] = (
        np.arange(len(names))
    )
    buckets = np.array([bucket_of(*name) for name in names], np.int64)[entity_of]
    kinds, kind_names = _numbered(events["kind"])
    connection = str(ActivityKind.CONNECTION)
    if connection in kind_names:
        ips, addresses = _numbered(events["ip"])
        by_ip = np.array([bucket_of(ip) for ip in addresses], np.int64)
        of_connections = np.flatnonzero(kinds == kind_names.index(connection))
        buckets[of_connections] = by_ip[ips[of_connections]]
    return entity_of, ranks, buckets


def _numbered(column: pa.ChunkedArray) -> tuple[Any, list[str | None]]:
    """(the number of each row's text, the texts by number, of which the last is a null's)."""
    numbers, texts = coded(column)
    return numbers, [*texts.to_pylist(), None]

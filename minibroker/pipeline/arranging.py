"""Sorts a run of events into the places (hour and bucket) of their files, and deduplicates it.

Owns what depends on all events of a run together; it must never know files or Spark. Invariant: of
the events of a place with the same broker and sequence only the first is kept, and the reported
sequence spans are those of the kept events.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from minibroker.activity.schema import ActivityKind
from minibroker.pipeline.columns import KINDS, EventRun, Keys
from minibroker.pipeline.layout import BUCKETS, HOUR_US, bucket_of, place_of
from minibroker.pipeline.ordering import ordered, pairs_of, spans_of
from minibroker.pipeline.sequence_spans import spans_overlap
from minibroker.pipeline.string_table import strings_of

_NONE: Final = -1
_CONNECTION: Final = KINDS.index(str(ActivityKind.CONNECTION).encode())


class Arranged(NamedTuple):
    """The events of a run by place."""

    places: dict[str, Any]
    """Row numbers of each place, in the order of its file."""
    spans: Any
    """Rows of (broker, first, last): the sequences of the kept events, unsorted."""
    texts: list[bytes]


def arrange(run: EventRun) -> Arranged:
    """The events of a run, sorted within each place by ``layout.SORTED_BY``."""
    texts = strings_of(run.texts)
    keys = run.keys
    brokers, sequences = keys.brokers, keys.sequences
    entity_of, ranks, buckets = _entities(keys, texts)
    hours = keys.times // HOUR_US
    found, at = (hours[:1], 0) if _all_alike(hours) else np.unique(hours, return_inverse=True)
    places = at * BUCKETS + buckets
    order = _by_time(keys)
    spans = spans_of(brokers, sequences)
    if spans_overlap(spans):
        order = order[_first_ones(places, brokers, sequences)[order]]
        kept = np.sort(order)
        spans = spans_of(brokers[kept], sequences[kept])
    order, _ = ordered(order, ranks[entity_of], len(ranks))
    order, starts = ordered(order, places, len(found) * BUCKETS)
    return Arranged(
        {
            place_of(int(found[place // BUCKETS]), place % BUCKETS): order[start:end]
            for place, (start, end) in enumerate(pairwise(starts))
            if end > start
        },
        spans,
        texts,
    )


def _all_alike(values: Any) -> bool:
    return bool(len(values) and (values == values[0]).all())


def _by_time(keys: Keys) -> Any:
    """All rows by time, then sequence, then broker. The input is mostly sorted already."""
    order = np.argsort(keys.times, kind="stable")
    again = np.diff(keys.times[order]) == 0
    alike = np.flatnonzero(np.append(again, False) | np.insert(again, 0, False))
    if len(alike):
        rows = order[alike]
        order[alike] = rows[np.lexsort(tuple(key[rows] for key in keys[:3]))]
    return order


def _first_ones(*keys: Any) -> Any:
    """Flag the rows that are the first with their keys."""
    order = np.lexsort(keys[::-1])
    again = np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys])
    first = np.ones(len(order), np.bool_)
    first[order[1:][again]] = False
    return first


def _entities(keys: Keys, texts: list[bytes]) -> tuple[Any, Any, Any]:
    """(the entity of each row, the sort rank of each entity, the bucket of each row)."""
    users, clients = keys.users, keys.clients
    rows, entity_of = pairs_of(users, clients)
    names = [(_text(texts, users[row]), _text(texts, clients[row])) for row in rows]
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=lambda at: [(n is not None, n) for n in names[at]])] = (
        np.arange(len(names))
    )
    buckets = np.array([bucket_of(*name) for name in names], np.int64)[entity_of]
    of_connections = np.flatnonzero(keys.kinds == _CONNECTION)
    if len(of_connections):
        ips, ip_of = np.unique(keys.ips[of_connections], return_inverse=True)
        by_ip = np.array([bucket_of(texts[ip].decode()) for ip in ips], np.int64)
        buckets[of_connections] = by_ip[ip_of]
    return entity_of, ranks, buckets


def _text(texts: list[bytes], number: int) -> str | None:
    return None if number == _NONE else texts[number].decode()

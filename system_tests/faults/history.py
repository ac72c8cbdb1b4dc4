"""Records that were sent, acknowledged and read, and the anomalies among them.

Owns the record of a run and the names of anomalies. It must never know clients, brokers or time.
Invariant: every record has a key and the next number of that key, so that each anomaly is found by
comparing numbers. The names are those of Maelstrom's Kafka workload: *lost* (acknowledged, not in
the log), *duplicate* (in the log twice), *nonmonotonic* (a key's numbers decrease along the log),
*skipped* (a consumer passed over a record); *invented* is added for records that were never sent
and *misplaced* for those at another place than acknowledged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Mark(NamedTuple):
    """The identity of a record: the `sequence`-th of its key, counted from 0."""

    key: int
    sequence: int


class Place(NamedTuple):
    partition: int
    offset: int


class Entry(NamedTuple):
    """A record found at a place, in the log or by a consumer."""

    place: Place
    mark: Mark


@dataclass
class History:
    """One run. `consumed` holds what each consumer was handed, in its order."""

    sent: set[Mark] = field(default_factory=set)
    acknowledged: dict[Mark, Place] = field(default_factory=dict)
    failed: dict[Mark, str] = field(default_factory=dict)
    log: list[Entry] = field(default_factory=list)
    consumed: dict[str, list[Entry]] = field(default_factory=dict)


@dataclass(repr=False)
class Anomalies:
    lost: list[Mark]
    duplicate: list[Mark]
    nonmonotonic: list[Entry]
    skipped: list[Entry]
    invented: list[Entry]
    misplaced: list[Mark]

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __repr__(self) -> str:
        found = {name: entries for name, entries in vars(self).items() if entries}
        each = [f"{len(entries)} {name}, the first {entries[0]}" for name, entries in found.items()]
        return f"<{'; '.join(each) or 'nothing wrong'}>"


def find_anomalies(history: History, *, allow_duplicates: bool = False) -> Anomalies:
    """Compare the three; `history.log` must be the whole log, in offset order per partition.

    With `allow_duplicates` (a producer that may send again) the second copy of a record is no
    anomaly, nor is it one that the order of a key's numbers falls at such a copy.
    """
    places: dict[Mark, list[Place]] = defaultdict(list)
    for entry in history.log:
        places[entry.mark].append(entry.place)
    copies = {Entry(place, mark) for mark, found in places.items() for place in sorted(found)[1:]}
    firsts = [entry for entry in history.log if not (allow_duplicates and entry in copies)]
    return Anomalies(
        lost=[mark for mark in history.acknowledged if mark not in places],
        duplicate=[] if allow_duplicates else [m for m, found in places.items() if len(found) > 1],
        nonmonotonic=_falling(firsts),
        skipped=_skipped(history),
        invented=[entry for entry in history.log if entry.mark not in history.sent],
        misplaced=[
            mark
            for mark, place in history.acknowledged.items()
            if mark in places and place not in places[mark]
        ],
    )


def _falling(entries: Iterable[Entry]) -> list[Entry]:
    highest: dict[tuple[int, int], int] = {}
    falling = []
    for entry in sorted(entries):
        at = (entry.place.partition, entry.mark.key)
        if entry.mark.sequence < highest.get(at, -1):
            falling.append(entry)
        else:
            highest[at] = entry.mark.sequence
    return falling


def _skipped(history: History) -> list[Entry]:
    """Return the records between two that one consumer got one after the other.

    A consumer may go back (after a rebalance, to the committed offset) and may be assigned another
    partition; it may not skip a record that no member of its group got.
    """
    handed = {entry.place for entries in history.consumed.values() for entry in entries}
    by_place = {entry.place: entry for entry in history.log}
    reached: dict[int, int] = {}
    for place in handed:
        reached[place.partition] = max(reached.get(place.partition, -1), place.offset)
    return [
        entry
        for place, entry in sorted(by_place.items())
        if place.offset < reached.get(place.partition, -1) and place not in handed
    ]

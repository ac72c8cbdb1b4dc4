"""The history of a run's clients, and its verification.

Owns the facts and the verdict. It must never know clients or broker. Pure: actors report events,
``judge`` compares them with the logs at the end. Invariant: an anomaly is named for what is wrong
(lost, moved, doubled, disordered, skipped, stale, shared, forgotten, unread), never for its cause.
After Kafka's ``validate_delivery`` and Maelstrom's ``workload/kafka.clj``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

Partition = tuple[str, int]
Log = Mapping[Partition, Mapping[int, str]]
"""Values by offset, as they are read when all is over."""


FIRST_GENERATIONS: Final = 5


class Anomaly(NamedTuple):
    """One thing that must not be."""

    kind: str
    text: str


class History:
    """Everything that was reported so far. A value is ``<producer>:<number>``, numbers growing."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[Partition, str], int] = {}
        self.consumed: dict[str, dict[Partition, list[tuple[int, str]]]] = {}
        self.anomalies: list[Anomaly] = []
        self._ends: dict[Partition, int] = {}
        self._committed: dict[tuple[str, Partition], int] = {}
        self._consumers: dict[str, list[str]] = {}
        self._assigned: dict[tuple[str, int, Partition], str] = {}
        self._generations: dict[str, int] = {}
        """The last generation that was reported of each group."""
        self._holders: dict[tuple[str, Partition], tuple[str, float]] = {}
        """Who has a partition, or a task, of a group, and the end of its session."""
        self._held: dict[tuple[str, str], frozenset[Partition]] = {}

    def wrong(self, kind: str, text: str) -> None:
        """A violation of the guarantees."""
        self.anomalies.append(Anomaly(kind, text))

    def appended(self, partition: Partition, base_offset: int, values: Sequence[str]) -> None:
        """A producer got the offset of its records."""
        for offset, value in enumerate(values, base_offset):
            self.acknowledged[partition, value] = offset
        self.saw_end(partition, base_offset + len(values))

    def saw_end(self, partition: Partition, end: int) -> None:
        """A client got this end of a partition."""
        self._ends[partition] = max(self._ends.get(partition, 0), end)

    def known_end(self, partition: Partition) -> int:
        """Return the lowest end that later requests may get."""
        return self._ends.get(partition, 0)

    def shown_end(self, partition: Partition, known: int, end: int) -> None:
        """A client that requested when ``known`` was known gets ``end``."""
        if end < known:
            self.wrong("stale", f"{partition} ends at {end}, but {known} was shown before")
        self.saw_end(partition, end)

    def read(self, consumer: str, partition: Partition, offset: int, value: str) -> None:
        """A consumer got a record."""
        self.consumed.setdefault(consumer, {}).setdefault(partition, []).append((offset, value))

    def assigned(
        self, group: str, generation: int, member: str, partitions: Sequence[Partition]
    ) -> None:
        """A member of a group was given partitions."""
        for partition in partitions:
            other = self._assigned.setdefault((group, generation, partition), member)
            if other != member:
                self.wrong(
                    "shared",
                    f"{partition} belongs to {other} and {member} in generation {generation}",
                )

    def assigned_in_mixed_group(
        self, group: str, generation: int, member: str, partitions: Sequence[Partition]
    ) -> None:
        """The same in a group of both protocols, whose generations may start again.

        An empty group of one type is replaced by a new one of the other type. Its first
        generations prove nothing, as the group before may have had no more than these.
        """
        if generation < self._generations.get(group, 0):
            for key in [each for each in self._assigned if each[0] == group]:
                del self._assigned[key]
        self._generations[group] = generation
        if generation > FIRST_GENERATIONS:
            self.assigned(group, generation, member, partitions)

    def held(
        self, group: str, client: str, partitions: Iterable[Partition], until: float, now: float
    ) -> None:
        """A member has exactly these partitions, and its session does not end before ``until``.

        Until then no other member may get them, whatever its generation, unless the member has
        fewer, or lets them go.
        """
        held = frozenset(partitions)
        for partition in self._held.get((group, client), frozenset()) - held:
            del self._holders[group, partition]
        for partition in sorted(held):
            other, end = self._holders.get((group, partition), (client, until))
            if other != client:
                if end > now:
                    self.wrong("shared", f"{client} gets {partition} while {other} has it")
                self._held[group, other] -= {partition}
            self._holders[group, partition] = client, until
        self._held[group, client] = held

    def let_go(self, group: str, client: str) -> None:
        """A member has no partition, or it is unknown which ones the group takes for its own."""
        self.held(group, client, (), 0.0, 0.0)

    def joined(self, group: str, consumer: str) -> None:
        """A consumer reads for a group."""
        self._consumers.setdefault(group, []).append(consumer)

    def committed(self, group: str, partition: Partition, offset: int) -> None:
        """A commit was acknowledged, or its offset was shown."""
        self._committed[group, partition] = max(offset, self.known_commit(group, partition))

    def known_commit(self, group: str, partition: Partition) -> int:
        """Return the lowest committed offset that later requests may get; -1 for none."""
        return self._committed.get((group, partition), -1)

    def shown_commit(self, group: str, partition: Partition, known: int, offset: int) -> None:
        """A client that requested when ``known`` was known gets ``offset``."""
        if offset < known:
            self.wrong(
                "forgotten", f"{group} is shown {offset} in {partition}; {known} was committed"
            )
        self.committed(group, partition, offset)

    def unread(self, log: Log) -> Iterator[Anomaly]:
        """Records below committed offsets that no member of the group has read."""
        for (group, partition), end in self._committed.items():
            consumers = self._consumers.get(group, ())
            read = {
                offset
                for consumer in consumers
                for offset, _ in self.consumed.get(consumer, {}).get(partition, ())
            }
            for offset, value in log.get(partition, {}).items() if consumers else ():
                if offset < end and offset not in read:
                    yield Anomaly(
                        "unread", f"{group} committed {end} in {partition} without {value}"
                    )


def judge(history: History, log: Log) -> list[Anomaly]:
    """All that is wrong, with the logs as they are in the end."""
    return [
        *history.anomalies,
        *_lost_or_moved(history, log),
        *_doubled_or_disordered(log),
        *_misread(history, log),
        *history.unread(log),
    ]


def _lost_or_moved(history: History, log: Log) -> Iterator[Anomaly]:
    for (partition, value), offset in history.acknowledged.items():
        found = log.get(partition, {}).get(offset)
        if found != value:
            kind = "moved" if value in log.get(partition, {}).values() else "lost"
            yield Anomaly(kind, f"{value} was acknowledged at {offset} of {partition}: {found}")


def _doubled_or_disordered(log: Log) -> Iterator[Anomaly]:
    for partition, values in log.items():
        for value, times in Counter(values.values()).items():
            if times > 1:
                yield Anomaly("doubled", f"{value} is {times} times in {partition}")
        newest: dict[str, int] = {}
        for offset in sorted(values):
            producer, _, number = values[offset].rpartition(":")
            if int(number) < newest.get(producer, -1):
                yield Anomaly("disordered", f"{values[offset]} comes late in {partition}")
            newest[producer] = int(number)
        if sorted(values) != list(range(len(values))):
            yield Anomaly("skipped", f"{partition} has gaps")


def _misread(history: History, log: Log) -> Iterator[Anomaly]:
    for consumer, partitions in history.consumed.items():
        for partition, records in partitions.items():
            for before, (offset, _) in pairwise(records):
                if offset != before[0] + 1:
                    yield Anomaly(
                        "skipped", f"{consumer} got {offset} after {before[0]} of {partition}"
                    )
            for offset, value in records:
                if log.get(partition, {}).get(offset) != value:
                    yield Anomaly("lost", f"{consumer} got {value} at {offset} of {partition}")

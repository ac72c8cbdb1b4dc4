"""What members of a share group got and said of it, and its verification.

Owns the facts and the verdict. It must never know clients or broker. Pure: members report events
with their times, `lost` compares them with the logs at the end. Invariant: only what is certain is
an anomaly. A response that is lost may have acquired records, one that arrives late may have
acquired them at any time since its request, and a request without a response may have acknowledged
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tests.simulation.history import Anomaly, Log, Partition

DELIVERIES_MAX: Final = 5
"""The delivery count limit of the group."""

Record = tuple[Partition, int]
"""Partition and offset."""


class Delivery(NamedTuple):
    """Records of a partition, as one response has them."""

    member: str
    partition: Partition
    requested: float
    """When the request was sent: the records were acquired later."""
    received: float
    lock_s: float
    kills: int
    """`ShareHistory.kills` when the request was sent."""
    values: dict[int, tuple[str, int]]
    """Value and delivery count by offset."""


class _Lock(NamedTuple):
    member: str
    until: float
    """A time before which the lock does not expire."""


class ShareHistory:
    """Everything that was reported so far."""

    def __init__(self) -> None:
        self.anomalies: list[Anomaly] = []
        self.delivered: dict[Record, int] = {}
        """The highest delivery count that was seen of each record."""
        self.lost_fetches = 0
        """Requests that may have acquired records for a response that did not arrive."""
        self.kills = 0
        """How often a process was killed, which may have released any record."""
        self._values: dict[Record, str] = {}
        self._locks: dict[Record, _Lock] = {}
        self._finished: dict[Record, float] = {}
        """When it became certain that a record is accepted or rejected."""
        self._maybe_finished: set[Record] = set()

    def deliver(self, delivery: Delivery) -> None:
        """A member got records."""
        lock = _Lock(delivery.member, delivery.requested + delivery.lock_s)
        for offset, (value, count) in delivery.values.items():
            record = delivery.partition, offset
            self._check_delivery(delivery, record, count)
            if delivery.kills == self.kills:
                self._locks[record] = lock
            self._values[record] = value
            self.delivered[record] = max(count, self.delivered.get(record, 0))

    def _check_delivery(self, delivery: Delivery, record: Record, count: int) -> None:
        (topic, index), offset = record
        about = f"{topic}-{index} at {offset}, delivered to {delivery.member}"
        if not 1 <= count <= DELIVERIES_MAX:
            self._wrong("counted", f"{about} for the {count}th time")
        if record in self._finished and self._finished[record] < delivery.requested:
            self._wrong("repeated", f"{about} after it was accepted or rejected")
        lock = self._locks.get(record) if delivery.kills == self.kills else None
        ends = min(delivery.requested + delivery.lock_s, lock.until if lock else 0.0)
        if lock is not None and lock.member != delivery.member and delivery.received < ends:
            self._wrong("shared", f"{about} while {lock.member} has it")

    def _wrong(self, kind: str, text: str) -> None:
        self.anomalies.append(Anomaly(kind, text))

    def acknowledge(self, partition: Partition, offsets: Iterable[int], *, finishes: bool) -> None:
        """A member sends an acknowledgement, which releases, accepts or rejects records."""
        for record in ((partition, offset) for offset in offsets):
            self._locks.pop(record, None)
            if finishes:
                self._maybe_finished.add(record)

    def finish(self, partition: Partition, offsets: Iterable[int], now: float) -> None:
        """The acknowledgement that accepts or rejects records has succeeded."""
        for offset in offsets:
            self._finished.setdefault((partition, offset), now)

    def let_go(self, member: str) -> None:
        """A member has lost its session, so its records may be released."""
        for record in [each for each, lock in self._locks.items() if lock.member == member]:
            del self._locks[record]

    def kill(self) -> None:
        """A process is killed."""
        self.kills += 1
        self._locks.clear()

    def lost(self, log: Log) -> Iterator[Anomaly]:
        """Records that are finished too early, and values that are not those of the log.

        The share group must have finished all records.
        """
        for partition, values in log.items():
            for offset, value in values.items():
                yield from self._check_end((partition, offset), value)

    def _check_end(self, record: Record, value: str) -> Iterator[Anomaly]:
        seen = self._values.get(record, value)
        if seen != value:
            yield Anomaly("moved", f"{record} was delivered as {seen}, and is {value}")
        most = self.delivered.get(record, 0) + self.lost_fetches
        if record not in self._maybe_finished and most < DELIVERIES_MAX:
            yield Anomaly("lost", f"{value} at {record} was delivered {most} times at most")


def ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """First and last offset of consecutive ones."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] + 1 == offset:
            found[-1] = found[-1][0], offset
        else:
            found.append((offset, offset))
    return found


def by_partition(records: Iterable[Record]) -> dict[Partition, list[int]]:
    """Offsets by partition."""
    found: defaultdict[Partition, list[int]] = defaultdict(list)
    for partition, offset in records:
        found[partition].append(offset)
    return found

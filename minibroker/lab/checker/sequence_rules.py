"""Anomalies of order: polls and sends that pass over records, repeat them, or go back.

Owns the comparison of successive polls and sends. It must never know time: only the order within an
operation and within a process counts. Invariant: a record that no client could have polled (it is
lost, or its transaction aborted) does not count as skipped, and neither does one that the same
operations polled elsewhere, because these are other anomalies. Sends are compared by the first
index of their value, polls by their offset, so that a duplicate is no disorder. Two values at one
index are inconsistent offsets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

from minibroker.lab.checker.anomalies import FoundAnomaly
from minibroker.lab.checker.client_history import (
    ClientOperation,
    IsolationLevel,
    OperationKind,
    OperationResult,
    PolledRecord,
    SentRecord,
    Value,
)
from minibroker.lab.checker.record_order import Observations


def sequence_anomalies(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find the anomalies within operations and between those of a process."""
    pollable = {key: PollableRecords(observations, key) for key in observations.orders}
    for operation in observations.history.completed:
        for key in operation.polls.keys() - operation.rebalanced:
            yield from _internal_polls(operation, key, pollable[key])
        for key, records in operation.sends.items():
            yield from _internal_sends(observations, operation, key, records)
    yield from _polls_of_processes(observations, pollable)
    yield from _sends_of_processes(observations)


class PollableRecords:
    """The indexes of a key whose records every consumer must poll when it passes them."""

    def __init__(self, observations: Observations, key: str) -> None:
        self.order = observations.orders[key]
        lost = observations.lost.get(key, set())
        writers = observations.writer_of.get(key, {})
        hides_aborted = observations.settings.isolation_level is IsolationLevel.READ_COMMITTED

        def must_be_polled(value: Value) -> bool:
            writer = writers.get(value)
            aborted = hides_aborted and writer is not None and writer.result is OperationResult.FAIL
            return value not in lost and not aborted

        self._must = [
            all(must_be_polled(value) for value in self.order.values_at(index))
            for index in range(len(self.order.values))
        ]
        self._before = [0, *accumulate(self._must)]

    def index(self, record: PolledRecord) -> int:
        """Return the index of a polled record."""
        return self.order.index_of_offset[record.offset]

    def indexes(self, records: Iterable[PolledRecord]) -> list[int]:
        """Return the sorted indexes, of those that count, of polled records."""
        return sorted({index for index in map(self.index, records) if self._must[index]})

    def skipped(self, previous: int, following: int, polled: list[int]) -> int:
        """Count the records between two indexes that were not polled, given sorted indexes."""
        if following <= previous + 1:
            return 0
        between = self._before[following] - self._before[previous + 1]
        return between - (bisect_left(polled, following) - bisect_left(polled, previous + 1))


def _internal_polls(
    operation: ClientOperation, key: str, pollable: PollableRecords
) -> Iterator[FoundAnomaly]:
    polled = operation.polls[key]
    indexes = [pollable.index(record) for record in polled]
    if all(following == previous + 1 for previous, following in pairwise(indexes)):
        return
    own = pollable.indexes(polled)
    for (earlier, previous), (later, following) in pairwise(zip(polled, indexes, strict=True)):
        where = (
            f"line {operation.line} polled offset {later.offset} after offset {earlier.offset} "
            f"of {key}"
        )
        if following <= previous:
            yield FoundAnomaly("internal-nonmonotonic-poll", where, (operation.line,), key)
        elif skipped := pollable.skipped(previous, following, own):
            yield FoundAnomaly(
                "internal-poll-skip", f"{where}, and skipped {_records(skipped)}",
                (operation.line,), key,
            )  # fmt: skip


def _internal_sends(
    observations: Observations, operation: ClientOperation, key: str, records: list[SentRecord]
) -> Iterator[FoundAnomaly]:
    first_index = _first_indexes(observations, key)
    for earlier, later in pairwise(records):
        previous, following = first_index.get(earlier.value), first_index.get(later.value)
        if previous is None or following is None or following == previous + 1:
            continue
        values = f"value {later.value!r} to {key} after value {earlier.value!r}"
        if following > previous:
            yield FoundAnomaly(
                "internal-send-skip",
                f"line {operation.line} sent {values}; {_records(following - previous - 1)} of "
                "others are between them",
                (operation.line,),
                key,
            )
        elif following < previous:
            yield FoundAnomaly(
                "internal-nonmonotonic-send",
                f"line {operation.line} sent {values}, but it is before it in the log",
                (operation.line,),
                key,
            )


def _polls_of_processes(
    observations: Observations, pollable: dict[str, PollableRecords]
) -> Iterator[FoundAnomaly]:
    last: dict[int, dict[str, ClientOperation]] = {}
    for operation in observations.history.completed:
        positions = last.setdefault(operation.process, {})
        _forget_positions(positions, operation)
        for key, polled in operation.polls.items():
            earlier = positions.get(key)
            if earlier is not None:
                yield from _between_operations(earlier, operation, key, pollable[key])
            if operation.result is OperationResult.OK and polled:
                positions[key] = operation


def _forget_positions(positions: dict[str, ClientOperation], operation: ClientOperation) -> None:
    if operation.kind is OperationKind.REOPEN:
        positions.clear()
    elif operation.kind in (OperationKind.ASSIGN, OperationKind.SUBSCRIBE):
        if operation.result is OperationResult.FAIL:
            return
        kept = () if operation.from_beginning else operation.keys
        for key in positions.keys() - set(kept):
            del positions[key]


def _between_operations(
    earlier: ClientOperation, operation: ClientOperation, key: str, pollable: PollableRecords
) -> Iterator[FoundAnomaly]:
    last, first = earlier.polls[key][-1], operation.polls[key][0]
    previous, following = pollable.index(last), pollable.index(first)
    where = (
        f"line {operation.line} polled offset {first.offset} of {key}, and line {earlier.line} of "
        f"the same process ended with offset {last.offset}"
    )
    lines = (earlier.line, operation.line)
    if following <= previous:
        yield FoundAnomaly("nonmonotonic-poll", where, lines, key)
    elif following > previous + 1:
        polled = pollable.indexes([*earlier.polls[key], *operation.polls[key]])
        if skipped := pollable.skipped(previous, following, polled):
            text = f"{where}, so it skipped {_records(skipped)}"
            yield FoundAnomaly("poll-skip", text, lines, key)


def _sends_of_processes(observations: Observations) -> Iterator[FoundAnomaly]:
    last: dict[tuple[int, str], tuple[ClientOperation, SentRecord]] = {}
    for operation in observations.history.completed:
        if operation.result is OperationResult.FAIL:
            continue
        for key, records in operation.sends.items():
            before = last.get((operation.process, key))
            last[operation.process, key] = (operation, records[-1])
            if before is None:
                continue
            earlier, record = before
            first_index = _first_indexes(observations, key)
            previous = first_index.get(record.value)
            following = first_index.get(records[0].value)
            if previous is not None and following is not None and following < previous:
                yield FoundAnomaly(
                    "nonmonotonic-send",
                    f"line {operation.line} sent value {records[0].value!r} to {key} after line "
                    f"{earlier.line} of the same process sent value {record.value!r}, but it is "
                    "before it in the log",
                    (earlier.line, operation.line),
                    key,
                )


def _first_indexes(observations: Observations, key: str) -> dict[Value, int]:
    order = observations.orders.get(key)
    return {} if order is None else order.first_index


def _records(number: int) -> str:
    return f"{number} record" if number == 1 else f"{number} records"

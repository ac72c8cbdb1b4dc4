"""Rules for records: their order, where values are in the log, and which operations polled them.

Owns the inference of the log from what clients saw, with the index of each record in it (Jepsen
calls this version order), the anomalies of single values, and those of successive polls and sends.
It must never know time: only the order within an operation and within a process counts. Invariants:
the order comes from all polls, also those of failed transactions, and from sends that must have
committed; offsets that no record has (control records, aborted records) get no index; each value is
in at most one of the rows lost-write and unseen. A record that no client could have polled (it is
lost, or its transaction aborted) does not count as skipped, and neither does one that the same
operations polled elsewhere, because these are other anomalies. Sends are compared by the first
index of their value, polls by their offset, so that a duplicate is no disorder. Two values at one
index are inconsistent offsets. Jepsen's G1a is ``aborted-read``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from minibroker.lab.checker.history import (
    ClientHistory,
    ClientOperation,
    Consumers,
    HistorySettings,
    IsolationLevel,
    OperationKind,
    OperationResult,
    PolledRecord,
    SentRecord,
    Value,
)

# ----------------------------- The table of anomalies: names, definitions, and when each is allowed
# Owns the names, which users and scripts rely on. It must never search for an anomaly. Invariant: a
# row is allowed by the settings of the history alone. The names and definitions are those of
# Jepsen's Kafka workload; ``phantom-read`` is added, for values that no operation sent.


Allowed = Callable[[HistorySettings], bool]


LISTED_MAX: Final = 8
"""Values, and steps of a cycle, that one description lists."""


class AnomalyRule(NamedTuple):
    """One row of the table."""

    name: str
    definition: str
    allowed_text: str
    allowed: Allowed


class FoundAnomaly(NamedTuple):
    """One case of an anomaly in a history."""

    name: str
    text: str
    lines: tuple[int, ...]
    """Lines of the history that show it."""
    key: str | None = None


def listed(parts: Sequence[str], separator: str) -> str:
    """Join the first parts of a description, and say how many are left out."""
    if len(parts) <= LISTED_MAX:
        return separator.join(parts)
    left_out = f"{len(parts) - LISTED_MAX} more"
    return separator.join([*parts[:LISTED_MAX], left_out])


def _never(_: HistorySettings) -> bool:
    return False


def _always(_: HistorySettings) -> bool:
    return True


def _without_idempotence(settings: HistorySettings) -> bool:
    return not settings.idempotence


def _read_uncommitted(settings: HistorySettings) -> bool:
    return settings.isolation_level is IsolationLevel.READ_UNCOMMITTED


def _with_subscribe(settings: HistorySettings) -> bool:
    return settings.consumers is Consumers.SUBSCRIBE


def _without_final_polls(settings: HistorySettings) -> bool:
    return not settings.final_polls


_NEVER: Final = ("never", _never)
_ALWAYS: Final = ("always: writes of transactions interleave", _always)
_UNCOMMITTED: Final = ("at read_uncommitted", _read_uncommitted)
_SUBSCRIBE: Final = ("with subscribe", _with_subscribe)

RULES: Final = tuple(
    AnomalyRule(name, definition, *allowed)
    for name, definition, allowed in (
        ("inconsistent-offsets", "one offset of a key has two or more values", _NEVER),
        (
            "duplicate",
            "one value is at two or more offsets of a key",
            ("without idempotence", _without_idempotence),
        ),
        (
            "lost-write",
            "a committed value that no ok operation polled, but one polled its offset or beyond",
            _NEVER,
        ),
        ("aborted-read", "an ok operation polled a value of a failed operation", _UNCOMMITTED),
        ("phantom-read", "an operation polled a value that no operation sent", _NEVER),
        ("precommitted-read", "a transaction polled a value that it sent itself", _UNCOMMITTED),
        (
            "internal-poll-skip",
            "within one operation, successive polls of a key passed over a record",
            _NEVER,
        ),
        (
            "internal-nonmonotonic-poll",
            "within one operation, successive polls of a key repeat or go back",
            _NEVER,
        ),
        (
            "poll-skip",
            "successive operations of a process that polled a key passed over a record",
            _SUBSCRIBE,
        ),
        (
            "nonmonotonic-poll",
            "successive operations of a process that polled a key repeat or go back",
            _SUBSCRIBE,
        ),
        (
            "internal-send-skip",
            "within one operation, records of others are between successive sends to a key",
            _ALWAYS,
        ),
        (
            "internal-nonmonotonic-send",
            "within one operation, successive sends to a key are in another order in the log",
            _NEVER,
        ),
        (
            "nonmonotonic-send",
            "successive operations of a process sent to a key, and the log has another order",
            _NEVER,
        ),
        (
            "unseen",
            "a committed value at the end of a key that no operation polled",
            ("without final polls", _without_final_polls),
        ),
        *(
            (f"G0{suffix}", f"a cycle of ww{edges}", _ALWAYS)
            for suffix, edges in (
                ("", " edges"),
                ("-process", " and process edges"),
                ("-realtime", " and realtime edges"),
            )
        ),
        *(
            (f"G1c{suffix}", f"a cycle of wr{edges}", _UNCOMMITTED)
            for suffix, edges in (
                ("", " edges"),
                ("-process", " and process edges"),
                ("-realtime", " and realtime edges"),
            )
        ),
        *(
            (f"G1c-ww{suffix}", f"a cycle of wr{edges}", _ALWAYS)
            for suffix, edges in (
                ("", " and ww edges"),
                ("-process", ", ww and process edges"),
                ("-realtime", ", ww and realtime edges"),
            )
        ),
    )
)
"""All anomalies, in the order of reports."""

RULE_OF: Final = {rule.name: rule for rule in RULES}


class RecordOrder:
    """The records of one key by index, which is the dense rank of their offsets."""

    def __init__(self, log: Mapping[int, Value | set[Value]]) -> None:
        self.offsets = sorted(log)
        self.values = [log[offset] for offset in self.offsets]
        self.index_of_offset = {offset: index for index, offset in enumerate(self.offsets)}
        self.first_index: dict[Value, int] = {}
        self.last_index: dict[Value, int] = {}
        for index in range(len(self.offsets)):
            for value in self.values_at(index):
                self.first_index.setdefault(value, index)
                self.last_index[value] = index

    def values_at(self, index: int) -> Sequence[Value]:
        """Return the values at an index: one, unless offsets are inconsistent."""
        values = self.values[index]
        return sorted(values, key=repr) if isinstance(values, set) else (values,)


class Observations:
    """What follows from a history before any rule is applied."""

    def __init__(self, history: ClientHistory) -> None:
        self.history = history
        self.settings = history.settings
        self.writer_of: dict[str, dict[Value, ClientOperation]] = {}
        polled_once: dict[str, set[PolledRecord]] = {}
        polled_ok: dict[str, set[PolledRecord]] = {}
        for operation in history.operations:
            for key, records in operation.sends.items():
                writers = self.writer_of.setdefault(key, {})
                for record in records:
                    writers[record.value] = operation
            is_ok = operation.result is OperationResult.OK
            for key, polled in operation.polls.items():
                polled_once.setdefault(key, set()).update(polled)
                if is_ok:
                    polled_ok.setdefault(key, set()).update(polled)
        self.polled = _values(polled_once)
        """Values that any operation polled."""
        self.polled_ok = _values(polled_ok)
        """Values that an ok operation polled."""
        self.evidence = self._evidence_of_unknown(polled_ok)
        """The first operation that polled a value of each unknown one, by the latter's index."""
        self.committed = [self._must_have_committed(each) for each in history.operations]
        """Whether each operation must have committed, by its index."""
        self.orders = self._record_orders(polled_once)
        self.bounds = {
            key: max(map(self.orders[key].first_index.__getitem__, values))
            for key, values in self.polled_ok.items()
        }
        """Index up to which records of each key must have been polled."""
        self.lost = {key: set(self._lost_values(key)) for key in self.polled_ok}
        """Values of each key that are lost."""
        self._add_lost_values_without_offset()

    def _evidence_of_unknown(
        self, polled_ok: Mapping[str, set[PolledRecord]]
    ) -> dict[int, ClientOperation]:
        unknown: dict[str, dict[PolledRecord, int]] = {}
        for key, records in polled_ok.items():
            writers = self.writer_of.get(key, {})
            unknown[key] = {
                record: writers[record[1]].index
                for record in records
                if record[1] in writers and writers[record[1]].result is OperationResult.UNKNOWN
            }
        found: dict[int, ClientOperation] = {}
        for operation in self.history.completed:
            if operation.result is OperationResult.OK:
                for key, polled in operation.polls.items():
                    for record in unknown[key].keys() & polled:
                        found.setdefault(unknown[key][record], operation)
        return found

    def _must_have_committed(self, operation: ClientOperation) -> bool:
        if operation.result is OperationResult.UNKNOWN:
            return operation.index in self.evidence
        return operation.result is OperationResult.OK

    def is_torn(self, operation: ClientOperation) -> bool:
        """Whether the outcome of a transaction is known only since one of its values was polled."""
        return operation.kind is OperationKind.TXN and operation.index in self.evidence

    def _record_orders(
        self, polled_once: Mapping[str, set[PolledRecord]]
    ) -> dict[str, RecordOrder]:
        logs: dict[str, dict[int, Value | set[Value]]] = {}
        for operation in self.history.operations:
            for key in operation.polls:
                logs.setdefault(key, {})
            if not self.committed[operation.index]:
                continue
            for key, records in operation.sends.items():
                log = logs.setdefault(key, {})
                for record in records:
                    if record.offset is not None:
                        _add(log, record.offset, record.value)
        for key, places in polled_once.items():
            for offset, value in places:
                _add(logs[key], offset, value)
        return {key: RecordOrder(log) for key, log in logs.items()}

    def _lost_values(self, key: str) -> Iterator[Value]:
        """Iterate over committed values that no ok operation polled, below the bound."""
        bound = self.bounds[key]
        polled = self.polled_ok[key]
        order = self.orders[key]
        for value, index in order.last_index.items():
            if index <= bound and value not in polled:
                writer = self.writer_of.get(key, {}).get(value)
                if writer is not None and self.committed[writer.index]:
                    yield value

    def _add_lost_values_without_offset(self) -> None:
        """Add committed values whose place is unknown, but certainly below the bound.

        A record is before the later ones of its operation, and before those of operations that were
        invoked when it was certainly committed.
        """
        invoked = {key: self._last_invocation(key, bound) for key, bound in self.bounds.items()}
        for operation in self.history.operations:
            if not (self.is_torn(operation) or operation.result is OperationResult.OK):
                continue
            proof = self.evidence.get(operation.index, operation)
            for key in operation.sends.keys() & invoked.keys():
                is_passed = proof.line < invoked[key]
                self.lost[key].update(self._passed(operation, key, self.bounds[key], is_passed))

    def _last_invocation(self, key: str, bound: int) -> int:
        """Return the line of the last invocation that sent a value below the bound."""
        writers = self.writer_of.get(key, {})
        return max(
            (
                writers[value].invoked_line
                for value, index in self.orders[key].first_index.items()
                if index <= bound and value in writers
            ),
            default=0,
        )

    def _passed(
        self, operation: ClientOperation, key: str, bound: int, is_passed: bool
    ) -> Iterator[Value]:
        """Iterate over the values of an operation without a place, before one below the bound."""
        first = self.orders[key].first_index
        for record in reversed(operation.sends[key]):
            if record.value not in first:
                if is_passed:
                    yield record.value
            elif first[record.value] <= bound:
                is_passed = is_passed or self.settings.idempotence


def _values(places: Mapping[str, set[PolledRecord]]) -> dict[str, set[Value]]:
    return {key: {value for _, value in found} for key, found in places.items()}


def _add(log: dict[int, Value | set[Value]], offset: int, value: Value) -> None:
    present = log.setdefault(offset, value)
    if isinstance(present, set):
        present.add(value)
    elif present != value:
        log[offset] = {present, value}


# Single values -----------------------------------------------------------------------------------


def inconsistent_offsets(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find offsets with two or more values."""
    for key, order in observations.orders.items():
        for index, values in enumerate(order.values):
            if isinstance(values, set):
                offset = order.offsets[index]
                shown = listed(list(map(repr, order.values_at(index))), " and ")
                yield FoundAnomaly(
                    "inconsistent-offsets",
                    f"offset {offset} of {key} has the values {shown}",
                    _writer_lines(observations, key, *order.values_at(index)),
                    key,
                )


def duplicates(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find values at two or more offsets."""
    for key, order in observations.orders.items():
        for value, first in order.first_index.items():
            last = order.last_index[value]
            if last > first:
                yield FoundAnomaly(
                    "duplicate",
                    f"value {value!r} of {key} is at offset {order.offsets[first]} and at "
                    f"offset {order.offsets[last]}",
                    _writer_lines(observations, key, value),
                    key,
                )


def lost_writes(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find committed values that were passed over by all ok operations."""
    readers: dict[str, int] = {}
    for key, lost in observations.lost.items():
        if not lost:
            continue
        order = observations.orders[key]
        bound = observations.bounds[key]
        if not readers:
            readers = _lines_of_highest_polls(observations)
        last = order.last_index
        for value in sorted(lost, key=lambda each: (last.get(each, -1), repr(each))):
            writer = observations.writer_of[key][value]
            reason = "acknowledged" if writer.result is OperationResult.OK else "partly polled"
            index = last.get(value)
            place = "" if index is None else f" at offset {order.offsets[index]}"
            polled = f"offset {order.offsets[bound]}"
            if index is None:
                polled = f"the later offset {order.offsets[bound]}"
            elif index == bound:
                polled = "another value at the same offset"
            yield FoundAnomaly(
                "lost-write",
                f"value {value!r} of {key}{place} was not polled; line {writer.line} sent it and "
                f"was {reason}, and line {readers[key]} polled {polled}",
                (writer.line, readers[key]),
                key,
            )


def _lines_of_highest_polls(observations: Observations) -> dict[str, int]:
    """Return for each key the line of an ok operation that polled the highest record."""
    lines: dict[str, int] = {}
    for operation in observations.history.completed:
        if operation.result is OperationResult.OK:
            for key, polled in operation.polls.items():
                first, bound = observations.orders[key].first_index, observations.bounds[key]
                if key not in lines and any(first[value] == bound for _, value in polled):
                    lines[key] = operation.line
    return lines


def foreign_reads(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find polled values of failed operations, of the same transaction, and of no operation."""
    foreign = {
        key: polled - _values_that_did_not_fail(observations, key)
        for key, polled in observations.polled.items()
    }
    for operation in observations.history.completed:
        for key, polled in operation.polls.items():
            own = {record.value for record in operation.sends.get(key, ())}
            if not own and not foreign[key]:
                continue
            writers = observations.writer_of.get(key, {})
            for value in dict.fromkeys(value for _, value in polled):
                if value in own or value in foreign[key]:
                    found = _foreign_read(operation, key, value, writers.get(value), own)
                    if found is not None:
                        yield found


def _values_that_did_not_fail(observations: Observations, key: str) -> set[Value]:
    writers = observations.writer_of.get(key, {}).items()
    return {value for value, writer in writers if writer.result is not OperationResult.FAIL}


def _foreign_read(
    operation: ClientOperation,
    key: str,
    value: Value,
    writer: ClientOperation | None,
    own: set[Value],
) -> FoundAnomaly | None:
    polled = f"line {operation.line} polled value {value!r} of {key}"
    if writer is None:
        return FoundAnomaly(
            "phantom-read", f"{polled}, which no operation sent", (operation.line,), key
        )
    if value in own:
        return FoundAnomaly(
            "precommitted-read",
            f"{polled}, which the same transaction sent",
            (operation.line,),
            key,
        )
    if writer.result is OperationResult.FAIL and operation.result is OperationResult.OK:
        return FoundAnomaly(
            "aborted-read",
            f"{polled}, which the failed operation of line {writer.line} sent",
            (writer.line, operation.line),
            key,
        )
    return None


def unseen(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find committed values that no operation polled and that are not lost."""
    for operation in observations.history.operations:
        is_torn = observations.is_torn(operation)
        if operation.result is not OperationResult.OK and not is_torn:
            continue
        lines: tuple[int, ...] = (operation.line,)
        reason = f"was acknowledged in line {operation.line}"
        if is_torn:
            proof = observations.evidence[operation.index]
            lines = (operation.line, proof.line)
            reason = (
                f"is of the transaction in line {operation.line}, of which line {proof.line} "
                "polled a part"
            )
        for key, records in operation.sends.items():
            polled = observations.polled.get(key, ())
            lost = observations.lost.get(key, ())
            for record in records:
                if record.value not in polled and record.value not in lost:
                    yield FoundAnomaly(
                        "unseen",
                        f"value {record.value!r} of {key} {reason}, and no operation polled it",
                        lines,
                        key,
                    )


def _writer_lines(observations: Observations, key: str, *values: Value) -> tuple[int, ...]:
    writers = observations.writer_of.get(key, {})
    lines = sorted({writers[value].line for value in values if value in writers})
    return tuple(lines[:LISTED_MAX])


# Order of polls and sends ------------------------------------------------------------------------


def sequence_anomalies(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find the anomalies within operations and between those of a process."""
    pollable = {key: PollableRecords(observations, key) for key in observations.orders}
    for operation in observations.history.completed:
        for key in operation.polls:
            if key not in operation.rebalanced:
                yield from _internal_polls(operation, key, pollable[key])
        for key, records in operation.sends.items():
            yield from _internal_sends(observations, operation, key, records)
    yield from _polls_of_processes(observations, pollable)
    yield from _sends_of_processes(observations)


class PollableRecords:
    """The indexes of a key whose records every consumer must poll when it passes them."""

    def __init__(self, observations: Observations, key: str) -> None:
        self.order = observations.orders[key]
        hidden = set(observations.lost.get(key, ()))
        if observations.settings.isolation_level is IsolationLevel.READ_COMMITTED:
            writers = observations.writer_of.get(key, {}).items()
            hidden.update(value for value, by in writers if by.result is OperationResult.FAIL)
        self._must = [
            hidden.isdisjoint(values) if isinstance(values, set) else values not in hidden
            for values in self.order.values
        ]
        self._before = [0, *accumulate(self._must)]

    def indexes(self, records: Iterable[PolledRecord]) -> list[int]:
        index = self.order.index_of_offset
        return [index[offset] for offset, _ in records]

    def counted(self, records: Iterable[PolledRecord]) -> list[int]:
        """Return the sorted indexes, of those that must be polled, of polled records."""
        return sorted({index for index in self.indexes(records) if self._must[index]})

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
    indexes = pollable.indexes(polled)
    if indexes == list(range(indexes[0], indexes[0] + len(indexes))):
        return
    own = pollable.counted(polled)
    for (earlier, previous), (later, following) in pairwise(zip(polled, indexes, strict=True)):
        where = f"line {operation.line} polled offset {later[0]} after offset {earlier[0]} of {key}"
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
    previous, following = pollable.indexes((last, first))
    if following == previous + 1:
        return
    where = (
        f"line {operation.line} polled offset {first[0]} of {key}, and line {earlier.line} of "
        f"the same process ended with offset {last[0]}"
    )
    lines = (earlier.line, operation.line)
    if following <= previous:
        yield FoundAnomaly("nonmonotonic-poll", where, lines, key)
        return
    polled = pollable.counted([*earlier.polls[key], *operation.polls[key]])
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

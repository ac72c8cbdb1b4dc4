"""Order of the records of each key, and the index of each record in it.

Owns the inference of the log from what clients saw. It must never judge. Invariant: the order comes
from all polls, also those of failed transactions, and from sends that must have committed; offsets
that no record has (control records, aborted records) get no index. Jepsen calls this version order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from minibroker.lab.checker.history import (
    ClientHistory,
    ClientOperation,
    OperationKind,
    OperationResult,
    PolledRecord,
    Value,
)


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

"""The history of a transactional run, for the checker of client histories.

Owns the order of the operations' invocations and completions. It must never judge: the checker of
``minibroker.lab.checker`` does. Invariant: an operation is in the history as soon as it is invoked,
so one that never ends is of unknown result. Compacted topics are left out, because their old
records disappear.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from minibroker.lab.checker.checking import check_history
from minibroker.lab.checker.history import (
    ClientHistory,
    ClientOperation,
    HistorySettings,
    OperationKind,
    OperationResult,
    SentRecord,
)
from tests.simulation.history import Partition


def key_of(partition: Partition) -> str:
    """The checker's name of a partition."""
    return f"{partition[0]}-{partition[1]}"


class OperationLog:
    """All operations of a run. Processes are numbered in the order of their first operations."""

    def __init__(self) -> None:
        self._lines = count(1)
        self._processes: dict[str, int] = {}
        self._operations: list[ClientOperation] = []
        self._completed: list[ClientOperation] = []

    def invoke(self, process: str, kind: OperationKind) -> ClientOperation:
        """Add an operation of a client."""
        number = self._processes.setdefault(process, len(self._processes))
        operation = ClientOperation(len(self._operations), number, kind, next(self._lines))
        self._operations.append(operation)
        return operation

    def complete(self, operation: ClientOperation, result: OperationResult) -> None:
        """Note how an operation ended."""
        operation.completed_line = next(self._lines)
        operation.result = result
        self._completed.append(operation)

    def reopen(self, process: str) -> None:
        """Note that a client starts again, from other positions."""
        self.complete(self.invoke(process, OperationKind.REOPEN), OperationResult.OK)

    def anomalies(self) -> list[str]:
        """What the checker finds, as read by consumers with ``read_committed``."""
        settings = HistorySettings(workload="simulation", final_polls=True)
        report = check_history(ClientHistory(settings, self._operations, self._completed))
        return [
            f"{name}: {example.text}"
            for name in report.anomalies
            for example in report.examples[name]
        ]


def add_sends(operation: ClientOperation, partition: Partition, values: Iterable[str]) -> None:
    """Note records before they are sent."""
    records = operation.sends.setdefault(key_of(partition), [])
    records += [SentRecord(value, None) for value in values]


def acknowledge(operation: ClientOperation, partition: Partition, offset: int, size: int) -> None:
    """Note the offset of the last ``size`` records that were sent."""
    records = operation.sends[key_of(partition)]
    records[-size:] = [
        SentRecord(record.value, offset + number) for number, record in enumerate(records[-size:])
    ]


def add_polls(
    operation: ClientOperation, partition: Partition, records: Iterable[tuple[int, str]]
) -> None:
    """Note polled records."""
    if found := list(records):
        operation.polls.setdefault(key_of(partition), []).extend(found)

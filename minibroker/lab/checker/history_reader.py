"""Reads a history: pairs invocations with completions.

Owns the rules between lines: a process has one operation at a time, a completion repeats what was
invoked, and values are unique within a key. It must never know anomalies. Invariant: what is read
has at most `HISTORY_OPERATIONS_MAX` operations and `HISTORY_RECORDS_MAX` records, so the memory of
a check is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Final

from minibroker.lab.checker.client_history import (
    ClientHistory,
    ClientOperation,
    OperationKind,
    OperationResult,
    Value,
)
from minibroker.lab.checker.history_format import (
    INVOKE,
    HistoryLine,
    InvalidHistory,
    decode_line,
    header_of,
    line_of,
)

HISTORY_OPERATIONS_MAX: Final = 500_000
"""Operations of a history that can be checked."""
HISTORY_RECORDS_MAX: Final = 2_000_000
"""Records sent and polled, and keys assigned, in a history that can be checked."""

SCAN_BYTES: Final = 1024 * 1024
_INVOCATION: Final = re.compile(rb'"type"\s*:\s*"invoke"')
"""Not within a text, in which a backslash is before each quotation mark."""
_INVOCATION_BYTES_MAX: Final = 64


def check_size(file: BinaryIO) -> None:
    """Raise ``InvalidHistory`` if a file has more invocations than a history may have.

    This is known long before they are read one by one, which is limited all the same.
    """
    count, rest = 0, b""
    while chunk := file.read(SCAN_BYTES):
        data, end = rest + chunk, 0
        for found in _INVOCATION.finditer(data):
            count, end = count + 1, found.end()
        if count > HISTORY_OPERATIONS_MAX:
            raise _too_many_operations()
        rest = data[max(end, len(data) - _INVOCATION_BYTES_MAX) :]


def _too_many_operations() -> InvalidHistory:
    return InvalidHistory(
        f"the history has more than {HISTORY_OPERATIONS_MAX} operations "
        "(HISTORY_OPERATIONS_MAX); check a shorter run"
    )


def read_history(lines: Iterable[str | Mapping[str, Any]]) -> ClientHistory:
    """Read a history from lines of text, or from the objects in them.

    Raises ``InvalidHistory``.
    """
    reader: _HistoryReader | None = None
    settings = None
    for number, text in enumerate(lines, start=1):
        try:
            line = decode_line(text) if isinstance(text, str) else text
            if reader is None:
                settings = header_of(line)
                reader = _HistoryReader()
            else:
                reader.add(line_of(line), number)
        except InvalidHistory as error:
            raise InvalidHistory(error.problem, number) from None
    if reader is None or settings is None:
        raise InvalidHistory(
            'the history is empty; its first line is the header: {"history": "minibroker", ...}'
        )
    return ClientHistory(settings, reader.operations, reader.completed)


class _HistoryReader:
    def __init__(self) -> None:
        self.operations: list[ClientOperation] = []
        self.completed: list[ClientOperation] = []
        self._open: dict[int, ClientOperation] = {}
        self._polling: set[int] = set()
        """Processes whose open operation has a poll."""
        self._sent: dict[str, dict[Value, int]] = {}
        """Line that sent each value of each key."""
        self._records = 0

    def add(self, line: HistoryLine, number: int) -> None:
        self._records += len(line.sends) + len(line.polls) + len(line.keys) + len(line.rebalanced)
        if self._records > HISTORY_RECORDS_MAX:
            raise InvalidHistory(
                f"the history has more than {HISTORY_RECORDS_MAX} records "
                "(HISTORY_RECORDS_MAX); check a shorter run"
            )
        if line.type == INVOKE:
            self._invoke(line, number)
        else:
            self._complete(line, number)

    def _invoke(self, line: HistoryLine, number: int) -> None:
        other = self._open.get(line.process)
        if other is not None:
            raise InvalidHistory(
                f"process {line.process} invokes an operation, but its operation of line "
                f"{other.invoked_line} is not complete; write a completion first, or use "
                "another process"
            )
        if len(self.operations) >= HISTORY_OPERATIONS_MAX:
            raise _too_many_operations()
        if line.polls:
            raise InvalidHistory(
                "an invocation cannot contain polled records; write them in the completion"
            )
        operation = ClientOperation(len(self.operations), line.process, line.kind, number)
        operation.keys, operation.from_beginning = line.keys, line.from_beginning
        for key, record in line.sends:
            if record.offset is not None:
                raise InvalidHistory(
                    "an invocation cannot contain an offset; write it in the completion"
                )
            sent = self._sent.setdefault(key, {})
            if record.value in sent:
                raise InvalidHistory(
                    f"value {record.value!r} of {key} was already sent in line "
                    f"{sent[record.value]}; values must be unique within a key"
                )
            sent[record.value] = number
            operation.sends.setdefault(key, []).append(record)
        if line.polls_at_all:
            self._polling.add(line.process)
        self._open[line.process] = operation
        self.operations.append(operation)

    def _complete(self, line: HistoryLine, number: int) -> None:
        operation = self._open.pop(line.process, None)
        if operation is None:
            raise InvalidHistory(
                f"process {line.process} completes an operation that it did not invoke; "
                'write a line of "type": "invoke" before it'
            )
        if line.kind is not operation.kind or (
            line.kind in (OperationKind.ASSIGN, OperationKind.SUBSCRIBE)
            and line.keys != operation.keys
        ):
            raise InvalidHistory(
                f"the completion differs from its invocation in line {operation.invoked_line}: "
                "it must have the same operation and keys"
            )
        if line.polls_at_all and line.process not in self._polling:
            raise InvalidHistory(
                f"the invocation in line {operation.invoked_line} contains no poll; "
                'add the step {"poll": {}} to it'
            )
        self._polling.discard(line.process)
        operation.result = OperationResult(line.type)
        operation.completed_line = number
        operation.rebalanced = line.rebalanced
        self._fill_in(operation, line)
        self.completed.append(operation)

    def _fill_in(self, operation: ClientOperation, line: HistoryLine) -> None:
        """Add offsets and polled records to what was invoked."""
        at = {
            key: {record.value: place for place, record in enumerate(records)}
            for key, records in operation.sends.items()
        }
        for key, record in line.sends:
            place = at.get(key, {}).pop(record.value, None)
            if place is None:
                raise InvalidHistory(
                    f"value {record.value!r} of {key} is not sent by the invocation in line "
                    f"{operation.invoked_line}, or is completed twice"
                )
            operation.sends[key][place] = record
        if operation.result is OperationResult.OK and any(at.values()):
            key = next(key for key, values in at.items() if values)
            raise InvalidHistory(
                f"the operation is ok, but value {next(iter(at[key]))!r} of {key}, which line "
                f"{operation.invoked_line} sends, is missing; a completion repeats the sends"
            )
        for key, polled in line.polls:
            operation.polls.setdefault(key, []).append(polled)

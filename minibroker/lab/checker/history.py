"""History of a run: the operations of client processes, with what each of them sent and polled.

Owns the types that the rules work on, the format of a history's lines, and the rules between lines:
a process has one operation at a time, a completion repeats what was invoked, and values are unique
within a key. It must never know anomalies. Invariant: an operation is either complete or of unknown
outcome; a field that is missing, unknown or of another type is an error with the line, the field
and a fix; the operations and records of a history are bounded, and so is the memory of a check. A
key is a partition; Jepsen's Kafka workload uses the same model.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

Value = int | str
"""Value of a record."""

FORMAT_VERSION = 1
"""Version of the history format that is read and written."""


class OperationKind(StrEnum):
    """What a process does in one operation."""

    SEND = "send"
    """Send records outside of a transaction."""
    POLL = "poll"
    """Poll records outside of a transaction."""
    TXN = "txn"
    """Send and poll within one transaction."""
    ASSIGN = "assign"
    """Assign keys to the consumer."""
    SUBSCRIBE = "subscribe"
    """Subscribe the consumer, as a member of a group."""
    REOPEN = "reopen"
    """Give up the clients of the process, and create new ones."""


class OperationResult(StrEnum):
    """How an operation ended."""

    OK = "ok"
    FAIL = "fail"
    """It has no effect: its records are aborted or were never appended."""
    UNKNOWN = "unknown"
    """It may have an effect, now or later."""


class Consumers(StrEnum):
    """How consumers get their partitions."""

    ASSIGN = "assign"
    SUBSCRIBE = "subscribe"


class IsolationLevel(StrEnum):
    """Kafka's ``isolation.level`` of the consumers."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class SentRecord(NamedTuple):
    """A record that an operation sent; the offset is known if it was acknowledged."""

    value: Value
    offset: int | None


PolledRecord = tuple[int, Value]
"""Offset and value of a record that a poll returned. There are many, and a plain tuple is fast."""


@dataclass(frozen=True)
class HistorySettings:
    """How the clients of a history were configured: it decides which anomalies are allowed."""

    workload: str = ""
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    idempotence: bool = True
    consumers: Consumers = Consumers.ASSIGN
    final_polls: bool = False
    """Whether the run ended with polls until all committed records were seen, or in vain: those
    that were acknowledged, and those of transactions that were partly polled.
    """
    clients: dict[int, str] = field(default_factory=dict)
    """Name and version of the client library of each process."""


@dataclass(slots=True)
class ClientOperation:
    """One operation of a process."""

    index: int
    """Position in the order of invocations."""
    process: int
    kind: OperationKind
    invoked_line: int
    result: OperationResult = OperationResult.UNKNOWN
    completed_line: int | None = None
    sends: dict[str, list[SentRecord]] = field(default_factory=dict)
    polls: dict[str, list[PolledRecord]] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    """Keys of an assignment or subscription."""
    from_beginning: bool = False
    """Whether the assignment starts at the beginning of its keys."""
    rebalanced: frozenset[str] = frozenset()
    """Keys that a rebalance moved during the operation."""

    @property
    def line(self) -> int:
        """The line to show for this operation."""
        return self.completed_line or self.invoked_line


@dataclass
class ClientHistory:
    """A complete history."""

    settings: HistorySettings
    operations: list[ClientOperation]
    """In the order of invocations."""
    completed: list[ClientOperation]
    """The operations with a completion, in the order of completions."""


# Lines --------------------------------------------------------------------------------------------

LINE_CHARS_MAX: Final = 16 * 1024 * 1024
"""Longest line of a history."""
LINE_ELEMENTS_MAX: Final = 1_000_000
"""Commas and opening brackets of a line, of which each may be a value of its own."""
KEY_CHARS_MAX: Final = 1024
"""Longest key, and longest value that is a string."""
SHOWN_CHARS_MAX: Final = 80
"""Characters of a wrong value that a message shows."""

INVOKE: Final = "invoke"
V = TypeVar("V")


class InvalidHistory(ValueError):
    """A history that cannot be checked: says what is wrong, where, and how to fix it."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {problem}" if line else problem)
        self.problem = problem
        self.line = line


class HistoryLine(NamedTuple):
    """One decoded line after the header."""

    process: int
    result: OperationResult | None
    """None for an invocation."""
    kind: OperationKind
    sends: list[tuple[str, SentRecord]]
    polls: dict[str, list[PolledRecord]] | None
    """Polled records by key; empty if polls returned nothing, None if no step is a poll."""
    keys: tuple[str, ...]
    from_beginning: bool
    rebalanced: frozenset[str]


_HEADER_FIELDS: Final = (
    *("history", "version", "workload", "isolation_level", "idempotence", "consumers"),
    *("final_polls", "clients"),
)
_LINE_FIELDS: Final = (
    *("process", "type", "operation", "steps", "keys", "from_beginning", "rebalanced"),
    *("abort", "error", "time_ms"),
)
_LINE_FIELD_SET: Final = frozenset(_LINE_FIELDS)
_KINDS: Final[Mapping[str, OperationKind]] = {str(kind): kind for kind in OperationKind}
_RESULTS: Final[Mapping[str, OperationResult | None]] = {
    INVOKE: None,
    **{str(result): result for result in OperationResult},
}
_NO_KEYS: Final[frozenset[str]] = frozenset()
_SEND_FIELDS: Final = ("send", "value", "offset")
_POLL_FIELDS: Final = ("poll",)
_HISTORY_NAME: Final = "minibroker"


def decode_line(text: str) -> dict[str, Any]:
    """Decode one line of JSON. Raises ``InvalidHistory``."""
    if len(text) > LINE_CHARS_MAX:
        raise InvalidHistory(f"the line has more than {LINE_CHARS_MAX} characters; split it")
    if len(text) > LINE_ELEMENTS_MAX < sum(map(text.count, ",[{")):
        raise InvalidHistory(f"the line has more than {LINE_ELEMENTS_MAX} values; split it")
    if not text.strip():
        raise InvalidHistory("the line is empty; remove it")
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidHistory(
            f"this is no JSON ({error}); a history has one JSON object in each line"
        ) from None
    return _object(decoded, "the line")


def header_of(line: Mapping[str, Any]) -> HistorySettings:
    """Interpret the first line. Raises ``InvalidHistory``."""
    if line.get("history") != _HISTORY_NAME:
        raise InvalidHistory(
            'the first line must be the header: {"history": "minibroker", "version": '
            f"{FORMAT_VERSION}, ...}}"
        )
    _known(line, _HEADER_FIELDS, "the header")
    version = line.get("version")
    if version != FORMAT_VERSION or version is True:
        raise InvalidHistory(
            f"version {_shown(version)} of the format is not supported; "
            f"this minibroker reads version {FORMAT_VERSION}"
        )
    clients = _object(line.get("clients", {}), '"clients"')
    return HistorySettings(
        workload=_text(line.get("workload", ""), '"workload"'),
        isolation_level=_one_of(
            {str(each): each for each in IsolationLevel},
            line.get("isolation_level", "read_committed"),
            '"isolation_level"',
        ),
        idempotence=_bool(line.get("idempotence", True), '"idempotence"'),
        consumers=_one_of(
            {str(each): each for each in Consumers}, line.get("consumers", "assign"), '"consumers"'
        ),
        final_polls=_bool(line.get("final_polls", False), '"final_polls"'),
        clients={
            _process_name(process): _text(name, f'"clients" of process {process}')
            for process, name in clients.items()
        },
    )


def header_line(settings: HistorySettings) -> dict[str, Any]:
    """Return the first line of a history with these settings."""
    return {
        "history": _HISTORY_NAME,
        "version": FORMAT_VERSION,
        "workload": settings.workload,
        "isolation_level": str(settings.isolation_level),
        "idempotence": settings.idempotence,
        "consumers": str(settings.consumers),
        "final_polls": settings.final_polls,
        "clients": {str(process): name for process, name in settings.clients.items()},
    }


def line_of(line: Mapping[str, Any]) -> HistoryLine:
    """Interpret a line after the header. Raises ``InvalidHistory``."""
    if not line.keys() <= _LINE_FIELD_SET:
        _known(line, _LINE_FIELDS, "the line")
    kind_name, type_ = _required(line, "operation"), _required(line, "type")
    kind = _one_of(_KINDS, kind_name, '"operation"')
    result = _one_of(_RESULTS, type_, '"type"')
    steps = _list(_required(line, "steps"), '"steps"') if kind in _WITH_STEPS else []
    sends, polls = _steps(steps)
    if not _FIELDS_OF_OTHER_KINDS[kind].isdisjoint(line):
        _forbid_fields_of_other_kinds(line, kind)
    if kind is OperationKind.SEND and polls is not None:
        raise InvalidHistory('operation "send" contains a poll; use "txn" for both')
    if kind is OperationKind.POLL and sends:
        raise InvalidHistory('operation "poll" contains a send; use "txn" for both')
    keys = _list(_required(line, "keys"), '"keys"') if kind in _WITH_KEYS else ()
    for name, check in _OPTIONAL_FIELDS:
        if name in line:
            check(line[name], f'"{name}"')
    rebalanced = _list(line["rebalanced"], '"rebalanced"') if "rebalanced" in line else ()
    return HistoryLine(
        _natural(_required(line, "process"), '"process"'),
        result,
        kind,
        sends,
        polls,
        tuple(_key(key, '"keys"') for key in keys) if keys else (),
        line.get("from_beginning", False),
        frozenset(_key(key, '"rebalanced"') for key in rebalanced) if rebalanced else _NO_KEYS,
    )


_WITH_STEPS: Final = frozenset({OperationKind.SEND, OperationKind.POLL, OperationKind.TXN})
_WITH_KEYS: Final = frozenset({OperationKind.ASSIGN, OperationKind.SUBSCRIBE})
_KINDS_WITH: Final[Mapping[str, frozenset[OperationKind]]] = {
    "steps": _WITH_STEPS,
    "keys": _WITH_KEYS,
    "from_beginning": frozenset({OperationKind.ASSIGN}),
    "abort": frozenset({OperationKind.TXN}),
}
_FIELDS_OF_OTHER_KINDS: Final = {
    kind: frozenset(name for name, kinds in _KINDS_WITH.items() if kind not in kinds)
    for kind in OperationKind
}


def _forbid_fields_of_other_kinds(line: Mapping[str, Any], kind: OperationKind) -> None:
    for name, kinds in _KINDS_WITH.items():
        if name in line and kind not in kinds:
            raise InvalidHistory(
                f'"{name}" has no meaning in operation "{kind}"; it belongs to '
                + ", ".join(sorted(kinds))
            )


def _steps(
    steps: list[Any],
) -> tuple[list[tuple[str, SentRecord]], dict[str, list[PolledRecord]] | None]:
    sends: list[tuple[str, SentRecord]] = []
    polls: dict[str, list[PolledRecord]] | None = None
    for number, step in enumerate(steps):
        if not isinstance(step, dict):
            raise InvalidHistory(f"step {number} is {_shown(step)}; it must be an object")
        if "poll" in step:
            polls = {} if polls is None else polls
            _add_polled(step, number, polls)
        else:
            sends.append(_sent(step, number))
    return sends, polls


def _add_polled(step: dict[str, Any], number: int, polls: dict[str, list[PolledRecord]]) -> None:
    _known(step, _POLL_FIELDS, f"step {number}")
    for key, records in _object(step["poll"], f'"poll" of step {number}').items():
        if not 0 < len(key) <= KEY_CHARS_MAX:
            _key(key, f'"poll" of step {number}')
        found: list[PolledRecord] = []
        for record in _list(records, f"{key!r} in step {number}"):
            if type(record) is list and len(record) == 2:
                offset, value = record
                # The frequent types.
                if type(offset) is int and type(value) is int and offset >= 0:
                    found.append((offset, value))
                    continue
            found.append(_polled(record, key, number))
        if found:
            polls[key] = polls[key] + found if key in polls else found


def _polled(record: Any, key: str, number: int) -> PolledRecord:
    if not isinstance(record, list) or len(record) != 2:
        raise InvalidHistory(
            f"{key!r} in step {number} contains {_shown(record)}; "
            "a polled record is [OFFSET, VALUE]"
        )
    return (
        _natural(record[0], f"offset of {key!r} in step {number}"),
        _value(record[1], f"{key!r} in step {number}"),
    )


def _sent(step: dict[str, Any], number: int) -> tuple[str, SentRecord]:
    """Return key and record of a step that is a send."""
    _known(step, _SEND_FIELDS, f"step {number}")
    if "send" not in step or "value" not in step:
        raise InvalidHistory(
            f'step {number} is neither {{"send": KEY, "value": VALUE, "offset": OFFSET}} '
            'nor {"poll": {KEY: [[OFFSET, VALUE], ...]}}'
        )
    value, offset = step["value"], step.get("offset")
    if type(value) is not int:
        _value(value, f'"value" of step {number}')
    if offset is not None and (type(offset) is not int or offset < 0):
        _natural(offset, f'"offset" of step {number}')
    return _key(step["send"], '"send" of a step'), SentRecord(value, offset)


# Types of values ----------------------------------------------------------------------------------


def _known(line: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in line:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise InvalidHistory(
                f"{where} has an unknown field {_shown(name)}; "
                + (f'did you mean "{near[0]}"?' if near else f"known are {', '.join(names)}")
            )


def _required(line: Mapping[str, Any], name: str) -> Any:
    if name not in line:
        raise InvalidHistory(f'"{name}" is missing')
    return line[name]


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."


def _one_of(known: Mapping[str, V], value: Any, where: str) -> V:
    if isinstance(value, str) and value in known:
        return known[value]
    near = difflib.get_close_matches(value, known, n=1) if isinstance(value, str) else []
    raise InvalidHistory(
        f"{where} is {_shown(value)}; it is one of {', '.join(known)}"
        + (f'; did you mean "{near[0]}"?' if near else "")
    )


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidHistory(f"{where} is {_shown(value)}; it must be an object")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidHistory(f"{where} is {_shown(value)}; it must be a list")
    return value


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidHistory(f"{where} is {_shown(value)}; it must be true or false")
    return value


def _number(value: Any, where: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidHistory(f"{where} is {_shown(value)}; it must be a number")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidHistory(f"{where} is {_shown(value)}; it must be a string")
    return value


def _natural(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidHistory(f"{where} is {_shown(value)}; it must be an integer of at least 0")
    return value


def _process_name(name: str) -> int:
    if not name.isdecimal():
        raise InvalidHistory(f'"clients" names process {_shown(name)}; processes are integers')
    return int(name)


def _key(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= KEY_CHARS_MAX:
        raise InvalidHistory(
            f"{where} has the key {_shown(value)}; a key is a string, for example "
            f'"orders-0", of at most {KEY_CHARS_MAX} characters'
        )
    return value


def _value(value: Any, where: str) -> Value:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidHistory(f"{where} is {_shown(value)}; a value is an integer or a string")
    if isinstance(value, str) and len(value) > KEY_CHARS_MAX:
        raise InvalidHistory(
            f"{where} has more than {KEY_CHARS_MAX} characters; write a short identifier instead"
        )
    return value


_OPTIONAL_FIELDS: Final[tuple[tuple[str, Callable[[Any, str], object]], ...]] = (
    ("from_beginning", _bool),
    ("abort", _bool),
    ("error", _text),
    ("time_ms", _number),
)

# Reading ------------------------------------------------------------------------------------------

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
        self._open: dict[int, tuple[ClientOperation, bool]] = {}
        """The open operation of each process, and whether it has a poll."""
        self._sent: dict[str, dict[Value, int]] = {}
        """Line that sent each value of each key."""
        self._polled: dict[PolledRecord, PolledRecord] = {}
        """One object for each polled record, which many processes may poll."""
        self._records = 0

    def add(self, line: HistoryLine, number: int) -> None:
        self._records += len(line.sends) + len(line.keys) + len(line.rebalanced)
        if line.polls:
            self._records += sum(map(len, line.polls.values()))
        if self._records > HISTORY_RECORDS_MAX:
            raise InvalidHistory(
                f"the history has more than {HISTORY_RECORDS_MAX} records "
                "(HISTORY_RECORDS_MAX); check a shorter run"
            )
        if line.result is None:
            self._invoke(line, number)
        else:
            self._complete(line, line.result, number)

    def _invoke(self, line: HistoryLine, number: int) -> None:
        if line.process in self._open:
            other, _ = self._open[line.process]
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
        self._open[line.process] = operation, line.polls is not None
        self.operations.append(operation)

    def _complete(self, line: HistoryLine, result: OperationResult, number: int) -> None:
        if line.process not in self._open:
            raise InvalidHistory(
                f"process {line.process} completes an operation that it did not invoke; "
                'write a line of "type": "invoke" before it'
            )
        operation, has_poll = self._open.pop(line.process)
        if line.kind is not operation.kind or line.keys != operation.keys:
            raise InvalidHistory(
                f"the completion differs from its invocation in line {operation.invoked_line}: "
                "it must have the same operation and keys"
            )
        if line.polls is not None and not has_poll:
            raise InvalidHistory(
                f"the invocation in line {operation.invoked_line} contains no poll; "
                'add the step {"poll": {}} to it'
            )
        operation.result = result
        operation.completed_line = number
        operation.rebalanced = line.rebalanced
        if operation.sends or line.sends:
            self._acknowledge(operation, line)
        for key, polled in (line.polls or {}).items():
            operation.polls[key] = list(map(self._polled.setdefault, polled, polled))
        self.completed.append(operation)

    def _acknowledge(self, operation: ClientOperation, line: HistoryLine) -> None:
        """Add offsets to what was invoked."""
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

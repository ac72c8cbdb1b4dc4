"""Lines of a history file: what they may contain, and where one is wrong.

Owns the schema of each line. It must never know what the lines mean together. Invariant: a field
that is missing, unknown or of another type is an error with the line, the field and a fix; nothing
is guessed. The format is JSON lines: a header, then invocations and completions in real-time order.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.lab.checker.client_history import (
    FORMAT_VERSION,
    Consumers,
    HistorySettings,
    IsolationLevel,
    OperationKind,
    OperationResult,
    PolledRecord,
    SentRecord,
    Value,
)

LINE_CHARS_MAX: Final = 16 * 1024 * 1024
"""Longest line of a history."""
LINE_ELEMENTS_MAX: Final = 1_000_000
"""Commas and opening brackets of a line, of which each may be a value of its own."""
KEY_CHARS_MAX: Final = 1024
"""Longest key, and longest value that is a string."""
SHOWN_CHARS_MAX: Final = 80
"""Characters of a wrong value that a message shows."""

INVOKE: Final = "invoke"
E = TypeVar("E", bound=StrEnum)


class InvalidHistory(ValueError):
    """A history that cannot be checked: says what is wrong, where, and how to fix it."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {problem}" if line else problem)
        self.problem = problem
        self.line = line


class HistoryLine(NamedTuple):
    """One decoded line after the header."""

    process: int
    type: str
    """``invoke``, or a result."""
    kind: OperationKind
    sends: list[tuple[str, SentRecord]]
    polls: list[tuple[str, PolledRecord]]
    polls_at_all: bool
    """Whether a step is a poll, even if it returned nothing."""
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
_TYPES: Final = (INVOKE, *map(str, OperationResult))
_NO_KEYS: Final[frozenset[str]] = frozenset()
_SEND_FIELDS: Final = ("send", "value", "offset")
_POLL_FIELDS: Final = ("poll",)
_HISTORY_NAME: Final = "minibroker"


def decode_line(text: str) -> dict[str, Any]:
    """Decode one line of JSON. Raises ``InvalidHistory``."""
    if len(text) > LINE_CHARS_MAX:
        raise InvalidHistory(f"the line has more than {LINE_CHARS_MAX} characters; split it")
    if sum(map(text.count, ",[{")) > LINE_ELEMENTS_MAX:
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
            IsolationLevel, line.get("isolation_level", "read_committed"), '"isolation_level"'
        ),
        idempotence=_bool(line.get("idempotence", True), '"idempotence"'),
        consumers=_one_of(Consumers, line.get("consumers", "assign"), '"consumers"'),
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
    kind = _KINDS.get(kind_name) if type(kind_name) is str else None
    if kind is None:
        kind = _one_of(OperationKind, kind_name, '"operation"')
    if type(type_) is not str or type_ not in _TYPES:
        _one_of(OperationResult, type_, '"type"', _TYPES)
    sends: list[tuple[str, SentRecord]] = []
    polls: list[tuple[str, PolledRecord]] = []
    polls_at_all = False
    if kind in _WITH_STEPS:
        for number, step in enumerate(_list(_required(line, "steps"), '"steps"')):
            polls_at_all |= _step(step, number, sends, polls)
    _forbid_fields_of_other_kinds(line, kind)
    _check_steps(kind, sends, polls_at_all=polls_at_all)
    keys = _list(_required(line, "keys"), '"keys"') if kind in _WITH_KEYS else ()
    for name, check in _OPTIONAL_FIELDS:
        if name in line:
            check(line[name], f'"{name}"')
    rebalanced = _list(line["rebalanced"], '"rebalanced"') if "rebalanced" in line else ()
    return HistoryLine(
        _natural(_required(line, "process"), '"process"'),
        str(type_),
        kind,
        sends,
        polls,
        polls_at_all,
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


def _forbid_fields_of_other_kinds(line: Mapping[str, Any], kind: OperationKind) -> None:
    for name, kinds in _KINDS_WITH.items():
        if name in line and kind not in kinds:
            raise InvalidHistory(
                f'"{name}" has no meaning in operation "{kind}"; it belongs to '
                + ", ".join(sorted(kinds))
            )


def _check_steps(
    kind: OperationKind, sends: list[tuple[str, SentRecord]], *, polls_at_all: bool
) -> None:
    if kind is OperationKind.SEND and polls_at_all:
        raise InvalidHistory('operation "send" contains a poll; use "txn" for both')
    if kind is OperationKind.POLL and sends:
        raise InvalidHistory('operation "poll" contains a send; use "txn" for both')


def _step(
    step: Any,
    number: int,
    sends: list[tuple[str, SentRecord]],
    polls: list[tuple[str, PolledRecord]],
) -> bool:
    """Collect the records of a step; return whether it is a poll."""
    if not isinstance(step, dict):
        raise InvalidHistory(f"step {number} is {_shown(step)}; it must be an object")
    if "poll" in step:
        _known(step, _POLL_FIELDS, f"step {number}")
        for key, records in _object(step["poll"], f'"poll" of step {number}').items():
            if not 0 < len(key) <= KEY_CHARS_MAX:
                _key(key, f'"poll" of step {number}')
            if not isinstance(records, list):
                _list(records, f"{key!r} in step {number}")
            polls.extend([(key, _polled(record, key, number)) for record in records])
        return True
    for name in step:
        if name not in _SEND_FIELDS:
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
    sends.append((_key(step["send"], '"send" of a step'), SentRecord(value, offset)))
    return False


def _polled(record: Any, key: str, number: int) -> PolledRecord:
    if not isinstance(record, list) or len(record) != 2:
        raise InvalidHistory(
            f"{key!r} in step {number} contains {_shown(record)}; "
            "a polled record is [OFFSET, VALUE]"
        )
    offset, value = record
    # The frequent kinds of values, for which no message is made.
    if type(offset) is not int or offset < 0:
        _natural(offset, f"offset of {key!r} in step {number}")
    if type(value) is not int:
        _value(value, f"{key!r} in step {number}")
    return PolledRecord(offset, value)


# ------------------------------------------------------------------------------- types of values


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


def _one_of(
    kind: Callable[[str], E], value: Any, where: str, names: tuple[str, ...] | None = None
) -> E:
    known = names or tuple(kind)  # type: ignore[arg-type]
    if not isinstance(value, str) or value not in known:
        near = difflib.get_close_matches(value, known, n=1) if isinstance(value, str) else []
        raise InvalidHistory(
            f"{where} is {_shown(value)}; it is one of {', '.join(known)}"
            + (f'; did you mean "{near[0]}"?' if near else "")
        )
    return kind(value)


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

"""Hand-written histories: one function for each kind of operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minibroker.lab.checker.checking import CheckReport, check_lines

Line = dict[str, Any]
Sends = Sequence[tuple[str, int, int | None]]
"""Key, value and offset of each record."""
Polls = Mapping[str, Sequence[tuple[int, int]]]
"""Offset and value of each record, by key."""


def header(**fields: Any) -> Line:
    return {"history": "minibroker", "version": 1, "final_polls": True, **fields}


def sent(sends: Sends, *, offsets: bool) -> list[Line]:
    steps = []
    for key, value, offset in sends:
        step: Line = {"send": key, "value": value}
        if offsets and offset is not None:
            step["offset"] = offset
        steps.append(step)
    return steps


def polled(polls: Polls) -> Line:
    return {"poll": {key: [list(each) for each in records] for key, records in polls.items()}}


def invoked(process: int, operation: str, sends: Sends, polls: Polls | None) -> Line:
    steps = sent(sends, offsets=False) + ([] if polls is None else [{"poll": {}}])
    return {"process": process, "type": "invoke", "operation": operation, "steps": steps}


def completed(
    process: int, operation: str, sends: Sends, polls: Polls | None, result: str, **fields: Any
) -> Line:
    steps = sent(sends, offsets=True) + ([] if polls is None else [polled(polls)])
    line = {"process": process, "type": result, "operation": operation, "steps": steps}
    return {**line, **fields}


def send(process: int, *sends: tuple[str, int, int | None], result: str = "ok") -> list[Line]:
    return [
        invoked(process, "send", sends, None),
        completed(process, "send", sends, None, result),
    ]


def poll(process: int, polls: Polls, result: str = "ok", **fields: Any) -> list[Line]:
    return [
        invoked(process, "poll", (), polls),
        completed(process, "poll", (), polls, result, **fields),
    ]


def txn(process: int, sends: Sends, polls: Polls | None = None, result: str = "ok") -> list[Line]:
    return [
        invoked(process, "txn", sends, polls),
        completed(process, "txn", sends, polls, result),
    ]


def assign(process: int, *keys: str, operation: str = "assign", **fields: Any) -> list[Line]:
    line = {"process": process, "operation": operation, "keys": list(keys), **fields}
    return [{**line, "type": "invoke"}, {**line, "type": "ok"}]


def report(*operations: Sequence[Line], **settings: Any) -> CheckReport:
    """Check a history whose operations follow each other."""
    return check_lines([header(**settings), *(line for lines in operations for line in lines)])


def found(*operations: Sequence[Line], **settings: Any) -> dict[str, int]:
    """All anomalies of a history, the allowed ones too."""
    return dict(report(*operations, **settings).counts)

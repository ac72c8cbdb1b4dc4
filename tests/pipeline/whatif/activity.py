"""Requests and connections as a table of activity, with every column of the schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from minibroker.lab.activity.events import (
    VERSION,
    ActivityKind,
    ConnectionStep,
)
from minibroker.pipeline.decoding import OBJECT_SCHEMA
from tests.pipeline.whatif.oracle import Event

METADATA = 3
API_KEYS = {"produce": 0, "fetch": 1, "mutate": 19, "other": METADATA}
WALL_US = 1_700_000_000_000_000
"""The wall clock at the zero of the broker's clock."""


def request_row(event: Event) -> dict[str, Any]:
    """As the broker writes it."""
    return {
        "version": VERSION,
        "kind": ActivityKind.REQUEST.value,
        "broker": event.broker,
        "started_us": event.started_us,
        "sequence": event.sequence,
        "time_us": WALL_US + event.clock_ms * 1000,
        "clock_ms": event.clock_ms,
        "sample": 1.0,
        "listener": "PLAINTEXT",
        "connection": event.connection,
        "ip": "10.0.0.1",
        "user": event.user,
        "client_id": event.client_id,
        "api_key": METADATA if event.unthrottled else API_KEYS[event.what],
        "api_version": 9,
        "request_bytes": event.size if event.what == "produce" else 77,
        "response_bytes": event.size - 4 if event.what == "fetch" else 55,
        "mutations": event.permits if event.what == "mutate" else None,
        "mutations_refused": 0 if event.what == "mutate" else None,
        "strict": event.strict if event.what == "mutate" else None,
        "exempt": event.exempt,
        "checked_ns": event.checked_ns,
        "late_ns": event.late_ns if event.late_clock_ms is not None else None,
        "late_clock_ms": event.late_clock_ms,
        "ordinal": event.ordinal,
        "time_ordinal": event.time_ordinal,
        "back_ordinal": event.back_ordinal,
        "late_ordinal": event.late_ordinal,
        "throttle_ms": event.throttle_ms,
        "error_code": 0,
    }


def connection_row(
    sequence: int,
    clock_ms: int,
    connection: int,
    ip: str,
    *,
    happened: ConnectionStep = ConnectionStep.ACCEPTED,
    reason: str | None = None,
) -> dict[str, Any]:
    """As the broker writes it."""
    return {
        "version": VERSION,
        "kind": ActivityKind.CONNECTION.value,
        "broker": 0,
        "started_us": 1,
        "sequence": sequence,
        "time_us": WALL_US + clock_ms * 1000,
        "clock_ms": clock_ms,
        "sample": 1.0,
        "listener": "PLAINTEXT",
        "connection": connection,
        "ip": ip,
        "happened": happened.value,
        "reason": reason,
    }


def table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """With all columns."""
    return pa.Table.from_pylist(list(rows), schema=OBJECT_SCHEMA)


def requests_table(events: Sequence[Event]) -> pa.Table:
    """Requests alone."""
    return table(request_row(event) for event in events)

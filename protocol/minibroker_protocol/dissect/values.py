"""Texts of single values: error codes by name, times as dates, UUIDs as Kafka writes them.

Owns the texts of leaves. It must never know their positions. Fields are recognized by Kafka's
names, which say what an integer means (``error_code``, ``..._timestamp_ms``).
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import uuid_text

PREVIEW_MAX: Final = 60
_ISOLATION: Final = {0: "read uncommitted", 1: "read committed"}
_ACKS: Final = {-1: "all", 0: "none", 1: "leader"}
_LIST_OFFSETS: Final = {
    -1: "latest",
    -2: "earliest",
    -3: "max timestamp",
    -4: "earliest local",
    -5: "latest tiered",
}
_COORDINATORS: Final = {0: "group", 1: "transaction", 2: "share"}
_RESOURCES: Final = {
    1: "any",
    2: "topic",
    3: "group",
    4: "broker",
    5: "transactional id",
    8: "broker logger",
    16: "client metrics",
    32: "group config",
}


def describe(name: str, value: Any) -> str:
    """`value` of the field `name`, for a reader."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return (
            uuid_text(value)
            if name.endswith(("_id", "uuid")) and len(value) == 16
            else (preview(value))
        )
    if isinstance(value, int):
        meaning = _meaning(name, value)
        return f"{value} {meaning}" if meaning else str(value)
    return str(value)


def quoted(text: str) -> str:
    """Text in quotes, cut short with its length if it is long."""
    if len(text) <= PREVIEW_MAX:
        return repr(text)
    return f"{text[:PREVIEW_MAX]!r}… ({len(text)} characters)"


def preview(data: bytes) -> str:
    """Bytes as text where they are text, and how many there are."""
    shown = data[:PREVIEW_MAX]
    try:
        text = shown.decode("ascii")
    except UnicodeDecodeError:
        return f"{len(data)} bytes"
    if not text.isprintable():
        return f"{len(data)} bytes"
    if not data:
        return "empty"
    return repr(text) if shown == data else f"{text!r}… ({len(data)} bytes)"


def moment(milliseconds: int) -> str:
    """Milliseconds since 1970 as a date, empty if they are none that a log would have."""
    if not 0 < milliseconds < 253_402_300_800_000:
        return ""
    when = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    return when.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _meaning(name: str, value: int) -> str:
    if name == "error_code":
        return ErrorCode.describe(value)
    if name in {"api_key", "request_api_key"}:
        return ApiKey(value).name if value in ApiKey.__members__.values() else "unknown"
    table = {
        "acks": _ACKS,
        "isolation_level": _ISOLATION,
        "key_type": _COORDINATORS,
        "resource_type": _RESOURCES,
    }.get(name)
    if table is not None:
        return table.get(value, "")
    if name == "timestamp" and value < 0:
        return _LIST_OFFSETS.get(value, "")
    if "timestamp" in name or name == "log_append_time_ms":
        return moment(value)
    return ""

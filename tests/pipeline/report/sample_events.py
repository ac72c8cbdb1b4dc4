"""Events as a broker writes them, and as Spark reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minibroker.lab.activity.events import CHECK_FIELDS, VERSION
from minibroker.pipeline.activity_table import ACTIVITY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_US = 1_795_000_020_000_000
Events = list[dict[str, Any]]


def request(sequence: int, **others: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "version": VERSION, "kind": "request", "broker": 1, "sequence": sequence,
        "time_us": START_US + sequence * 1000,
        "clock_ms": sequence, "sample": 1.0, "user": "alice", "client_id": "etl",
        "request_bytes": 100, "response_bytes": 10, "network_ns": 1000, "io_ns": 2000,
        "total_ns": 1_000_000, "throttle_ms": 0, "error_code": 0,
    }  # fmt: skip
    return {**fields, **others}


def check(**fields: Any) -> tuple[Any, ...]:
    """Return a quota check, of alice by default; fields that are not given are null."""
    found = {"user": "alice", "client_id": "", "throttle_ms": 0, **fields}
    return tuple(found.get(field.name) for field in CHECK_FIELDS)


def connection(sequence: int, happened: str, **others: Any) -> dict[str, Any]:
    fields = {
        "version": VERSION, "kind": "connection", "broker": 1, "sequence": sequence, "sample": 1.0,
        "time_us": START_US + sequence * 1000,
        "clock_ms": sequence, "happened": happened,
    }  # fmt: skip
    return {**fields, **others}


def dropped(sequence: int, many: int, **others: Any) -> dict[str, Any]:
    time_us = START_US + sequence * 1000
    fields = {"version": VERSION, "kind": "dropped", "broker": 1, "sequence": sequence,
              "time_us": time_us, "clock_ms": sequence, "dropped": many}  # fmt: skip
    return {**fields, **others}


def table(spark: SparkSession, events: Events) -> DataFrame:
    rows = [tuple(event.get(name) for name in ACTIVITY.fieldNames()) for event in events]
    return spark.createDataFrame(rows, ACTIVITY)

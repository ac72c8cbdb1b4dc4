"""A few fixed events for tests of the jobs.

Every event has all fields of the schema, with plain values by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from minibroker.lab.activity.events import FIELDS, VERSION
from minibroker.pipeline.decoding import OBJECT_SCHEMA

START_S: Final = 1_793_577_600
"""2 November 2026, 0:00 UTC."""

Event = dict[str, Any]
_EMPTY: Final[Event] = {field.name: None for field in FIELDS}


def at_s(seconds: float) -> int:
    """The time ``seconds`` after the start, as ``time_us``."""
    return round((START_S + seconds) * 1_000_000)


def _event(kind: str, seconds: float, given: Event) -> Event:
    time_us = at_s(seconds)
    common = {"version": VERSION, "kind": kind, "broker": 1, "time_us": time_us}
    return {**_EMPTY, **common, "sequence": time_us, "clock_ms": time_us // 1000, **given}


def check(user: str, client_id: str, **more: Any) -> Event:
    """The check of a quota."""
    return {"user": user, "client_id": client_id, "rate": 0.0, "bound": None, "throttle_ms": 0,
            "clock_ms": 0, **more}  # fmt: skip


def request(seconds: float, user: str, client_id: str, **more: Any) -> Event:
    """A request other than Produce and Fetch that took a millisecond of work."""
    plain = {
        "sample": 1.0, "listener": "PLAINTEXT", "connection": 1, "ip": "10.0.0.1", "user": user,
        "client_id": client_id, "api_key": 3, "api_version": 9, "request_bytes": 40,
        "response_bytes": 200, "exempt": False, "queue_ns": 10_000, "network_ns": 200_000,
        "io_ns": 800_000, "total_ns": 1_500_000, "checked_ns": 900_000, "late_ns": 100_000,
        "late_clock_ms": 0, "throttle_ms": 0, "error_code": 0,
    }  # fmt: skip
    return _event("request", seconds, {**plain, **more})


def produced(seconds: float, user: str, client_id: str, size: int, **more: Any) -> Event:
    return request(
        seconds, user, client_id, **{"api_key": 0, "request_bytes": size, "records": 1, **more}
    )


def fetched(seconds: float, user: str, client_id: str, size: int, **more: Any) -> Event:
    """Make a fetch; ``size`` is the value that a consumer's quota counts."""
    return request(seconds, user, client_id, **{"api_key": 1, "response_bytes": size - 4, **more})


def connection(seconds: float, ip: str, happened: str = "accepted", **more: Any) -> Event:
    return _event(
        "connection",
        seconds,
        {"sample": 1.0, "listener": "PLAINTEXT", "connection": 1, "ip": ip, "happened": happened,
         **more},
    )  # fmt: skip


def dropped(seconds: float, count: int, **more: Any) -> Event:
    return _event("dropped", seconds, {"dropped": count, **more})


def frame(spark: SparkSession, events: Iterable[Event]) -> DataFrame:
    """The events as rows of the activity table, without the columns of folder names."""
    return spark.createDataFrame(arrow(events))


def parquet(path: Path, events: Iterable[Event]) -> Path:
    """Write the events as one file, without Spark."""
    pq.write_table(arrow(events), path)
    return path


def table(path: Path, events: Iterable[Event]) -> Path:
    """Write the events as an activity table of one folder."""
    folder = path / "hour=2026-11-02-00" / "bucket=00"
    folder.mkdir(parents=True)
    parquet(folder / "part-00000.parquet", events)
    return path


def arrow(events: Iterable[Event]) -> pa.Table:
    """Return the events as an Arrow table."""
    return pa.Table.from_pylist(list(events), OBJECT_SCHEMA)


def many(count: int, seed: int, lasts_s: int = 300) -> Iterator[Event]:
    """Yield random events of all kinds, of four users with three client-ids at two brokers."""
    chance = Random(seed)
    for number in range(count):
        seconds = chance.random() * lasts_s
        user, client_id = chance.choice("abcd"), chance.choice(["x", "y", ""])
        share = chance.choice([1.0, 1.0, 0.3])
        throttled_ms = chance.choice([0, 0, 0, 250])
        level = chance.choice([(user, client_id), (user, ""), ("", client_id)])
        look = check(
            *level, rate=chance.random() * 100, bound=chance.choice([None, 50.0, 60.0]),
            throttle_ms=throttled_ms,
        )  # fmt: skip
        more: Event = {
            "broker": chance.choice([1, 2]), "sequence": number, "sample": share,
            "total_ns": int(10 ** (4 + 6 * chance.random())),
            "checked_ns": chance.randrange(10**7), "late_ns": chance.randrange(10**6),
            "error_code": chance.choice([0, 0, 0, 6]), "throttle_ms": throttled_ms,
        }  # fmt: skip
        match chance.randrange(7):
            case 0:
                yield produced(
                    seconds, user, client_id, chance.randrange(10**6), produce=look, **more
                )
            case 1:
                yield fetched(
                    seconds, user, client_id, chance.randrange(4, 10**6), fetch=look, **more
                )
            case 2:
                yield request(seconds, user, client_id, mutations=3, mutations_refused=1,
                              mutation=look, request=look, **more)  # fmt: skip
            case 3:
                yield request(seconds, user, client_id, **more | {"exempt": True})
            case 4:
                happened = chance.choice(["accepted", "accepted", "held", "refused", "closed"])
                delay = {"delay_ms": throttled_ms} if happened == "held" else {}
                yield connection(
                    seconds, f"10.0.0.{chance.randrange(4)}", happened, sample=share,
                    broker=more["broker"], sequence=number, **delay,
                )  # fmt: skip
            case 5 if chance.random() < 0.1:
                yield dropped(seconds, chance.randrange(50), broker=1, sequence=number)
            case _:
                yield request(seconds, user, client_id, request=look, **more)

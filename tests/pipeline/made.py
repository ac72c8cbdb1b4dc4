"""Events for tests: made of the schema, so that a new field needs no change here."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.activity.schema import (
    CHECK_FIELDS,
    FIELDS,
    TOPIC,
    VERSION,
    ActivityField,
    ActivityKind,
    ActivityType,
)
from minibroker.pipeline.columns import EventRun
from minibroker.pipeline.filing import raw_of
from minibroker.pipeline.parquet import ACTIVITY, Encoder
from minibroker.storage.config import LogConfig
from minibroker.storage.log import Log
from protocol.compression import Compression
from protocol.records import Record, build_batch

HOUR_US = 3_600_000_000
START_US = 490_000 * HOUR_US
USERS = ["alice", "bob", "carol", "dörte", ""]


def value(field: ActivityField, chance: random.Random) -> Any:
    if field.type is ActivityType.TEXT:
        return chance.choice(USERS)
    if field.type is ActivityType.FLAG:
        return chance.random() < 0.5
    if field.type is ActivityType.CHECK:
        return {part.name: value(part, chance) for part in CHECK_FIELDS}
    if field.type is ActivityType.DOUBLE:
        return chance.choice([0.0, 1.0, chance.random() * 1e6, chance.random() * 1e-7])
    return chance.randrange(2**31 if field.type is ActivityType.INT else 2**53)


def event(
    sequence: int, chance: random.Random, *, broker: int = 1, hours: int = 2
) -> dict[str, Any]:
    """Return a complete event of some kind, with some of its optional fields."""
    kind = chance.choice(
        [ActivityKind.REQUEST] * 8 + [ActivityKind.CONNECTION, ActivityKind.DROPPED]
    )
    made = {
        field.name: value(field, chance)
        for field in FIELDS
        if kind in field.kinds
        and (
            not field.may_lack
            or field.name in ("user", "client_id", "api_key", "happened", "dropped")
            or chance.random() < 0.7
        )
    }
    time_us = START_US + chance.randrange(hours * HOUR_US)
    return {
        **made,
        "version": VERSION,
        "kind": str(kind),
        "broker": broker,
        "sequence": sequence,
        "time_us": time_us,
    }


def written(made: dict[str, Any]) -> bytes:
    return json.dumps(made, separators=(",", ":"), ensure_ascii=False).encode()


def events(count: int, seed: int, *, start: int = 0) -> list[bytes]:
    chance = random.Random(seed)
    return [written(event(start + at, chance)) for at in range(count)]


def append(
    data_dir: Path, values: list[bytes | None], *, partition: int = 0, batch: int = 50,
    segment_bytes: int = 1 << 30,
) -> None:  # fmt: skip
    """Write records to the topic's log as a broker does."""
    config = LogConfig(segment_bytes=segment_bytes)
    log = Log.open(data_dir, TOPIC, partition, config, now_ms=1)
    for at in range(0, len(values), batch):
        records = [Record(0, 7 + at, b"key", raw) for raw in values[at : at + batch]]
        log.append(build_batch(records, compression=Compression.LZ4), now_ms=1)
    log.close(now_ms=1)


def run_of(values: list[bytes | None]) -> tuple[EventRun, dict[int, str]]:
    """Return the events that were read, and number and reason of malformed ones."""
    run = EventRun(max(len(values), 1))
    return run, dict(run.read(raw_of(pa.array(values, pa.binary()))))


def table_of_run(run: EventRun, rows: Any = None) -> pa.Table:
    """The rows of a run as its file has them, or some of them."""
    rows = np.arange(run.count) if rows is None else rows
    if not len(rows):
        return ACTIVITY.empty_table()
    content = Encoder().file(run, rows)
    return pq.read_table(io.BytesIO(content))

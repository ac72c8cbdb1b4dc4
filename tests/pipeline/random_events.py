"""Random events that follow the schema, so a new field needs no change here."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.lab.activity.arrow_format import SCHEMA
from minibroker.lab.activity.events import (
    CHECK_FIELDS,
    FIELDS,
    TOPIC,
    VERSION,
    ActivityField,
    ActivityKind,
    ActivityType,
)
from minibroker.pipeline.decoding import OBJECT_SCHEMA, Batch, decode, flattened, needed
from minibroker_protocol.compression import Compression
from minibroker_protocol.records import Record, build_batch

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


def completed(given: dict[str, Any]) -> dict[str, Any]:
    """Add the missing required fields to an event, with neutral values."""
    nothing: dict[ActivityType, Any] = {
        ActivityType.TEXT: "", ActivityType.FLAG: False, ActivityType.DOUBLE: 1.0,
    }  # fmt: skip
    kind = ActivityKind(given["kind"])
    needs = {field.name: nothing.get(field.type, 0) for field in FIELDS if needed(field, kind)}
    has = {name: value for name, value in given.items() if value is not None}
    return {**needs, "version": VERSION, **has}


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


def table_of(values: list[bytes]) -> pa.Table:
    """The events of values that contain nothing else."""
    found = list(decode(values))
    batches = [each.events for each in found if isinstance(each, Batch)]
    assert len(batches) == len(found)
    return pa.Table.from_batches(batches, SCHEMA).unify_dictionaries()


def arrow_value(made: list[dict[str, Any]]) -> bytes:
    """A record's value with several events."""
    [batch] = flattened(pa.Table.from_pylist(made, OBJECT_SCHEMA)).to_batches()
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, SCHEMA) as stream:
        stream.write_batch(batch)
    value: bytes = out.getvalue().to_pybytes()
    return value

"""Generated activity: the input of benchmarks and tests of the jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from minibroker.broker.quotas.rate import Rate
from minibroker.lab.activity.events import FIELDS, TOPIC, ActivityKind
from minibroker_protocol.records import iter_batches, iter_records
from system_tests.benchmarks.pipeline import generate
from system_tests.benchmarks.pipeline.clients import SAMPLES, WINDOW_MS
from tests.lab.activity.decoding import events_in

EVENTS = 40_000
EVERYTHING = "read_parquet('{}/*/*/*.parquet', hive_partitioning=true)"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate.table(tmp_path_factory.mktemp("generated") / "activity", EVENTS, hours=1.5)


def ask(table: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        result = connection.execute(query.replace("EVENTS", EVERYTHING.format(table)))
        return result.fetchall()


def test_generate_writes_wanted_count_of_unique_events(table: Path) -> None:
    counted = ask(
        table, "select count(*), count(distinct (broker, sequence)), sum(version) from EVENTS"
    )
    assert counted == [(EVENTS, EVENTS, EVENTS)]


def test_event_has_only_fields_of_its_kind(table: Path) -> None:
    for kind in (ActivityKind.REQUEST, ActivityKind.CONNECTION):
        for field in FIELDS:
            ((there, of),) = ask(
                table, f"select count(\"{field.name}\"), count(*) from EVENTS where kind = '{kind}'"
            )
            assert of > 0
            if kind not in field.kinds:
                assert there == 0, field.name
            elif not field.may_lack:
                assert there == of, field.name


def test_file_is_sorted_and_has_columns_of_the_schema(table: Path) -> None:
    for path in table.rglob("*.parquet"):
        events = pq.read_table(path, partitioning=None)
        assert events.column_names == [field.name for field in FIELDS]
        keys = [
            (row["user"] or "", row["client_id"] or "", row["time_us"], row["sequence"])
            for row in events.select(["user", "client_id", "time_us", "sequence"]).to_pylist()
        ]
        assert keys == sorted(keys)


def test_generated_load_is_skewed_and_partly_throttled(table: Path) -> None:
    shares = ask(
        table,
        "select count(*)::double / sum(count(*)) over () share, user, client_id from EVENTS"
        " where kind = 'request' group by user, client_id order by share desc limit 20",
    )
    assert 0.05 < shares[0][0] < 0.3
    assert sum(share for share, *_ in shares) > 0.3
    ((held,),) = ask(table, "select count(*) from EVENTS where throttle_ms > 0")
    assert EVENTS / 1000 < held < EVENTS / 5


def test_throttles_match_the_broker_s_formula(table: Path) -> None:
    looked = ask(
        table,
        "select broker, user, client_id, clock_ms, request_bytes, produce from EVENTS"
        " where produce.bound is not null order by broker, sequence",
    )
    rates: dict[tuple[Any, ...], Rate] = {}
    differ = throttled = 0
    for broker, user, client_id, clock_ms, size, check in looked:
        rate = rates.setdefault((broker, user, client_id), Rate(SAMPLES - 1, WINDOW_MS))
        rate.record(size, clock_ms)
        differ += rate.throttle_ms(check["bound"], clock_ms, 2**31) != check["throttle_ms"]
        throttled += check["throttle_ms"] > 0
    assert throttled
    assert differ == 0


def test_seed_determines_the_events(table: Path, tmp_path: Path) -> None:
    digest = "select bit_xor(hash(columns(*))) from EVENTS"
    again = generate.table(tmp_path / "again", EVENTS, hours=1.5)
    other = generate.table(tmp_path / "other", EVENTS, seed=2, hours=1.5)
    assert ask(again, digest) == ask(table, digest) != ask(other, digest)


def test_generated_topic_holds_same_events_as_table(table: Path, tmp_path: Path) -> None:
    generate.topic(tmp_path / "data", EVENTS, hours=1.5)
    logs = sorted(tmp_path.glob(f"data/{TOPIC}-*/*.log"))
    assert len(logs) == generate.PARTITIONS
    events = [
        event
        for log in logs
        for data in [log.read_bytes()]
        for at, header in iter_batches(data)
        for record in iter_records(memoryview(data)[at : at + header.size])
        for event in events_in(record.value or b"")
    ]
    assert all(value is not None for event in events for value in event.values())
    file = next(table.rglob("*.parquet"))
    wanted = pq.read_table(file, partitioning=None).slice(0, 500).to_pylist()
    by_sequence = {(event["broker"], event["sequence"]): event for event in events}
    assert len(by_sequence) == EVENTS
    for row in wanted:
        event = by_sequence[row["broker"], row["sequence"]]
        assert event["time_us"] == row["time_us"]
        assert event["kind"] == row["kind"]
        there = {name: value for name, value in row.items() if value is not None}
        for check in ("produce", "fetch", "request"):
            if check in there:
                there[check] = {k: v for k, v in there[check].items() if v is not None}
        assert event == there

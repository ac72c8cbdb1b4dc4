"""Sorting and deduplication of a run of events, compared with plain Python."""

from __future__ import annotations

import io
import json
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.activity.arrow_format import SCHEMA
from minibroker.lab.activity.events import FIELDS
from minibroker.pipeline import activity_table, event_files
from minibroker.pipeline.decoding import OBJECT_SCHEMA, flattened, parse_event
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.event_files import (
    BUCKETS,
    COUNTED,
    FOOTER,
    HOUR_US,
    QUARANTINED,
    EventWriter,
    SortedRun,
    bucket_of,
    events_file,
    faults_file,
    folder_of,
    merge_spans,
    nested,
    place_of,
    sort_run,
    spans_from_json,
    spans_of,
    spans_overlap,
    spans_to_json,
    write_events,
)
from tests.pipeline.random_events import (
    START_US,
    arrow_value,
    completed,
    event,
    events,
    table_of,
    written,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Places ------------------------------------------------------------------------------------------


def test_place_names_hour_and_bucket() -> None:
    assert place_of(0, 7) == "1970-01-01-00.07"
    assert folder_of(place_of(START_US // 3_600_000_000, 15)) == "hour=2025-11-24-16/bucket=15"
    assert folder_of("2025-11-24-16.07.3") == "hour=2025-11-24-16/bucket=07"


def test_bucket_is_sparks_hash(spark: SparkSession) -> None:
    texts = [None, "", "a", "ab", "abc", "abcd", "abcde", "dörte", "日本", "x" * 99]
    rows = [(one, other) for one in texts for other in texts]
    frame = spark.createDataFrame(rows, "user string, client_id string").selectExpr(
        f"pmod(hash(user, client_id), {BUCKETS}) pair", f"pmod(hash(user), {BUCKETS}) one"
    )
    found = [(row.pair, row.one) for row in frame.collect()]
    assert found == [(bucket_of(*row), bucket_of(row[0])) for row in rows]


# Sorting -----------------------------------------------------------------------------------------

Key = tuple[int, int]


def run_of(events: list[dict[str, Any]]) -> SortedRun:
    rows = [completed(each) for each in events]
    table = pa.Table.from_pylist(rows, OBJECT_SCHEMA)
    return sort_run(flattened(table).unify_dictionaries())


def keys(table: pa.Table) -> list[Key]:
    """(broker, sequence) of each row."""
    return list(zip(table["broker"].to_pylist(), table["sequence"].to_pylist(), strict=True))


def place(each: dict[str, Any]) -> str:
    """The place of an event, by the rules of the table's layout."""
    by_ip = each["kind"] == "connection"
    names = (each.get("ip"),) if by_ip else (each.get("user"), each.get("client_id"))
    return place_of(each["time_us"] // HOUR_US, bucket_of(*names))


def sort_key(each: dict[str, Any]) -> Any:
    """The order within a file: null names first."""
    names = [(each.get(name) is not None, each.get(name)) for name in ("user", "client_id")]
    return names, each["time_us"], each["sequence"], each["broker"]


def test_events_are_sorted_within_the_place_of_each() -> None:
    chance = random.Random(5)
    events = [event(number, chance, broker=chance.choice([1, 7])) for number in range(400)]
    chance.shuffle(events)
    expected: defaultdict[str, list[Key]] = defaultdict(list)
    for each in sorted(events, key=sort_key):
        expected[place(each)].append((each["broker"], each["sequence"]))
    assert {name: keys(table) for name, table in run_of(events).places.items()} == expected


def test_event_that_occurs_twice_is_kept_once() -> None:
    chance = random.Random(6)
    events = [event(number, chance) for number in range(50)]
    run = run_of([*events, *events[10:20]])
    assert sorted(key for table in run.places.values() for key in keys(table)) == [
        (1, number) for number in range(50)
    ]


def test_spans_are_the_sequences_of_the_kept_events() -> None:
    chance = random.Random(7)
    numbers = [*range(10), *range(20, 30), *range(5)]
    run = run_of([event(number, chance) for number in numbers])
    kept = {key for table in run.places.values() for key in keys(table)}
    spans = {
        (broker, number)
        for broker, first, last in run.spans.tolist()
        for number in range(first, last + 1)
    }
    assert spans == kept


# Parquet -----------------------------------------------------------------------------------------


def wanted_of(raws: list[bytes]) -> pa.Table:
    return pa.Table.from_pylist([parse_event(raw) for raw in raws], OBJECT_SCHEMA)


def read(content: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(content))


def test_columns_match_the_table() -> None:
    found = nested(SCHEMA.empty_table()).schema.names
    assert found == activity_table.ACTIVITY.fieldNames() == [field.name for field in FIELDS]


def test_written_file_is_read_equally_by_all_readers(spark: SparkSession, tmp_path: Path) -> None:
    raws = events(400, 1)
    content = events_file(table_of(raws))
    wanted = wanted_of(raws)
    assert read(content).equals(wanted)
    file = tmp_path / "one.parquet"
    file.write_bytes(content)
    rows = spark.read.schema(activity_table.ACTIVITY).parquet(str(file)).collect()
    assert [row.asDict(recursive=True) for row in rows] == wanted.to_pylist()
    by_duckdb = duckdb.execute(f"select * from '{file}'").fetchall()
    assert [
        dict(zip(OBJECT_SCHEMA.names, row, strict=True)) for row in by_duckdb
    ] == wanted.to_pylist()


def metadata(content: bytes) -> pq.FileMetaData:
    return pq.read_metadata(io.BytesIO(content))


def test_statistics_are_written_for_filter_columns_only() -> None:
    group = metadata(events_file(table_of(events(50, 2)))).row_group(0)
    found = {
        group.column(at).path_in_schema: group.column(at).statistics
        for at in range(group.num_columns)
        if group.column(at).is_stats_set
    }
    assert set(found) == {"version", "broker", "sequence", "time_us"}
    assert (found["sequence"].min, found["sequence"].max) == (0, 49)


def test_columns_are_encoded_by_their_type() -> None:
    group = metadata(events_file(table_of(events(50, 2)))).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    found = {column.path_in_schema: set(column.encodings) for column in columns}
    for name in ("time_us", "total_ns", "request.clock_ms"):
        assert "DELTA_BINARY_PACKED" in found[name]
    for name in ("user", "ip", "request.client_id"):
        assert "RLE_DICTIONARY" in found[name]
    assert {column.compression for column in columns} == {"LZ4"}


def test_faults_are_written_compressed() -> None:
    table = pa.table({"reason": ["a", None], "raw": pa.array([b"x" * 999, None], pa.binary())})
    content = faults_file(table)
    assert read(content).equals(table)
    assert len(content) < 999


def test_row_groups_have_bounded_row_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(event_files._OF_EVENTS, "row_group_size", 64)
    raws = events(150, 4)
    content = events_file(table_of(raws))
    found = metadata(content)
    assert [found.row_group(at).num_rows for at in range(found.num_row_groups)] == [64, 64, 22]
    assert read(content).equals(wanted_of(raws))


def test_text_of_any_length_is_written() -> None:
    chance = random.Random(4)
    made = next(e for e in iter(lambda: event(1, chance), None) if e["kind"] == "request")
    long = "x" * 5_000_000
    table = table_of([written({**made, "ip": long}), written({**made, "ip": "y"})])
    assert read(events_file(table))["ip"].to_pylist() == [long, "y"]


def test_large_dictionary_is_written_without_unused_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    made: list[dict[str, Any]] = []
    while len(made) < 200:
        one = event(len(made), chance)
        if one["kind"] == "request":
            made.append({**one, "client_id": f"a rather long client-id {len(made)}"})
    table = table_of([written(each) for each in made])
    whole = events_file(table.slice(10, 20))
    monkeypatch.setattr(event_files, "DICTIONARY_MAX", 50)
    content = events_file(table.slice(10, 20))
    assert read(content).equals(wanted_of([written(each) for each in made[10:30]]))
    assert len(content) < len(whole)


def test_nulls_stay_null_without_unused_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "DICTIONARY_MAX", 0)
    raws = events(100, 6)
    assert read(events_file(table_of(raws))).equals(wanted_of(raws))


# Writing -----------------------------------------------------------------------------------------


def batch(values: list[bytes | None]) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["t"] * count,
            "partition": pa.array([3] * count, pa.int32()),
            "offset": list(range(count)),
            "value": pa.array(values, pa.binary()),
        }
    )


def files_and_counts(rows: list[pa.RecordBatch]) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    found = {row["place"]: row["content"] for made in rows for row in made.to_pylist()}
    assert len(found) == sum(made.num_rows for made in rows), "two files under one name"
    counted = json.loads(found.pop(COUNTED))
    return {
        place: pq.read_table(io.BytesIO(content + FOOTER)) for place, content in found.items()
    }, counted


def files(*batches: pa.RecordBatch) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    return files_and_counts(list(write_events("host:9092", 99, None)(iter(batches))))


def sequences(found: dict[str, pa.Table]) -> list[int]:
    return sorted(number for table in found.values() for number in table["sequence"].to_pylist())


def test_all_batches_of_a_place_become_one_file() -> None:
    found, counted = files(batch(list(events(100, 1))), batch(list(events(100, 2, start=100))))
    assert (counted["records"], counted["events"], counted["malformed"]) == (200, 200, 0)
    assert len({place.rpartition(".")[0] for place in found}) == len(found)
    assert sequences(found) == list(range(200))
    spans = counted["spans"]["1"]
    assert sum(last - first + 1 for first, last in zip(spans[::2], spans[1::2], strict=True)) == 200


def test_malformed_record_is_quarantined_with_reason() -> None:
    good = events(3, 1)
    found, counted = files(batch([good[0], b"junk", None, good[1], good[2]]))
    ((name, table),) = ((k, v) for k, v in found.items() if k.startswith(QUARANTINED))
    aside = table.to_pylist()
    assert sequences({k: v for k, v in found.items() if k != name}) == [0, 1, 2]
    assert counted["malformed"] == 2
    assert {(row["offset"], row["raw"], row["reason"].split(":")[0]) for row in aside} == {
        (1, b"junk", "not JSON"),
        (2, None, "it has no value"),
    }
    assert {(row["source"], row["topic"], row["partition"], row["found_ms"]) for row in aside} == {
        ("host:9092", "t", 3, 99)
    }


def test_damaged_batch_counts_as_malformed_record() -> None:
    writer = EventWriter("dir", 7, None)
    rows = [*writer.add_damaged("torn", ("t", 1, 5), b"raw"), *writer.finish()]
    found, counted = files_and_counts(rows)
    ((row,),) = (table.to_pylist() for table in found.values())
    assert (row["reason"], row["offset"], row["raw"]) == ("torn", 5, b"raw")
    assert (counted["records"], counted["malformed"]) == (1, 1)


def test_more_than_there_is_room_for_is_filed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "ROWS_MAX", 64)
    made = events(200, 3)
    found, counted = files(*(batch(list(made[at : at + 50])) for at in range(0, 200, 50)))
    assert counted["events"] == 200
    assert sequences(found) == list(range(200))


def test_many_malformed_events_are_quarantined_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "FAULTS_MAX", 10)
    found, counted = files(batch([b"junk"] * 25))
    assert [table.num_rows for table in found.values()] == [10, 10, 5]
    assert counted["malformed"] == 25


def test_task_writes_local_files_without_spark(tmp_path: Path) -> None:
    made = batch([*events(100, 1), b"junk"])
    wanted, counted = files(made)
    rows = [row for one in write_events("host:9092", 99, str(tmp_path))(iter([made]))
            for row in one.to_pylist()]  # fmt: skip
    assert json.loads(rows.pop()["content"]) == counted
    assert {row["place"]: pq.read_table(
        tmp_path / f"place={row['place']}" / row["file"], partitioning=None
    ) for row in rows} == wanted  # fmt: skip
    assert {row["content"] for row in rows} == {None}
    again = [row["file"] for one in write_events("host:9092", 99, str(tmp_path))(iter([made]))
             for row in one.to_pylist()]  # fmt: skip
    assert not {row["file"] for row in rows} & set(again), "two attempts at a task wrote one file"


def test_table_missing_on_worker_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gone does not exist on this worker"):
        EventWriter("dir", 7, str(tmp_path / "gone"))


def test_empty_batch_writes_no_file() -> None:
    nothing = {"records": 0, "events": 0, "malformed": 0, "spans": {}}
    assert files(batch([])) == files() == ({}, nothing)


def test_events_beyond_size_limit_go_to_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    made = events(100, 3)
    batches = batch(list(made[:50])), batch(list(made[50:]))
    together, _ = files(*batches)
    monkeypatch.setattr(event_files, "RUN_BYTES_MAX", sum(map(len, made)) - 1)
    apart, _ = files(*batches)
    assert sequences(apart) == sequences(together) == list(range(100))
    assert len(apart) > len(together)


def many(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [event(number, chance) for number in range(count)]


def test_events_of_both_formats_are_filed_alike() -> None:
    made = many(300, 7)
    as_json, counted = files(batch([written(each) for each in made]))
    arrow = [arrow_value(made[at : at + 100]) for at in range(0, 300, 100)]
    assert files(batch(list(arrow))) == (as_json, counted)


def test_malformed_event_of_a_batch_is_quarantined_alone() -> None:
    made = many(40, 8)
    bad = {**next(each for each in made if each["kind"] == "request"), "queue_ns": -5}
    value = arrow_value([*made[:10], {**bad, "sequence": 99}, *made[10:25]])
    found, counted = files(batch([arrow_value(made[26:]), value, b"\xff\xff\xff\xff"]))
    assert (counted["records"], counted["events"], counted["malformed"]) == (41, 39, 2)
    aside = [row for place, table in found.items() if place.startswith(QUARANTINED)
             for row in table.to_pylist()]  # fmt: skip
    by_offset = {row["offset"]: row for row in aside}
    assert by_offset[1]["reason"] == "field `queue_ns` is negative: -5"
    assert json.loads(by_offset[1]["raw"])["sequence"] == 99
    assert by_offset[2]["raw"] == b"\xff\xff\xff\xff"
    assert by_offset[2]["reason"].startswith("not an Arrow IPC stream: ")


SPANS = st.lists(
    st.tuples(st.integers(-1, 2), st.integers(0, 20), st.integers(0, 5)).map(
        lambda found: (found[0], found[1], found[1] + found[2])
    )
)


def rows(spans: list[tuple[int, int, int]]) -> np.ndarray:
    return np.array(spans, np.int64).reshape(-1, 3)


def said(spans: np.ndarray) -> list[tuple[int, int]]:
    return [(b, at) for b, first, last in spans.tolist() for at in range(first, last + 1)]


@given(SPANS)
def test_overlap_is_true_if_spans_share_a_sequence(spans: list[tuple[int, int, int]]) -> None:
    everything = said(rows(spans))
    assert spans_overlap(rows(spans)) == (len(set(everything)) < len(everything))


@given(SPANS)
def test_joined_spans_are_equal_and_minimal(spans: list[tuple[int, int, int]]) -> None:
    found = merge_spans(rows(spans))
    assert said(found) == sorted(set(said(rows(spans))))
    assert all(
        one[0] != other[0] or other[1] > one[2] + 1 for one, other in pairwise(found.tolist())
    )


@given(SPANS, st.integers(4, 6))
def test_joined_spans_beyond_limit_fill_gaps(spans: list[tuple[int, int, int]], most: int) -> None:
    found = merge_spans(rows(spans), most)
    assert len(found) <= most
    assert set(said(found)) >= set(said(rows(spans)))
    assert not spans_overlap(found)


def test_joined_spans_fill_smallest_gap_first() -> None:
    spans = rows([(1, 0, 1), (1, 5, 6), (1, 8, 9), (2, 0, 0)])
    assert merge_spans(spans, 3).tolist() == [[1, 0, 1], [1, 5, 9], [2, 0, 0]]


@given(SPANS)
def test_spans_json_round_trip_is_equal(spans: list[tuple[int, int, int]]) -> None:
    found = merge_spans(rows(spans))
    assert spans_from_json(json.loads(json.dumps(spans_to_json(found)))).tolist() == found.tolist()


@given(st.lists(st.tuples(st.sampled_from([1, 2, 1025]), st.integers(0, 9))))
def test_spans_are_the_sequences_in_their_order(keys: list[tuple[int, int]]) -> None:
    both = np.array(keys, np.int64).reshape(-1, 2)
    spans = spans_of(both[:, 0], both[:, 1])
    assert sorted(said(spans)) == sorted(keys)


def test_alternating_brokers_have_separate_spans() -> None:
    brokers, sequences = np.array([1, 2, 1, 2, 1]), np.array([7, 1, 8, 2, 9])
    assert spans_of(brokers, sequences).tolist() == [[1, 7, 9], [2, 1, 2]]

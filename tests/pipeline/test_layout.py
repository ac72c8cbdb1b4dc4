from __future__ import annotations

import io
import json
import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.pipeline.columns import parse
from minibroker.pipeline.layout import (
    BUCKETS,
    SORTED_BY,
    bucket_of,
    buckets,
    file_bytes,
    folder_of,
    place_of,
    split,
)
from tests.pipeline.made import START_US, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def table(count: int = 300, seed: int = 1) -> pa.Table:
    return parse(pa.array(events(count, seed), pa.binary())).table


def test_a_place_names_hour_and_bucket() -> None:
    assert place_of(0, 7) == "1970-01-01-00.07"
    assert folder_of(place_of(START_US // 3_600_000_000, 15)) == "hour=2025-11-24-16/bucket=15"


def test_the_bucket_is_sparks_hash(spark: SparkSession) -> None:
    texts = [None, "", "a", "ab", "abc", "abcd", "abcde", "dörte", "日本", "x" * 99]
    rows = [(one, other) for one in texts for other in texts]
    frame = spark.createDataFrame(rows, "user string, client_id string").selectExpr(
        f"pmod(hash(user, client_id), {BUCKETS}) pair", f"pmod(hash(user), {BUCKETS}) one"
    )
    found = [(row.pair, row.one) for row in frame.collect()]
    assert found == [(bucket_of(*row), bucket_of(row[0])) for row in rows]


def test_connections_are_filed_by_their_address_and_requests_by_whom_they_are_of() -> None:
    made = table()
    rows = made.to_pylist()
    wanted = [
        bucket_of(row["ip"])
        if row["kind"] == "connection"
        else bucket_of(row["user"], row["client_id"])
        for row in rows
    ]
    assert buckets(made).tolist() == wanted


def test_every_event_is_at_its_place() -> None:
    made = table()
    parts = dict(split(made))
    assert sum(part.num_rows for part in parts.values()) == made.num_rows
    for place, part in parts.items():
        hour = place.split(".")[0]
        assert {str(t)[:13].replace(" ", "-") for t in
                part["time_us"].cast(pa.timestamp("us")).to_pylist()} == {hour}  # fmt: skip


def test_a_time_that_is_nonsense_has_a_place_too() -> None:
    raw = json.loads(events(1, 3)[0])
    far = json.dumps({**raw, "time_us": 2**63 - 1}).encode()
    ((place, part),) = split(parse(pa.array([far], pa.binary())).table)
    assert (place[:13], part.num_rows) == ("294247-01-10-", 1)


def test_a_file_has_each_event_once_in_order() -> None:
    made = table()
    shuffled = pa.concat_tables([made, made]).take(random.Random(1).sample(range(600), 600))
    for _, part in split(shuffled):
        found = pq.read_table(io.BytesIO(file_bytes("2026-11-20-14.07", part)))
        keys = list(zip(found["broker"].to_pylist(), found["sequence"].to_pylist(), strict=True))
        assert len(set(keys)) == len(keys) == part.num_rows // 2
        ordered = found.sort_by([(name, "ascending") for name in SORTED_BY])
        assert ordered.equals(found)

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibroker.broker.quotas.types import DEFAULT, Entity, QuotaTable, QuotaType
from minibroker.pipeline.activity_table import ACTIVITY, buckets_of, read_activity
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.whatif import job
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from minibroker.pipeline.whatif.replay import Replay
from tests.pipeline.whatif import oracle, random_workload
from tests.pipeline.whatif.activity import connection_row, request_row, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from minibroker.broker.quotas.types import CLIENT_QUOTA_KEYS
from minibroker.pipeline.whatif.job import decision_batches
from tests.pipeline.whatif.activity import requests_table

pytestmark = pytest.mark.usefixtures("compiled_replay")

CHANCE = random.Random(11)
PROPOSALS = [random_workload.proposal(CHANCE, name) for name in "ab"]
PROPOSALS[1] = Proposal("b", PROPOSALS[1].table, {}, 1.0)
ALONE = Proposal("c", QuotaTable({QuotaType.PRODUCE: {Entity(DEFAULT, DEFAULT): 200.0}}, 4))
EVENTS = random_workload.events(CHANCE, 1500)
ROWS = [
    *map(request_row, EVENTS),
    *(connection_row(9000 + n, 1_000_000 + 20 * n, n, f"10.0.0.{n % 2}") for n in range(60)),
]


@pytest.fixture(scope="session")
def activity(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    path = tmp_path_factory.mktemp("activity") / "events.parquet"
    pq.write_table(table(shuffled), path)
    return spark.read.schema(ACTIVITY).parquet(str(path))


def sorted_rows(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=str)


def plainly(proposals: Sequence[Proposal], *, closed: bool = False) -> list[tuple[Any, ...]]:
    """Of one replay over all events, without Spark."""
    run = Replay(proposals, Counting(), closed=closed)
    run.feed(table(ROWS))
    return sorted_rows([tuple(row.values()) for batch in run.end() for row in batch.to_pylist()])


@pytest.mark.parametrize("partitions", [1, 64])
@pytest.mark.parametrize("closed", [False, True])
def test_what_if_is_independent_of_spark_partitions(
    activity: DataFrame, partitions: int, closed: bool
) -> None:
    found = job.whatif(activity, PROPOSALS, Counting(), closed=closed, partitions=partitions)
    assert sorted_rows(found.collect()) == plainly(PROPOSALS, closed=closed)


def in_buckets(root: Path) -> str:
    """The table as ingest leaves it, sorted by DuckDB."""
    events = table(ROWS)
    sort = duckdb.connect()
    sort.register("events", events)
    for bucket in range(3):
        query = (
            "select * from events where hash(coalesce(user, ''), coalesce(client_id, ip)) % 3 = ?"
            " order by user, client_id, time_us, sequence"
        )
        part = sort.sql(query, params=[bucket]).to_arrow_table().cast(events.schema)
        folder = root / "hour=2023-11-14-22" / f"bucket={bucket:02}"
        folder.mkdir(parents=True)
        pq.write_table(part, folder / "part.parquet", row_group_size=100)
    return str(root)


def test_buckets_without_shared_quotas_are_replayed_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = in_buckets(tmp_path)
    events = read_activity(spark, path)
    assert job.buckets_alone(events, path, PROPOSALS) == []
    buckets = job.buckets_alone(events, path, [ALONE])
    assert buckets == buckets_of(path) != []
    found = job.whatif_of_buckets(spark, buckets, [ALONE], Counting())
    assert sorted_rows(found.collect()) == plainly([ALONE])
    assert sorted_rows(job.whatif(events, [ALONE], Counting()).collect()) == plainly([ALONE])


def test_decisions_match_the_broker(activity: DataFrame) -> None:
    rows = job.decisions(activity, PROPOSALS[:1], Counting(), partitions=3).collect()
    wanted = oracle.open_loop(EVENTS, PROPOSALS[0], Counting())
    assert {row.sequence: row.throttle_ms for row in rows} == {
        sequence: one.ms for sequence, one in wanted.items()
    }


def test_counting_starts_when_counter_windows_are_filled(activity: DataFrame) -> None:
    first = {b: min(e.clock_ms for e in EVENTS if e.broker == b) for b in (0, 1)}
    first[0] = min(first[0], 1_000_000)
    assert job.counted_from(activity, Counting()) == {b: ms + 12_000 for b, ms in first.items()}


def test_only_needed_columns_are_read() -> None:
    assert "checked_ns" not in job.fields_wanted([ALONE])
    assert "request_bytes" in job.fields_wanted([ALONE])
    assert {"ip", "connection"} <= set(job.fields_wanted([Proposal("p", ip_default=1.0)]))
    defaults = Proposal("p", QuotaTable(defaults={QuotaType.FETCH: 1.0}))
    assert "response_bytes" in job.fields_wanted([defaults])


def test_senders_sharing_quota_must_be_in_one_bucket() -> None:
    of_user = Proposal("p", QuotaTable({QuotaType.PRODUCE: {Entity("u"): 1.0}}, 2))
    assert job.in_one_bucket([of_user], [("u", "a", 1), ("u", "b", 1), ("v", "a", 2)])
    assert not job.in_one_bucket([of_user], [("u", "a", 1), ("u", "b", 2)])
    assert job.shares_alone([ALONE])
    assert not job.shares_alone([ALONE, of_user])


def test_batches_are_cut_at_component_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "FEED_ROWS", 3)
    keys = [(1, 1), (1, 1), (1, 2), (1, 2), (1, 2), (1, 3), (2, 3)]
    batches = pa.table(
        {"broker": [key[0] for key in keys], "component": [key[1] for key in keys]}
    ).to_batches(max_chunksize=1)
    assert [len(part) for part in job._cut(batches, whole=True)] == [2, 3, 2]
    assert [len(part) for part in job._cut(batches, whole=False)] == [3, 3, 1]


def test_component_exceeding_memory_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "FEED_ROWS", 3)
    monkeypatch.setattr(job, "TOGETHER_MAX", 5)
    batches = pa.table({"broker": [1] * 7, "component": [1] * 7}).to_batches(max_chunksize=1)
    with pytest.raises(BadInput, match=r"more than 5 events .* replay fewer hours"):
        list(job._cut(batches, whole=True))
    assert [len(part) for part in job._cut(batches, whole=False)] == [3, 3, 1]


def test_every_request_has_its_decision_once() -> None:
    chance = random.Random(5)
    proposal, events = random_workload.proposal(chance), random_workload.events(chance, 400)
    run = Replay([proposal], Counting(), answers=True)
    run.feed(requests_table(events))
    rows = {row["sequence"]: row for batch in decision_batches(run) for row in batch.to_pylist()}
    assert list(decision_batches(run)) == []
    wanted = oracle.open_loop(events, proposal, Counting())
    for event in events:
        row, (ms, kind) = rows[event.sequence], wanted[event.sequence]
        assert (row["broker"], row["throttle_ms"], row["recorded_ms"]) == (event.broker, ms, 0)
        by_type = {key: row[f"{key}_ms"] for key in CLIENT_QUOTA_KEYS}
        if ms:
            assert CLIENT_QUOTA_KEYS[row["quota_type"]] is kind
            assert by_type[row["quota_type"]] == ms
        if not event.unthrottled:
            assert max(by_type.values(), default=0, key=lambda each: each or 0) in (ms, None, 0)

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker.pipeline.layout import BUCKETS, bucket_of, folder_of, place_of
from tests.pipeline.random_events import START_US

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

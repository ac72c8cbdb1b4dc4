from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from minibroker.pipeline.spark_amounts import sent_bytes
from tests.pipeline.sample_events import connection, fetched, frame, produced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_only_a_throttled_fetch_of_a_client_is_not_sent(spark: SparkSession) -> None:
    events = [
        fetched(1, "u", "c", 104),
        fetched(2, "u", "c", 104, throttle_ms=20),
        fetched(3, "u", "c", 104, throttle_ms=20, exempt=True),
        produced(4, "u", "c", 10, response_bytes=50, throttle_ms=20),
        connection(5, "10.0.0.1"),
    ]
    rows = frame(spark, events).orderBy("time_us").select(sent_bytes().alias("sent")).collect()
    assert [row.sent for row in rows] == [100, 0, 100, 50, None]


def test_missing_api_key_is_no_fetch(spark: SparkSession) -> None:
    event = fetched(1, "u", "c", 104, api_key=None, throttle_ms=20)
    (row,) = frame(spark, [event]).select(sent_bytes().alias("sent")).collect()
    assert row.sent == pytest.approx(100)

"""The page about a fleet contains what follows from the measurements."""

from __future__ import annotations

from system_tests.benchmarks.pipeline import fleet
from system_tests.benchmarks.pipeline.fleet import Fleet, Measured


def test_fleet_page_tables_match_computed_values() -> None:
    page = fleet.PAGE.read_text()
    assert fleet.with_tables(page) == page, (
        "run python -m system_tests.benchmarks.pipeline.fleet --write"
    )


def test_cores_and_bytes_follow_from_rates() -> None:
    measured = Measured(topic_bytes=100, table_bytes=50, ingest=1e6, usage=2e6, replay=4e6)
    (*_, events, topics, table, ingest, usage, replay) = fleet.row(Fleet(100, 1_000_000), measured)
    assert events == "100 M/s"
    assert (topics, table) == ("864 TB", "432 TB")
    assert (ingest, usage, replay) == ("100", "50", "25")


def test_sample_is_its_share_of_everything() -> None:
    measured = Measured(recorder_us=15, topic_bytes=110)
    whole, tenth = (
        dict(fleet.consequences(Fleet(10, 100_000, share), measured)) for share in (1.0, 0.1)
    )
    assert whole["recording, at each broker"] == "1.5 cores"
    assert tenth["recording, at each broker"] == "0.15 cores"
    assert whole["read from brokers"] == "110 MB/s"
    assert tenth["read from brokers"] == "11 MB/s"

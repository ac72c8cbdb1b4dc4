from __future__ import annotations

import json
import queue
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from minibroker.lab.activity.events import VERSION
from minibroker.pipeline.activity_table import ACTIVITY
from minibroker.pipeline.report.aggregate import in_force
from minibroker.pipeline.session import Files
from minibroker.pipeline.watch import stream as module
from minibroker.pipeline.watch.rules import (
    Alert,
    Checked,
    ClientUsage,
    Rule,
    Rules,
    State,
    WatchInterval,
    WatchLimits,
)
from minibroker.pipeline.watch.stream import (
    SkippedRecords,
    StateFiles,
    by_interval,
    events_of,
    has_saved_state,
    intervals,
    watch,
)
from tests.pipeline.report.sample_events import (
    START_US,
    Events,
    check,
    connection,
    dropped,
    request,
    table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Intervals ---------------------------------------------------------------------------------------

START_S = START_US // 1_000_000


def quota_check(
    rate: float, bound: float | None, throttled_ms: int = 0, user: str = "alice"
) -> Any:
    return check(rate=rate, bound=bound, throttle_ms=throttled_ms, user=user)


def seen(spark: SparkSession, found: Events) -> list[WatchInterval]:
    return intervals(by_interval(table(spark, found), 10, 10), WatchLimits(over=0.8))


@pytest.mark.parametrize("aggregated", [lambda events: by_interval(events, 10, 0), in_force])
def test_events_are_taken_apart_by_compiled_code(
    spark: SparkSession, aggregated: Callable[[DataFrame], DataFrame]
) -> None:
    """Spark interprets functions of arrays, and derives their type again for each row."""
    plan: Any = aggregated(table(spark, [request(0)]))._jdf.queryExecution().optimizedPlan()
    assert "lambda" not in plan.toString()


def test_interval_sums_its_events(spark: SparkSession) -> None:
    found = seen(
        spark,
        [
            request(0, queue_ns=500, produce=quota_check(900.0, 1000.0)),
            request(1, produce=quota_check(1500.0, 1000.0, 120), request=quota_check(1.0, 25.0)),
            request(2, produce=quota_check(700.0, 2000.0, 5)),
            request(3, user="bob", client_id=None, mutation=quota_check(-3.0, 5.0, 40, "bob")),
            request(4, user="bob", produce=quota_check(99.0, None, user="bob")),
            connection(5, "accepted"),
            dropped(6, 4), dropped(7, 5),
            request(10_000, user="carol"),
        ],
    )  # fmt: skip
    assert [each.start_s for each in found] == [START_S, START_S + 10]
    first, second = found
    assert first.checked == [
        # The bound is the last one, the rate and the hold the largest.
        Checked(1, "alice", "", "producer_byte_rate", 1500.0, 2000.0, 2, 120),
        Checked(1, "bob", "", "controller_mutation_rate", None, 5.0, 1, 40),
    ]
    assert first.parties == [
        ClientUsage(1, "alice", "etl", 3, 9000, 330, 9500),
        ClientUsage(1, "bob", "", 1, 3000, 110, 3000),
        ClientUsage(1, "bob", "etl", 1, 3000, 110, 3000),
    ]
    assert first.totals == {1: ClientUsage(1, "", "", 5, 15_000, 550, 15_500)}
    assert first.dropped == {1: 9}
    assert (second.checked, second.dropped) == ([], {})


def test_interval_with_many_entities_is_bounded(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKED_MAX", 5)
    monkeypatch.setattr(module, "NEIGHBOURS_MAX", 3)
    crowd = [
        request(n, broker=n % 2, user=f"u{n}", io_ns=1000 * n, request_bytes=10_000 - n,
                produce=quota_check(900.0 + n, 1000.0, user=f"u{n}"))
        for n in range(40)
    ]  # fmt: skip
    (found,) = seen(spark, crowd)
    assert sorted(each.user for each in found.checked) == [f"u{n}" for n in range(35, 40)]
    by_broker = [each.user for each in found.parties if each.broker == 0]
    assert sorted(by_broker) == ["u0", "u2", "u34", "u36", "u38", "u4"]
    assert {broker: total.requests for broker, total in found.totals.items()} == {0: 20, 1: 20}


# The query ---------------------------------------------------------------------------------------

EVERY_S, EVERY = 10, 10_000
LIMITS = WatchLimits(over=0.8, intervals=2)


class Place:
    """A folder in which events arrive, and a watch of it that can be started again."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.begin_anew("first")

    def begin_anew(self, topic_id: str) -> None:
        """As a broker does that has another topic of the name."""
        self.topic_id, self._events = topic_id, self.folder / topic_id
        self._events.mkdir()

    def arrive(self, *intervals: int, throttled_ms: int = 50) -> None:
        """An event of each of these intervals."""
        throttle_check = check(rate=500.0, bound=1000.0, throttle_ms=throttled_ms)
        events = [request(n * EVERY, produce=throttle_check) for n in intervals]
        table(self.spark, events).coalesce(1).write.mode("append").parquet(str(self._events))

    def look(self, on_alerts: Any) -> None:
        """Look at all that has arrived, from where the last look ended."""
        events = self.spark.readStream.schema(ACTIVITY).parquet(str(self._events))
        query = watch(
            events, Rules(EVERY_S, LIMITS), on_alerts,
            checkpoint=str(self.folder / "checkpoint"), topic_id=self.topic_id, late_s=0,
        )  # fmt: skip
        try:
            query.processAllAvailable()
        finally:
            query.stop()


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_alert_is_sent_once_and_again_only_if_sending_failed(place: Place) -> None:
    sent: list[Alert] = []
    place.arrive(0, 1)
    place.look(sent.extend)
    assert sent == []  # the second interval may still grow

    def killed(_: Any) -> None:
        raise OSError("gone")

    place.arrive(2)
    with pytest.raises(StreamingQueryException, match="gone"):
        place.look(killed)
    place.look(sent.extend)
    assert [(each.subject.rule, each.state) for each in sent] == [(Rule.THROTTLED, State.RAISED)]
    assert sent[0].intervals == 2
    place.arrive(3, throttled_ms=0)
    place.arrive(4, 5, 6, throttled_ms=0)
    place.look(sent.extend)
    assert [each.state for each in sent] == [State.RAISED, State.CLEARED]


def test_recreated_topic_is_ingested_from_its_start(place: Place) -> None:
    """Alerts that were raised before are cleared."""
    sent: list[Alert] = []
    place.arrive(0, 1, 2, 3)
    place.look(sent.extend)
    place.begin_anew("second")
    place.arrive(4, 5, 6, throttled_ms=0)
    place.look(sent.extend)
    assert [each.state for each in sent] == [State.RAISED, State.CLEARED]


def test_watch_with_checkpoint_resumes(place: Place) -> None:
    checkpoint = str(place.folder / "checkpoint")
    assert not has_saved_state(place.spark, checkpoint)
    place.arrive(0, 1, 2)
    place.look([].extend)
    assert has_saved_state(place.spark, checkpoint)


def test_watch_killed_in_first_step_starts_over(place: Place) -> None:
    left = place.folder / "checkpoint" / "topic-first" / "offsets" / ".0.a-temporary-name.tmp"
    left.parent.mkdir(parents=True)
    left.write_text("half")
    sent: list[Alert] = []
    place.arrive(0, 1, 2)
    place.look(sent.extend)
    assert [each.state for each in sent] == [State.RAISED]


def test_non_event_records_are_skipped_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    known = {
        "version": VERSION, "kind": "dropped", "broker": 1, "started_us": 0, "sequence": 2,
        "time_us": 3, "clock_ms": 4, "dropped": 5,
    }  # fmt: skip
    lines = [
        json.dumps(known), "no JSON", json.dumps(known | {"version": VERSION + 1}), "[]", "{}",
        json.dumps(known | {"time_us": None}), json.dumps(known | {"broker": "one"}),
    ]  # fmt: skip
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "some.txt").write_text("\n".join(lines))
    sent: queue.Queue[tuple[int, int]] = queue.Queue()
    listener = SkippedRecords(lambda count, total: sent.put((count, total)))
    spark.streams.addListener(listener)
    seen: list[int] = []
    try:
        records = spark.readStream.text(str(tmp_path / "records"))
        query = (
            events_of(records)
            .writeStream.foreachBatch(lambda rows, _: seen.append(rows.count()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        query.processAllAvailable()
        assert sent.get() == (6, 6)
        query.stop()
    finally:
        spark.streams.removeListener(listener)
    assert seen == [1]


def test_memory_keeps_only_last_state(spark: SparkSession, tmp_path: Path) -> None:
    state_files = StateFiles(Files(spark, str(tmp_path)))
    assert state_files.read() is None
    for last_s in (9, 10, 10):
        state_files.write({"last_s": last_s, "text": "ü"})
    assert state_files.read() == {"last_s": 10, "text": "ü"}
    assert [each.name for each in (tmp_path / "rules").glob("*.json")] == ["000000000010.json"]

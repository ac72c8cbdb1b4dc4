"""Compares the decisions of a replay with recorded ones, including those of a simulated broker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from trio.testing import MockClock

from minibroker.broker.quotas.types import (
    CLIENT_QUOTA_KEYS,
    CLIENT_QUOTA_TYPES,
    Entity,
    QuotaTable,
    QuotaType,
)
from minibroker.pipeline.decoding import OBJECT_SCHEMA
from minibroker.pipeline.whatif import job
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from minibroker.pipeline.whatif.replay import Replay
from minibroker.pipeline.whatif.replay_accuracy import (
    Comparison,
    LeftOut,
    ReplayAccuracy,
    accuracy_lines,
    compare_connections,
    compare_decisions,
    summary,
)
from minibroker.pipeline.whatif.rows import OUTCOME
from tests.pipeline.whatif import oracle, random_workload
from tests.pipeline.whatif.activity import request_row, table
from tests.pipeline.whatif.oracle import Event
from tests.pipeline.whatif.recorded_connections import IP, RecordedConnections
from tests.simulation.test_activity import events, load
from tests.simulation.test_quotas import CONSUMER, PRODUCER, TIME, Open, serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.usefixtures("compiled_replay")

__all__ = ["serve"]

TABLE = QuotaTable({QuotaType.PRODUCE: {Entity(client="c"): 100.0}}, 1)
PROPOSAL = Proposal("p", TABLE)


def compare(
    seen: pa.Table,
    proposal: Proposal = PROPOSAL,
    counting: Counting | None = None,
    dropped: dict[int, Sequence[int]] | None = None,
) -> list[dict[str, Any]]:
    counting = counting or Counting()
    run = Replay([proposal], counting, answers=True)
    run.feed(seen)
    run.settle()
    rows: list[dict[str, Any]] = compare_decisions(run, seen, counting, dropped or {}).to_pylist()
    return rows


QUOTAS = {
    "c0": {PRODUCER: 500.0},
    "c1": {CONSUMER: 300.0},
    "c2": {TIME: 0.01},
    "c3": {PRODUCER: 1000.0, CONSUMER: 1000.0, TIME: 0.02},
}


@pytest.mark.parametrize("mode", ["mute", "delay"])
async def test_replay_of_recorded_activity_matches_broker_decisions(
    serve: Open, autojump_clock: MockClock, tmp_path: Path, mode: str
) -> None:
    async with serve("activity.enable=true", f"quota.throttle.mode={mode}") as it:
        await it.create("t")
        for client, quotas in QUOTAS.items():
            await it.set({"client-id": client}, **quotas)
        await load(it, 1, clients=4 if mode == "delay" else 8)
    recorded = [each for each in events(tmp_path) if each.get("client_id", "").startswith("c")]
    bounds: dict[QuotaType, dict[Entity, float]] = {kind: {} for kind in CLIENT_QUOTA_TYPES}
    for client, quotas in QUOTAS.items():
        for key, bound in quotas.items():
            bounds[CLIENT_QUOTA_KEYS[key]][Entity(client=client)] = bound
    proposal = Proposal("p", QuotaTable(bounds, 1))
    seen = pa.Table.from_pylist(recorded, schema=OBJECT_SCHEMA)
    rows = compare(seen, proposal, Counting(delays=mode == "delay"))
    assert [row for row in rows[1:] if row["why"] != Comparison.ORDER] == []
    assert rows[0]["decisions"] + len(rows) - 1 == len(recorded) > 100
    assert rows[0]["throttles"] > 30
    assert len(rows) < (3 if mode == "delay" else 2)


def recorded(*sizes: int, step_ms: int = 10) -> list[Event]:
    """Produce requests in order of time, with the throttle times that the broker would decide."""
    made = [
        Event(n, 50_000 + step_ms * n, what="produce", size=size) for n, size in enumerate(sizes)
    ]
    decided = oracle.open_loop(made, PROPOSAL, Counting())
    return [replace(event, throttle_ms=decided[event.sequence].ms) for event in made]


def rows_of(made: Sequence[Event], bound: float | None = 100.0) -> list[dict[str, Any]]:
    check = {"user": "", "client_id": "c", "rate": 1.0, "bound": bound, "throttle_ms": 0}
    return [request_row(each) | {"produce": {**check, "clock_ms": 1}} for each in made]


def whys(rows: list[dict[str, Any]]) -> list[str]:
    return [row["why"] for row in rows[1:]]


def test_equal_decisions_are_counted() -> None:
    (row,) = compare(table(rows_of(recorded(500, 900, 100, 0))))
    assert (row["why"], row["decisions"], row["throttles"]) == (Comparison.EQUAL, 4, 3)


def test_differing_decision_reports_reason() -> None:
    made = recorded(500, 900, 100)
    without = table(rows_of(made)[1:])
    found = compare(without)
    assert whys(found) == [Comparison.UNKNOWN] * 2
    assert (found[2]["broker"], found[2]["sequence"]) == (0, 2)
    assert found[2]["recorded_ms"] == made[2].throttle_ms > found[2]["replayed_ms"] == 0
    assert whys(compare(without, dropped={0: [50_005]})) == [Comparison.DROPPED] * 2
    late = Counting(counted_from_ms={0: 60_000})
    assert whys(compare(without, counting=late)) == [Comparison.BEFORE] * 2
    assert whys(compare(table(rows_of(made[1:], 90.0)))) == [Comparison.QUOTA] * 2
    assert whys(compare(table(rows_of(made[1:], None)))) == [Comparison.QUOTA] * 2


def test_unknown_order_within_millisecond_is_reported_as_reason() -> None:
    made = recorded(500, 900, 100, step_ms=0)
    turned = [replace(made[0], sequence=2), made[1], replace(made[2], sequence=0)]
    rows = rows_of(turned)
    later = rows_of([Event(9, 50_500, what="produce", size=300)])
    found = whys(compare(table([*rows, *later])))
    assert set(found) == {Comparison.ORDER, Comparison.AFTER}
    for ordinal, row in enumerate([*rows, *later]):
        row["ordinal"] = ordinal
    throttled = later[0] | {"throttle_ms": oracle.open_loop(
        [*made, Event(9, 50_500, what="produce", size=300)], PROPOSAL, Counting()
    )[9].ms}  # fmt: skip
    assert whys(compare(table([*rows, throttled]))) == []
    throttled["throttle_ms"] += 5
    assert whys(compare(table([*rows, throttled]))) == [Comparison.UNKNOWN]


def test_partly_rejected_mutation_reports_topics_as_reason() -> None:
    made = Event(0, 1, what="mutate", permits=50, strict=True, throttle_ms=77)
    bounds = {QuotaType.CONTROLLER_MUTATION: {Entity(client="c"): 1.0}}
    row = request_row(made) | {"mutations_refused": 3}
    assert whys(compare(table([row]), Proposal("p", QuotaTable(bounds, 1)))) == [Comparison.TOPICS]


def test_job_adds_up_comparisons_of_all_tasks(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from minibroker.pipeline.activity_table import ACTIVITY

    chance = random.Random(2)
    proposal, made = random_workload.proposal(chance), random_workload.events(chance, 400)
    decided = oracle.open_loop(made, proposal, Counting())
    throttled = [replace(event, throttle_ms=decided[event.sequence].ms) for event in made]
    rows = [request_row(each) for each in throttled]
    rows[7]["throttle_ms"] += 12_345
    rows[8] |= {"kind": "dropped", "dropped": 3, "broker": rows[7]["broker"]}
    pq.write_table(table(rows), tmp_path / "events.parquet")
    frame = spark.read.schema(ACTIVITY).parquet(str(tmp_path / "events.parquet"))
    found = job.replay_accuracy(frame, proposal, Counting())
    assert found.decisions == 399
    assert found.differing[Comparison.DROPPED] >= 1
    assert any(sequence == 7 for _, sequence, _, _, _ in found.examples)
    throttles = sum(one.ms > 0 for n, one in decided.items() if n not in (7, 8))
    assert found.equal >= throttles - sum(found.differing.values())


def test_accuracy_lines_show_share_and_examples() -> None:
    accuracy = ReplayAccuracy(10, 4, 3, {Comparison.ORDER: 1}, [(1, 5, 100, 90, Comparison.ORDER)])
    text = "\n".join(accuracy_lines(accuracy))
    assert "10 decisions compared: 3 of 4 throttles equal to the millisecond (75.000%)" in text
    assert "broker 1, sequence 5: 100 ms recorded, 90 ms replayed" in text
    assert ReplayAccuracy(5, 0, 0, {}, []).share == 1.0


OF_ADDRESS = Proposal("p", ips={IP: 10.0})


def recorded_connections() -> RecordedConnections:
    chance = random.Random(1)
    broker = RecordedConnections(10.0, lambda: chance.choice([0, 1, 2]), 1)
    broker.run(60, 50)
    return broker


def compare_address(
    rows: list[dict[str, Any]],
    proposal: Proposal = OF_ADDRESS,
    counting: Counting | None = None,
    dropped: dict[int, Sequence[int]] | None = None,
) -> dict[str, tuple[int, int]]:
    """The number of decisions and of throttles, by reason."""
    counting = counting or Counting()
    run = Replay([proposal], counting, answers=True)
    run.feed(table(rows))
    run.end()
    found = compare_connections(run, counting, dropped or {}).to_pylist()
    return {
        why: tuple(sum(row[name] for row in found if row["why"] == why)
                   for name in ("decisions", "throttles"))
        for why in {row["why"] for row in found}
    }  # fmt: skip


def test_decisions_on_connections_are_compared() -> None:
    broker = recorded_connections()
    delays, arrivals = len(broker.delays), broker.rows[-1]["connection"] + 1
    rechecks = sum(row["happened"] in {"admitted", "refused"} for row in broker.rows)
    assert delays > 100
    found = compare_address(broker.rows)
    unfinished = delays - rechecks
    assert found.pop(LeftOut.UNFINISHED, (0, 0))[0] == unfinished
    assert found == {Comparison.EQUAL: (arrivals + rechecks, delays + rechecks)}


def test_differing_decision_on_connection_reports_reason() -> None:
    rows = recorded_connections().rows
    (at, *_) = [n for n, row in enumerate(rows) if row["happened"] == "held"]
    rows[at] = rows[at] | {"delay_ms": rows[at]["delay_ms"] + 7}
    assert compare_address(rows)[Comparison.UNKNOWN][0] >= 1
    assert Comparison.UNKNOWN not in compare_address(rows, dropped={0: [rows[0]["clock_ms"]]})
    unlimited = compare_address(rows, Proposal("p"))
    assert unlimited[Comparison.QUOTA][0] == sum(row["happened"] == "held" for row in rows)


def test_comparison_leaves_out_repeated_decisions() -> None:
    rows = recorded_connections().rows
    found = compare_address(rows, counting=Counting(counted_from_ms={0: 10**9}))
    assert found[LeftOut.BEFORE][0] > 700
    assert found[Comparison.EQUAL] == (0, 0)


def test_comparison_of_sample_leaves_connections_out() -> None:
    rows = [row | {"sample": 0.5} for row in recorded_connections().rows]
    found = compare_address(rows)
    assert found[LeftOut.SAMPLED][0] > 700
    assert found[Comparison.EQUAL] == (0, 0)


def test_job_compares_connections_and_reports_what_it_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    from minibroker.pipeline.activity_table import ACTIVITY

    rows = recorded_connections().rows
    rejected = [
        rows[0] | {"connection": 9**9, "sequence": 9**9},
        rows[0] | {"connection": 9**9, "sequence": 9**9 + 1, "happened": "refused",
                   "reason": "kafka_connections_max"},
    ]  # fmt: skip
    pq.write_table(table([*rows, *rejected]), tmp_path / "events.parquet")
    frame = spark.read.schema(ACTIVITY).parquet(str(tmp_path / "events.parquet"))
    found = job.replay_accuracy(frame, OF_ADDRESS, Counting())
    assert found.connections is not None
    assert found.connections.throttles == found.connections.equal > 200
    lines = list(accuracy_lines(found))
    assert lines[0] == "0 decisions compared: no throttle among them"
    assert "delays and rechecks equal to the millisecond (100.000%)" in lines[1]
    assert "           1  rejections before the rate of the address was checked" in lines


US = 1_700_000_000_000_000


def row(proposal: str, user: str, throttle_ms: int, loop: str = "open", **more: Any) -> list[Any]:
    values = {
        "proposal": proposal, "loop": loop, "broker": 1, "user": user, "client_id": "app",
        "quota_type": "producer_byte_rate", "bound": 1024.0, "requests": 100,
        "throttled": min(throttle_ms, 7), "throttle_ms": throttle_ms,
        "throttle_ms_max": throttle_ms,
        "first_us": US if throttle_ms else None, "last_us": US if throttle_ms else None, **more,
    }  # fmt: skip
    return [values.get(name) for name in OUTCOME.names]


def test_summary_reports_and_compares_every_proposal(spark: SparkSession) -> None:
    rows = [
        row("tight", "alice", 60_000), row("tight", "alice", 60_000, broker=2),
        row("tight", "bob", 0), row("wide", "alice", 0),
        row("tight", "alice", 30_000, "closed", late_ms=90_000, given_up=3),
    ]  # fmt: skip
    outcome = spark.createDataFrame([tuple(one) for one in rows], from_arrow_schema(OUTCOME))
    lines = list(summary(outcome, ["tight", "wide", "none"], ["open", "closed"]))
    text = "\n".join(lines)
    assert "tight: throttles 1 of the 2 senders that it limits, 14 times, 2 min in total" in text
    assert "tight, closed loop: throttles 1 of the 1 sender that it limits, 7 times, 30 s" in text
    assert "its last request ends 1 min 30 s later" in text
    assert "3 requests or connections would never have been served" in text
    assert "wide: throttles none of the 1 sender that it limits" in text
    assert "none: limits none of the recorded senders" in text
    (compared,) = [line for line in lines[-2:] if "alice / app" in line]
    assert "2 min" in compared
    assert "30 s" in compared

"""A replay makes the broker's decisions, and its prediction is what the broker then does.

First real clients under quotas of every type: the broker's activity, replayed under the quotas that
were in force, must result in the throttles that the broker decided, to the millisecond. Then work
without quotas, a replay of it under some, and the same work under those in fact.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.settings import Settings
from minibroker.lab.activity.events import ActivityKind, ConnectionStep
from system_tests.pipeline import fixed_workload, recorded_broker
from system_tests.pipeline.recorded_broker import FAST_IP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.minibroker, pytest.mark.java, pytest.mark.slow]

WORKS_S: Final = 15.0
EQUAL_MIN: Final = 0.999
CHECKS: Final = {
    "produce": "producer_byte_rate_ms",
    "fetch": "consumer_byte_rate_ms",
    "request": "request_percentage_ms",
    "mutation": "controller_mutation_rate_ms",
}

WORKED_PERCENT: Final = 2.0
OTHER_QUOTAS: Final = """
--alter --entity-type clients --entity-name producer --add-config producer_byte_rate=150000
--alter --entity-type clients --entity-name consumer --add-config consumer_byte_rate=150000
--alter --entity-type clients --entity-name metadata --add-config request_percentage={}
"""
OFF_MAX: Final = 0.25
"""Accepted error of the time that work takes under quotas; mostly it is 0.1 to 3 %, and 10 % on
a busy machine. Throttles of request time are as far off as the broker's work in the second run
was from that in the first, up to half on a busy machine; with that removed, this limit applies
as well.
"""


def events_of(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    """The events that a broker left in its data directory, taken into a table, in their order."""
    from minibroker.pipeline.activity_table import read_activity
    from minibroker.pipeline.ingest import ingest_directory
    from minibroker.pipeline.table import Table

    path = str(folder / "activity")
    counts = ingest_directory(Table(spark, path), str(folder / "data"), lambda _: None)
    assert counts.malformed == 0
    events: list[dict[str, Any]] = read_activity(spark, path).toArrow().to_pylist()
    assert len(events) == counts.events
    assert all(event["kind"] != ActivityKind.DROPPED for event in events)
    return sorted(events, key=lambda event: event["sequence"])


class Differs(NamedTuple):
    """A decision of a quota that the replay took otherwise."""

    check: str
    event: dict[str, Any]
    replayed_ms: int | None


def compared(
    events: list[dict[str, Any]], decisions: dict[int, dict[str, Any]]
) -> tuple[int, list[Differs]]:
    """Return how many decisions of quotas are the same, and the different ones."""
    same, differ = 0, []
    for event in events:
        for check, column in CHECKS.items():
            looked = event[check]
            if looked is None or looked["bound"] is None:
                continue
            replayed_ms = decisions[event["sequence"]][column]
            if replayed_ms == looked["throttle_ms"]:
                same += 1
            else:
                differ.append(Differs(check, event, replayed_ms))
    return same, differ


def held_as_asked(event: dict[str, Any]) -> bool:
    """Whether a client was throttled for the longest time that its quotas required; for a
    mutation quota, the time since the record has already passed at the response.
    """
    throttles = {check: event[check]["throttle_ms"] for check in CHECKS if event[check] is not None}
    changes = throttles.pop("mutation", 0)
    others, throttle_ms = max(throttles.values(), default=0), event["throttle_ms"]
    if not changes:
        return bool(throttle_ms == others)
    passed = event["clock_ms"] - event["mutation"]["clock_ms"]
    return bool(max(others, changes - passed) <= throttle_ms <= max(others, changes))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of clients of all kinds that worked under quotas of all types."""
    folder = tmp_path_factory.mktemp("truth")
    quotas = folder / "in-force.quotas"
    quotas.write_text(recorded_broker.QUOTAS)
    with recorded_broker.recording(folder) as broker:
        recorded_broker.apply(broker, quotas)
        recorded_broker.run_all_clients(broker, WORKS_S)
    return folder


def test_replay_under_current_quotas_matches_broker_decisions(
    spark: SparkSession, ran: Path
) -> None:
    from minibroker.pipeline.activity_table import read_activity
    from minibroker.pipeline.whatif import job
    from minibroker.pipeline.whatif.proposal import counting_of, proposals_of

    events = events_of(spark, ran)
    settings = Settings.from_sources()
    proposals = proposals_of([str(ran / "in-force.quotas")], settings)
    counting = counting_of(settings)
    activity = read_activity(spark, str(ran / "activity"))
    decided = job.decisions(activity, proposals, counting).toArrow().to_pylist()
    same, differ = compared(events, {row["sequence"]: row for row in decided})
    print(f"{same:,} decisions equal, {len(differ)} differ")  # pytest -s shows it
    assert same >= EQUAL_MIN * (same + len(differ)), differ[:10]
    assert not differ, differ[:10]
    assert [event for event in events if event["throttle_ms"] and not held_as_asked(event)] == []
    held_by = dict.fromkeys(CHECKS, 0)
    for event in events:
        for check in CHECKS:
            held_by[check] += bool(event[check] and event[check]["throttle_ms"])
    assert all(held_by.values()), f"a quota type throttled no client: {held_by}"

    rows = job.whatif(activity, proposals, counting).where("ip is not null").toArrow().to_pylist()
    (of_ip,) = [row for row in rows if row["ip"] == FAST_IP and row["start_us"] is None]
    of_event = [event for event in events if event["ip"] == FAST_IP and event["delay_ms"]]
    assert {event["happened"] for event in of_event} == {ConnectionStep.HELD}
    assert of_ip["throttled"] == len(of_event) > 0
    assert of_ip["throttle_ms"] == sum(event["delay_ms"] for event in of_event)
    rejected = [event for event in events if event["reason"] == CloseReason.IP_RATE]
    assert of_ip["given_up"] == len(rejected) > 0

    connections = job.replay_accuracy(activity, proposals[0], counting).connections
    assert connections is not None
    assert connections.equal == connections.throttles > len(of_event), connections.examples


class WorkSummary(NamedTuple):
    """How a client's work went, by the requests that it was about."""

    lasted_ms: int
    throttled_ms: int
    worked_ns: int
    """By the broker, for it."""


def work_summaries(events: list[dict[str, Any]]) -> Iterator[tuple[str, WorkSummary]]:
    for job in fixed_workload.JOBS:
        mine = [event for event in events if event["client_id"] == job.client_id]
        lasted_ms = mine[-1]["late_clock_ms"] - mine[0]["clock_ms"]
        throttled_ms = sum(event["throttle_ms"] for event in mine)
        worked_ns = sum(event["checked_ns"] + event["late_ns"] for event in mine)
        yield job.client_id, WorkSummary(lasted_ms, throttled_ms, worked_ns)


def predicted(spark: SparkSession, table: Path, quotas: Path) -> dict[str, dict[str, Any]]:
    """Return the prediction for each client under other quotas."""
    from minibroker.pipeline.activity_table import read_activity
    from minibroker.pipeline.whatif import job
    from minibroker.pipeline.whatif.proposal import counting_of, proposals_of

    settings = Settings.from_sources()
    rows = job.whatif(
        read_activity(spark, str(table)),
        proposals_of([str(quotas)], settings),
        counting_of(settings),
        closed=True,
    )
    return {row["client_id"]: row for row in rows.toArrow().to_pylist() if row["start_us"] is None}


def test_whatif_prediction_matches_run_under_quotas(spark: SparkSession, tmp_path: Path) -> None:
    quotas = tmp_path / "other.quotas"
    quotas.write_text(OTHER_QUOTAS.format(WORKED_PERCENT))
    found = []
    for name in ("without", "under"):
        (tmp_path / name).mkdir()
        with recorded_broker.recording(tmp_path / name) as broker:
            if name == "under":
                recorded_broker.apply(broker, quotas)
            fixed_workload.run_jobs(broker)
        found.append(dict(work_summaries(events_of(spark, tmp_path / name))))
    without, under = found
    # The same if the requests of the first run had taken as long as those of the second.
    more_work = under["metadata"].worked_ns / without["metadata"].worked_ns
    as_worked = tmp_path / "as-worked.quotas"
    as_worked.write_text(OTHER_QUOTAS.format(WORKED_PERCENT / more_work))

    table, off = tmp_path / "without" / "activity", {}
    for file in (quotas, as_worked):
        for client, row in predicted(spark, table, file).items():
            before, real = without[client], under[client]
            assert before.throttled_ms == 0
            assert real.lasted_ms > 1.5 * before.lasted_ms, (
                "the quotas did not slow the client down"
            )
            would_ms = before.lasted_ms + row["late_ms"]
            off[file, client] = would_ms / real.lasted_ms - 1
            print(  # pytest -s shows it
                f"{file.name}, {client}: {before.lasted_ms:,} ms without quotas,"
                f" {would_ms:,} ms predicted,"
                f" {real.lasted_ms:,} ms in fact ({off[file, client]:+.1%}); throttled"
                f" {row['throttle_ms']:,} ms predicted, {real.throttled_ms:,} ms in fact"
            )
    print(f"the metadata client's requests took {more_work:.2f} times the time in the second run")
    judged = {key: each for key, each in off.items() if key != (quotas, "metadata")}
    assert len(judged) == 5
    assert max(map(abs, judged.values())) <= OFF_MAX, judged

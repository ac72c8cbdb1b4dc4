"""The report's targets and rows, without any measure."""

from __future__ import annotations

import json

from system_tests.benchmarks import report
from system_tests.benchmarks.peers import KAFKA, MINIBROKER, MOCK

RATE = report.row("rate", "/s", report.least_of(1.2), report.least_of(0.7, MOCK))
LATENCY = report.row("latency", "us", report.most_of(0.5))
MEMORY = report.row("memory", "MB", most=70)


def test_reached_with_all_targets_met_is_true() -> None:
    assert report.reached(RATE, {MINIBROKER: 12, KAFKA: 10, MOCK: 17}) is True
    assert report.reached(LATENCY, {MINIBROKER: 5, KAFKA: 10}) is True
    assert report.reached(MEMORY, {MINIBROKER: 70}) is True


def test_reached_with_one_target_missed_is_false() -> None:
    assert report.reached(RATE, {MINIBROKER: 12, KAFKA: 10, MOCK: 18}) is False
    assert report.reached(RATE, {MINIBROKER: 11, KAFKA: 10}) is False
    assert report.reached(LATENCY, {MINIBROKER: 6, KAFKA: 10}) is False
    assert report.reached(MEMORY, {MINIBROKER: 71}) is False


def test_reached_without_a_peer_or_a_target_is_unknown() -> None:
    assert report.reached(RATE, {MINIBROKER: 12, KAFKA: 10}) is None
    assert report.reached(LATENCY, {KAFKA: 10}) is None
    assert report.reached(report.row("explains", "us"), {MINIBROKER: 1}) is None


def test_summary_has_medians_ratio_and_targets() -> None:
    found = report.summary(RATE, {MINIBROKER: [9, 30, 12], KAFKA: [10], MOCK: []})
    assert found["peers"][MINIBROKER] == {"median": 12, "min": 9, "max": 30, "runs": [9, 30, 12]}
    assert found["ratio_to_kafka"] == 1.2
    assert found["target"] == ">= 1.2 x kafka, >= 0.7 x librdkafka mock"
    assert MOCK not in found["peers"]


def test_table_has_measured_rows_and_dashes_for_missing_peers() -> None:
    row = report.ROWS[0]
    table = report.table({row.name: {MINIBROKER: [1000.0]}}, [MINIBROKER, KAFKA])
    head, line = table.splitlines()
    assert head.split() == ["unit", MINIBROKER, KAFKA, "to", "Kafka", "target"]
    assert line.startswith(row.name)
    assert "1,000 (1,000-1,000)" in line
    assert " - " in line


def test_every_row_has_its_own_name() -> None:
    names = [row.name for row in report.ROWS]
    assert len(names) == len(set(names))


def test_json_has_every_run_of_measured_rows() -> None:
    row = report.ROWS[0]
    text = report.as_json(
        {row.name: {MINIBROKER: [2.0, 1.0]}}, versions={KAFKA: "4"}, about={"runs": 2}, notes=["n"]
    )
    [found] = json.loads(text)["rows"]
    assert found["peers"][MINIBROKER]["runs"] == [2.0, 1.0]

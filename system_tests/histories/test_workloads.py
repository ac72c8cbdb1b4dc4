"""Workloads of real clients leave valid histories, and a defect of the broker is found in them.

A defect is put into the history: the records that polls returned are changed to those that a broker
which loses, doubles or reorders one record would have returned to all consumers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minibroker.testing import check
from minibroker.testing.workload import WORKLOADS, run_workload
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker
from system_tests.histories.conftest import NAMES, command_of

PARTITIONS = 3
PROCESSES = 4
OPERATIONS = 30
SEED = 1

Line = dict[str, Any]
Record = tuple[str, int, int]
"""Key, offset and value of a record."""


def create_topic(broker: RunningBroker, topic: str) -> None:
    wanted = CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1)
    with Client(broker.address) as client:
        [created] = client.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 5).topics
    assert created.error_code == ErrorCode.NONE


def run(
    broker: RunningBroker, topic: str, workload: str, commands: list[list[str]], path: Path
) -> None:
    create_topic(broker, topic)
    run_workload(
        path,
        workload,
        bootstrap_servers=broker.bootstrap_servers,
        topic=topic,
        partitions=PARTITIONS,
        clients=commands,
        operations=OPERATIONS,
        seed=SEED,
    )


@pytest.mark.parametrize("workload", WORKLOADS)
def test_workload_of_a_client_is_valid(
    workload: str,
    broker: RunningBroker,
    client_command: list[str],
    fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.jsonl"
    run(broker, fresh("workload"), workload, [client_command] * PROCESSES, path)
    report = check(path)
    assert report.valid, report
    assert report.operations["ok"] > PROCESSES
    assert report.polled >= report.sent / 2 > 0


@pytest.mark.java
@pytest.mark.parametrize("workload", WORKLOADS)
def test_workload_of_all_clients_together_is_valid(
    workload: str, broker: RunningBroker, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path / "history.jsonl"
    run(broker, fresh("together"), workload, [command_of(name) for name in NAMES], path)
    report = check(path)
    assert report.valid, report
    assert len({name.split()[0] for name in report.settings.clients.values()}) == len(NAMES)


@pytest.fixture(scope="module")
def history(
    broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], list[Line]]:
    """The lines of one valid history of transactions."""
    path = tmp_path_factory.mktemp("histories") / "history.jsonl"
    run(broker, f"tampered-{path.parent.name}", "abort", [command_of("confluent-kafka")] * 4, path)
    text = path.read_text().splitlines()
    assert check(text).valid
    return lambda: [json.loads(line) for line in text]


def polls(lines: list[Line]) -> list[dict[str, list[list[int]]]]:
    return [
        step["poll"]
        for line in lines
        if line.get("type") not in (None, "invoke")
        for step in line.get("steps", ())
        if "poll" in step
    ]


def acknowledged(lines: list[Line]) -> list[Record]:
    """Records of transactions that were ok, in the order of their offsets."""
    return sorted(
        (step["send"], step["offset"], step["value"])
        for line in lines
        if line.get("type") == "ok"
        for step in line.get("steps", ())
        if "send" in step
    )


def test_record_that_no_consumer_gets_is_lost(history: Callable[[], list[Line]]) -> None:
    lines = history()
    key, offset, value = acknowledged(lines)[3]
    for polled in polls(lines):
        polled[key] = [each for each in polled.get(key, []) if each != [offset, value]]
        if not polled[key]:
            del polled[key]
    report = check(lines)
    assert report.anomalies == {"lost-write": 1}, report
    assert f"value {value} of {key} at offset {offset} was not polled" in str(report)


def test_record_that_is_stored_twice_is_a_duplicate(history: Callable[[], list[Line]]) -> None:
    lines = history()
    key, offset, value = acknowledged(lines)[3]
    for line in lines:
        move_up(line, key, offset)
    for polled in polls(lines):
        for at, each in enumerate(polled.get(key, [])):
            if each == [offset, value]:
                polled[key].insert(at + 1, [offset + 1, value])
                break
    report = check(lines)
    assert report.anomalies == {"duplicate": 1}, report


def move_up(line: Line, key: str, above: int) -> None:
    """Make room for one record after an offset."""
    for step in line.get("steps", ()):
        if step.get("send") == key and step.get("offset", 0) > above:
            step["offset"] += 1
        for each in step.get("poll", {}).get(key, ()):
            each[0] += each[0] > above


def test_records_that_are_stored_in_another_order_are_nonmonotonic(
    history: Callable[[], list[Line]],
) -> None:
    lines = history()
    first, second = next(
        (a, b)
        for line in lines
        if line.get("type") == "ok"
        for a in line.get("steps", ())
        for b in line.get("steps", ())
        if "send" in a and a.get("send") == b.get("send") and a["offset"] < b["offset"]
    )
    other = {first["value"]: second["value"], second["value"]: first["value"]}
    for polled in polls(lines):
        for each in polled.get(first["send"], ()):
            each[1] = other.get(each[1], each[1])
    first["offset"], second["offset"] = second["offset"], first["offset"]
    report = check(lines)
    assert report.anomalies == {"internal-nonmonotonic-send": 1}, report


def test_aborted_record_that_a_consumer_gets_is_an_aborted_read(
    history: Callable[[], list[Line]],
) -> None:
    lines = history()
    aborted = [
        (step["send"], step["offset"], step["value"])
        for line in lines
        if line.get("type") == "fail"
        for step in line["steps"]
        if "send" in step
    ]
    reader, record = next(
        (polled[key], [offset, value])
        for line in lines
        if line.get("type") == "ok"
        for polled in polls([line])
        for key, offset, value in aborted
        if key in polled and polled[key][0][0] < offset < polled[key][-1][0]
    )
    reader.append(record)
    reader.sort()
    report = check(lines)
    assert report.anomalies == {"aborted-read": 1}, report

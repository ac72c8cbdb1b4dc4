from __future__ import annotations

import sys
from pathlib import Path

import pytest

from minibroker.testing import MiniBroker, check, run_workload
from minibroker.testing.workload import (
    CLIENTS,
    WorkloadFailed,
    main,
    parsed,
)


def test_workload_of_the_command_line_writes_a_valid_history(
    tmp_path: Path, minibroker: MiniBroker, minibroker_topic: str
) -> None:
    history = tmp_path / "history.jsonl"
    main([
        *["--bootstrap-servers", minibroker.bootstrap_servers, "--topic", minibroker_topic],
        *["--workload", "queue", "--partitions", "1", "--operations", "10"],
        *["--client", "confluent-kafka", "--client", "confluent-kafka"],
        *["--output", str(history)],
    ])  # fmt: skip
    report = check(history)
    assert report.valid, report
    assert report.sent
    assert report.settings.workload == "queue"
    assert report.settings.clients[1].startswith("confluent-kafka ")


def test_client_that_ends_is_an_error(tmp_path: Path) -> None:
    program = 'print(\'{"client": "x"}\')'
    with pytest.raises(WorkloadFailed, match=r"the client .+ ended$"):
        run_workload(
            tmp_path / "history.jsonl",
            "queue",
            bootstrap_servers="localhost:1",
            topic="t",
            partitions=1,
            clients=[[sys.executable, "-c", program]],
            operations=5,
            seed=1,
        )


TORN = """
import json, sys

def answer(**fields):
    print(json.dumps(fields), flush=True)

sys.stdin.readline()
answer(client="scripted 1")
torn, polls = [], 0
for line in map(json.loads, sys.stdin):
    sends = [step for step in line.get("steps", ()) if "send" in step]
    done = {**line, "type": "ok"}
    if sends and len(sends) > 1 and not torn:
        torn, done["type"] = sends, "unknown"
    elif sends:
        done["type"] = "fail"
    elif "steps" in line:
        polls += bool(torn)
        seen = {1: torn[:1], 7: torn[1:]}.get(polls, [])
        polled = {}
        for step in seen:
            polled.setdefault(step["send"], []).append([step["value"], step["value"]])
        done["steps"] = [{"poll": polled}]
    if done["type"] != "ok":
        done["steps"] = [*sends, *([{"poll": {}}] if len(sends) < len(line["steps"]) else [])]
    answer(**done)
"""
"""A client whose only transaction is half visible at first, and completely after six more polls."""


def test_run_polls_until_a_transaction_of_unknown_outcome_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    run_workload(
        path,
        "abort",
        bootstrap_servers="localhost:1",
        topic="t",
        partitions=1,
        clients=[[sys.executable, "-c", TORN]],
        operations=20,
        seed=1,
    )
    report = check(path)
    assert report.valid, report
    assert report.polled > 1


def test_command_line_has_defaults() -> None:
    options = parsed([
        *["--bootstrap-servers", "x:1", "--topic", "t", "--workload", "abort"],
        *["--client", "java Client", "--output", "h"],
    ])  # fmt: skip
    assert (options.partitions, options.operations, options.seed) == (3, 100, 1)


def test_included_clients_are_programs_of_this_package() -> None:
    for command in CLIENTS.values():
        assert command[-1].startswith("minibroker.testing.clients.")

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from minibroker.lab.checker.history import Consumers
from minibroker.testing import MiniBroker, check, run_workload
from minibroker.testing.workload import (
    CLIENTS,
    WORKLOADS,
    WorkloadFailed,
    WorkloadGenerator,
    main,
    parsed,
)

GUIDE = Path(__file__).parents[2] / "docs/guides/check-a-history.md"
KEYS = ["a-0", "a-1"]


def drawn(name: str, seed: int, number: int = 300) -> list[dict[str, object]]:
    generator = WorkloadGenerator(name, KEYS, seed)
    return [generator.first(0), *(generator.next(0) for _ in range(number))]


@pytest.mark.parametrize("name", WORKLOADS)
def test_seed_determines_the_operations(name: str) -> None:
    assert drawn(name, 1) == drawn(name, 1)
    assert drawn(name, 1) != drawn(name, 2)


@pytest.mark.parametrize("name", WORKLOADS)
def test_operations_of_a_process_do_not_depend_on_others(name: str) -> None:
    generator = WorkloadGenerator(name, KEYS, 1)
    interleaved = [generator.first(0)]
    for _ in range(300):
        generator.next(1)
        interleaved.append(generator.next(0))
    assert interleaved == drawn(name, 1)


@pytest.mark.parametrize("name", WORKLOADS)
def test_values_are_unique_within_a_key(name: str) -> None:
    generator = WorkloadGenerator(name, KEYS, 5)
    sent = [
        (step["send"], step["value"])
        for number in range(300)
        for step in generator.next(number % 3).get("steps", ())
        if "send" in step
    ]
    assert sent
    assert len(sent) == len(set(sent))


def test_process_that_is_reopened_subscribes_again() -> None:
    operations = drawn("auto-commit", 3)
    following = [
        after["operation"]
        for before, after in pairwise(operations)
        if before["operation"] == "reopen"
    ]
    assert following
    assert set(following) == {"subscribe"}


def test_processes_of_producer_fencing_share_transactional_ids() -> None:
    generator = WorkloadGenerator("producer-fencing", KEYS, 1)
    ids = [generator.client_options(process, "run")["transactional_id"] for process in range(4)]
    assert ids == ["run-0", "run-0", "run-1", "run-1"]
    assert generator.client_options(0, "run")["group"] is None


def test_processes_of_auto_commit_share_a_group() -> None:
    generator = WorkloadGenerator("auto-commit", KEYS, 1)
    assert [generator.client_options(process, "run")["group"] for process in range(2)] == [
        "run",
        "run",
    ]
    assert generator.settings(["x", "y"]).consumers is Consumers.SUBSCRIBE
    assert generator.settings(["x", "y"]).clients == {0: "x", 1: "y"}


def test_transactional_workload_without_idempotence_is_rejected() -> None:
    with pytest.raises(ValueError, match="the producers of abort are transactional"):
        WorkloadGenerator("abort", KEYS, 1, idempotence=False)
    generator = WorkloadGenerator("queue", KEYS, 1, idempotence=False)
    assert generator.client_options(0, "run")["idempotence"] is False
    assert generator.settings(["x"]).idempotence is False


def test_transactions_are_aborted_by_the_workload_abort() -> None:
    transactions = [each for each in drawn("abort", 1) if each["operation"] == "txn"]
    aborted = [each for each in transactions if each.get("abort")]
    assert 0.1 < len(aborted) / len(transactions) < 0.4


def test_guide_lists_the_workloads() -> None:
    rows = [f"| `{name}` | {kind.about} |" for name, kind in WORKLOADS.items()]
    assert [line for line in GUIDE.read_text().splitlines() if line in rows] == rows


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

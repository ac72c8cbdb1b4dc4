from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from minibroker.lab.checker.client_history import Consumers
from minibroker.testing.workload_plans import WORKLOADS, WorkloadGenerator

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

"""Simulated runs: clean ones are valid, and each way of misbehaving is found, and only that.

``CHECKER_SEEDS=10000`` checks as many clean runs instead of `SEEDS`.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from minibroker.lab.checker.checking import check_lines
from minibroker.lab.checker.report import CheckReport
from minibroker.testing.workload import WORKLOADS
from tests.lab.checker.simulated_broker import SimulatedRun, Tampering, simulate

SEEDS = int(os.environ.get("CHECKER_SEEDS", "300"))
"""Clean runs, over all workloads."""
TAMPERED_SEEDS = 12

Checked = list[tuple[SimulatedRun, CheckReport]]


def tampered_runs(tampering: Tampering, *workloads: str) -> Checked:
    """Runs in which the broker misbehaved."""
    runs = []
    for workload in workloads or WORKLOADS:
        for seed in range(TAMPERED_SEEDS):
            run = simulate(workload, seed, tampering=tampering, countdown=seed)
            if run.broker.has_tampered:
                runs.append((run, check_lines(run.lines)))
    assert runs
    return runs


def is_committed(run: SimulatedRun) -> bool:
    """Whether an operation that was ok sent the record to which it was done."""
    record = run.broker.tampered
    assert record is not None
    assert record.value is not None
    return any(
        result == "ok" and value == record.value and record in run.broker.logs[key]
        for (key, value), result in run.results.items()
    )


@pytest.mark.parametrize("workload", WORKLOADS)
def test_clean_runs_are_valid(workload: str) -> None:
    results: Counter[str] = Counter()
    for seed in range(SEEDS // len(WORKLOADS)):
        report = check_lines(simulate(workload, seed).lines)
        assert report.valid, f"{workload}, seed {seed}:\n{report}"
        results.update(report.operations, polled=report.polled)
    assert min(results["polled"], results["ok"], results["unknown"]) > 0
    assert bool(results["fail"]) is WORKLOADS[workload].transactional


def test_lost_record_is_found() -> None:
    found: Counter[str] = Counter()
    for run, report in tampered_runs(Tampering.LOSE):
        found.update(report.anomalies)
        assert report.anomalies.keys() <= {"lost-write", "unseen"}, report
        assert sum(report.anomalies.values()) <= 1
        if is_committed(run):
            assert sum(report.anomalies.values()) == 1, report
    assert found["lost-write"] > found["unseen"]


def test_doubled_record_is_found() -> None:
    for run, report in tampered_runs(Tampering.DOUBLE):
        assert report.anomalies.keys() <= {"duplicate"}, report
        assert report.anomalies.get("duplicate", 0) <= 1
        if is_committed(run):
            assert report.anomalies == {"duplicate": 1}, report


def test_reordered_record_is_found() -> None:
    for run, report in tampered_runs(Tampering.REORDER):
        assert report.anomalies.keys() <= {"internal-nonmonotonic-send"}, report
        assert sum(report.anomalies.values()) <= 1
        if is_committed(run):
            assert report.anomalies == {"internal-nonmonotonic-send": 1}, report


def test_overwritten_record_is_found() -> None:
    for run, report in tampered_runs(Tampering.OVERWRITE):
        # The consumers that are past the offset do not poll the new record.
        assert report.anomalies.keys() <= {"inconsistent-offsets", "lost-write", "unseen"}, report
        if is_committed(run):
            assert report.anomalies["inconsistent-offsets"] == 1, report


def test_aborted_transaction_that_is_committed_is_found() -> None:
    found = 0
    for run, report in tampered_runs(Tampering.COMMIT_ABORTED, "abort"):
        assert report.anomalies.keys() <= {"aborted-read"}, report
        transaction = run.broker.committed_by_mistake
        assert transaction is not None
        assert bool(transaction.keys) is bool(report.anomalies), report
        found += bool(report.anomalies)
    assert found


def test_record_that_one_poll_passes_over_is_found() -> None:
    for _, report in tampered_runs(Tampering.SKIP, "queue", "abort", "list-append"):
        assert report.anomalies == {"internal-poll-skip": 1}, report


def test_record_that_no_member_of_a_group_polls_is_lost() -> None:
    found: Counter[str] = Counter()
    for _, report in tampered_runs(Tampering.SKIP, "auto-commit"):
        found.update(report.anomalies)
    assert found["lost-write"]
    assert found.keys() <= {"lost-write", "internal-poll-skip", "unseen"}


def test_record_that_one_poll_returns_twice_is_found() -> None:
    for _, report in tampered_runs(Tampering.REPEAT, "queue", "abort", "list-append"):
        assert report.anomalies == {"internal-nonmonotonic-poll": 1}, report

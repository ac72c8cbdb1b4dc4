"""Simulated runs: clean ones are valid, and each way of misbehaving is found, and only that.

``CHECKER_SEEDS=10000`` checks as many clean runs instead of `SEEDS`.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter

import pytest

from minibroker.lab.checker.checking import EXAMPLES_MAX, CheckReport, check_lines
from minibroker.lab.checker.history import InvalidHistory
from minibroker.testing.workload import WORKLOADS
from tests.lab.checker import written
from tests.lab.checker.simulated_broker import SimulatedRun, Tampering, simulate
from tests.lab.checker.written import poll, send

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


A = "orders-0"


def test_report_of_a_clean_history_says_valid() -> None:
    text = str(written.report(send(0, (A, 1, 0)), poll(1, {A: [(0, 1)]})))
    assert text == "2 operations (2 ok), 1 records sent, 1 records polled\n\nvalid"


def test_report_names_lines_and_client_of_an_anomaly() -> None:
    result = written.report(
        send(0, (A, 1, 0), (A, 2, 1)), poll(1, {A: [(1, 2)]}), clients={"0": "librdkafka 2.11"}
    )
    assert "lost-write: 1 case: " in str(result)
    assert (
        "value 1 of orders-0 at offset 0 was not polled; line 3 sent it and was acknowledged, and "
        "line 5 polled offset 1 [line 3: librdkafka 2.11]" in str(result)
    )
    assert str(result).endswith("invalid: lost-write")


def test_examples_are_bounded_and_all_cases_are_counted() -> None:
    number = EXAMPLES_MAX + 5
    result = written.report(
        send(0, *((A, value, value) for value in range(number + 1))),
        poll(1, {A: [(number, number)]}),
    )
    assert result.counts == {"lost-write": number}
    assert len(result.examples["lost-write"]) == EXAMPLES_MAX
    assert "... and 5 more" in str(result)


def test_allowed_anomaly_leaves_a_report_valid() -> None:
    result = written.report(send(0, (A, 1, 0)), final_polls=False)
    assert result.valid
    assert result.allowed == {"unseen": 1}
    assert "allowed: unseen: 1 case (without final polls)" in str(result)


def test_json_of_a_report_has_every_anomaly_with_examples() -> None:
    result = written.report(send(0, (A, 1, 0), (A, 2, 1)), poll(1, {A: [(1, 2)]}))
    document = json.loads(json.dumps(result.to_json()))
    assert document["valid"] is False
    assert document["operations"] == {"ok": 2}
    [row] = document["anomalies"]
    assert (row["name"], row["count"]) == ("lost-write", 1)
    assert row["examples"][0]["lines"] == [3, 5]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_check_leaves_the_garbage_collector_as_it_was(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        gc.enable() if is_enabled else gc.disable()
        with pytest.raises(InvalidHistory):
            check_lines(["{"])
        assert gc.isenabled() is is_enabled
    finally:
        gc.enable() if was_enabled else gc.disable()


def test_order_of_anomalies_does_not_depend_on_hashes() -> None:
    keys = [f"key-{number}" for number in range(8)]
    result = written.report(poll(0, {key: [(1, 1), (0, 0)] for key in keys}))
    assert [each.key for each in result.examples["internal-nonmonotonic-poll"]] == keys

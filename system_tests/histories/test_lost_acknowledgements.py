"""Acknowledgements are lost by a fault rule: with idempotent producers no record is doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minibroker.lab.checker.checking import CheckReport
from minibroker.testing import check
from minibroker.testing.workload import run_workload
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.histories.test_workloads import PARTITIONS, create_topic

pytestmark = pytest.mark.minibroker

EVERY = 5
"""Each fifth request of a topic is carried out, and then its connection is closed."""

RunLossy = Callable[[bool], CheckReport]


@pytest.fixture
def run_lossy(
    broker: RunningBroker, client_command: list[str], fresh: Callable[[str], str], tmp_path: Path
) -> Iterator[RunLossy]:
    """Run the workload queue, with or without idempotence, and return its report."""
    topic = fresh("lossy")
    create_topic(broker, topic)
    rule = ask(
        broker,
        "POST",
        "/v1/faults",
        {"action": "disconnect", "api": "Produce", "topic": topic, "at": "after", "every": EVERY},
    )

    def run(idempotence: bool) -> CheckReport:
        path = tmp_path / "history.jsonl"
        run_workload(
            path,
            "queue",
            bootstrap_servers=broker.bootstrap_servers,
            topic=topic,
            partitions=PARTITIONS,
            clients=[client_command] * 2,
            operations=40,
            seed=1,
            idempotence=idempotence,
        )
        return check(path)

    yield run
    hits = ask(broker, "GET", f"/v1/faults/{rule['id']}")["hits"]
    ask(broker, "DELETE", f"/v1/faults/{rule['id']}")
    assert hits, "no acknowledgement was lost"


def test_idempotent_producer_does_not_double_records(run_lossy: RunLossy) -> None:
    report = run_lossy(True)
    assert report.valid, report
    assert "duplicate" not in report.counts


def test_producer_without_idempotence_doubles_records(run_lossy: RunLossy) -> None:
    report = run_lossy(False)
    assert report.valid, report
    assert report.allowed["duplicate"], report

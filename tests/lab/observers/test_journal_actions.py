"""What the control API does to processes, logs and all state is recorded as changed states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from minibroker.testing import MiniBroker
from minibroker.testing.journal import RecordedJournal
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from tests.broker.network.raw_client import RawClient
from tests.lab.observers.test_request_journal import produce


@pytest.fixture
def broker() -> Iterator[MiniBroker]:
    settings = {"journal.enable": True, "log.retention.bytes": 0}
    with MiniBroker(settings=settings) as started:
        started.create_topic("t")
        yield started


@pytest.fixture
def journal(broker: MiniBroker) -> RecordedJournal:
    return broker.journal.start()


def state(what: str, name: str, before: str | None, after: str) -> dict[str, Any]:
    details = {"what": what, "name": name, "from": before, "to": after}
    return {"kind": "state", "details": details}


def test_logs_that_are_rolled_and_shortened_are_recorded(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.ask(produce(), 9)
    broker.faults.act("roll", topic="t")
    broker.faults.act("retain", topic="t")
    journal.assert_in_order(
        {"kind": "response", "api": "Produce"},
        state("active_segment", "t-0", "0", "1"),
        state("log_start", "t-0", "0", "1"),
    )
    broker.faults.act("roll", topic="t")
    journal.assert_happened(1, kind="state", details={"what": "active_segment"})
    assert len(journal.entries(kind="state")) == 2


def test_compaction_is_recorded(broker: MiniBroker, journal: RecordedJournal) -> None:
    broker.create_topic("compacted", configs={"cleanup.policy": "compact"})
    with RawClient(broker.bootstrap_servers) as client:
        for _ in range(2):
            client.ask(produce(topic="compacted"), 9)
    broker.compact("compacted")
    journal.assert_in_order(state("compacted", "compacted-0", "0", "2"))


def test_expired_records_are_recorded(broker: MiniBroker, journal: RecordedJournal) -> None:
    broker.create_topic("short", configs={"retention.ms": "60000"})
    with RawClient(broker.bootstrap_servers) as client:
        client.ask(produce(topic="short"), 9)
    broker.advance(10**7)
    journal.wait_for(**state("log_start", "short-0", "0", "1"))


def test_snapshot_that_is_restored_is_recorded(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    snapshot = broker.snapshot()
    broker.restore(snapshot)
    journal.assert_in_order(state("snapshot", snapshot.name, None, "restored"))


def test_processes_that_are_stopped_and_killed_are_recorded(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    broker.faults.act("pause", process="worker-0", pause_ms=1)
    broker.faults.act("kill", process="worker-0")
    journal.assert_in_order(
        state("process", "worker-0", "running", "paused"),
        state("process", "worker-0", "paused", "running"),
        state("process", "worker-0", "running", "killed"),
    )


def test_process_that_a_rule_kills_is_recorded(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    with broker.faults as faults, RawClient(broker.bootstrap_servers) as client:
        faults.add("kill", api="ApiVersions", process="acceptor", first=1)
        client.ask(ApiVersionsRequest(), 0)
    journal.assert_in_order(
        {"kind": "request", "api": "ApiVersions"},
        state("process", "acceptor", "running", "killed"),
        {"kind": "response", "api": "ApiVersions"},
    )

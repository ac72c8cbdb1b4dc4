"""Brokers that accept connections but never respond: from the start, or in the middle of a job.

A stopped broker represents every reason for silence, including a network that drops packets: its
connections stay open, and no response arrives.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.client.control import Control
from minibroker.lab.activity.events import TOPIC
from minibroker.pipeline.cluster_access import RESPONSE_TIMEOUT_S, SILENCE_MAX_S
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.processes import tree
from system_tests.harness.waiting import PATIENCE_S, SPARK_PATIENCE_S, wait_until
from system_tests.pipeline.test_ingest_kills import (
    PARTITIONS,
    EventProducer,
    KillScenario,
    keys,
    wait_for_progress,
)

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

COMMIT = "_commits/*.json"


@contextmanager
def stopped(broker: RunningBroker) -> Iterator[None]:
    """Stop every process of a broker temporarily."""
    family = tree(broker.pid)
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in family:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def scenario(memory_folder: Path, fresh: Callable[[str], str]) -> Iterator[KillScenario]:
    """A broker with a topic for events, which only the test writes."""
    folder = memory_folder / fresh("silent")
    folder.mkdir()
    made = KillScenario(folder)
    admin = AdminClient({"bootstrap.servers": made.broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
    yield made
    made.end()


@pytest.mark.parametrize("job", [("ingest", "--into", "activity"), ("watch",)])
def test_silent_broker_is_reported_before_spark_starts(
    tmp_path: Path, job: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "minibroker", "pipeline", *job, "--from", server]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    said = f"request to {server} failed (no answer to API_VERSIONS in time): it may not be running"
    assert said in done.stderr
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (1, "", [])


def test_request_for_offsets_that_is_never_answered_is_retried(scenario: KillScenario) -> None:
    """Spark's tasks ask for a partition's offsets at every poll, and are not retried themselves."""
    producer = EventProducer(scenario.broker.bootstrap_servers)
    producer.start()
    job = scenario.begin_job(follow=True)
    wait_for_progress(scenario, job, COMMIT, 2, may_end=False)
    assert scenario.broker.control_url is not None
    with closing(Control(scenario.broker.control_url)) as control:
        rule = {"api": "ListOffsets", "client_id": "consumer-*", "nth": 1}
        number = control.post("v1", "faults", **rule, action="never_answer")["id"]

        def has_fired() -> bool:
            return bool(control.get("v1", "faults", number)["hits"])

        wait_until(has_fired, "a task to ask for offsets", within_s=SPARK_PATIENCE_S)
    producer.finish()
    wait_until(
        lambda: job.has_ended() or len(keys(scenario.table)) == producer.count,
        "all events to be there",
        within_s=RESPONSE_TIMEOUT_S + SPARK_PATIENCE_S,
    )
    assert not job.has_ended(), job.printed()


def test_broker_outage_is_retried_and_then_reported(scenario: KillScenario) -> None:
    producer = EventProducer(scenario.broker.bootstrap_servers)
    producer.start()
    job = scenario.begin_job(follow=True)
    wait_for_progress(scenario, job, COMMIT, 2, may_end=False)
    with stopped(scenario.broker):
        until = time.monotonic() + 1.5 * RESPONSE_TIMEOUT_S  # The job retries in this time.
        wait_until(lambda: time.monotonic() >= until, "a long silence", within_s=SILENCE_MAX_S)
        assert not job.has_ended(), job.printed()
    producer.finish()
    wait_until(
        lambda: job.has_ended() or len(keys(scenario.table)) == producer.count,
        "all events to be there",
        within_s=SPARK_PATIENCE_S,
    )
    assert not job.has_ended(), job.printed()
    assert keys(scenario.table) == [(sequence, 1) for sequence in range(producer.count)]
    with stopped(scenario.broker):
        wait_until(
            job.has_ended, "the job to give up", within_s=2 * SILENCE_MAX_S + SPARK_PATIENCE_S
        )
    server = scenario.broker.bootstrap_servers
    said = f"reading from {server} failed: request to {server} failed (timed out"
    assert said in job.printed().replace("(Timed out", "(timed out")
    assert (
        "it may not be running, or an address that it advertises cannot be reached" in job.printed()
    )

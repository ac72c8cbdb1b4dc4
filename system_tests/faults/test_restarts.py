"""A complete broker ends and restarts on the same data directory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.model import Record, drain
from system_tests.faults.conftest import Starter, still_running
from system_tests.faults.history import find_anomalies
from system_tests.faults.verifiable import Run
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.processes import tree
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.minibroker

Names = Callable[[str], str]
ENDS_WITHIN_S = 2.0


def end_gently(broker: RunningBroker) -> None:
    assert broker.stop() == 0
    broker.forget()


def end_brutally(broker: RunningBroker) -> None:
    """Kill the supervisor; its child processes must notice and end by themselves."""
    family = tree(broker.pid)
    broker.forget()
    wait_until(lambda: not still_running(family), "the orphans to end by themselves")


ENDINGS = pytest.mark.parametrize("end", [end_gently, end_brutally])


@ENDINGS
def test_restarts_lose_and_duplicate_no_acknowledged_record(
    end: Callable[[RunningBroker], None],
    start: Starter,
    begin_run: Callable[..., Run],
    fixed_listener: str,
    tmp_path: Path,
) -> None:
    broker = start(data_dir=tmp_path / "data", listener=fixed_listener)
    run = begin_run(broker)
    run.wait_progress()
    for _ in range(3):
        end(broker)
        broker = start(data_dir=tmp_path / "data", listener=fixed_listener)
        run.wait_progress()
    history = run.finish()
    assert not history.failed
    assert not find_anomalies(history)


@ENDINGS
def test_topics_configs_and_committed_offsets_survive(
    end: Callable[[RunningBroker], None], start: Starter, fresh: Names, tmp_path: Path
) -> None:
    topic, group = fresh("kept"), fresh("group")
    broker = start(data_dir=tmp_path / "data")
    before = ConfluentClient(broker.bootstrap_servers)
    before.create_topic(topic, 2, configs={"retention.ms": "7200000"})
    before.produce(topic, [Record(b"k", b"%d" % i) for i in range(10)], codec="zstd")
    cluster_id = before.cluster().cluster_id
    member = before.join(group, topic)
    drain(member, 10)
    member.commit()
    member.close()
    before.close()

    end(broker)
    broker = start(data_dir=tmp_path / "data")
    after = ConfluentClient(broker.bootstrap_servers)
    assert after.cluster().cluster_id == cluster_id
    assert len(after.leaders(topic)) == 2
    assert after.topic_configs(topic)["retention.ms"] == "7200000"
    assert after.bounds(topic, 0) == (0, 10)
    assert after.committed_by(group)[topic, 0] == 10
    assert group in after.groups()
    after.produce(topic, [Record(b"k", b"next")])
    member = after.join(group, topic)
    assert [(each.offset, each.value) for each in drain(member, 1)] == [(10, b"next")]
    member.close()
    assert [each.offset for each in after.read(topic, 0, 0, 11)] == [*range(11)]
    after.close()


def test_deleted_topic_stays_deleted(start: Starter, fresh: Names, tmp_path: Path) -> None:
    topic = fresh("deleted")
    broker = start(data_dir=tmp_path / "data")
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic(topic, 2)
    client.produce(topic, [Record(None, b"v")])
    client.delete_topic(topic)
    client.close()
    end_brutally(broker)
    broker = start(data_dir=tmp_path / "data")
    client = ConfluentClient(broker.bootstrap_servers)
    assert topic not in client.topics()
    client.create_topic(topic, 1)
    assert client.bounds(topic, 0) == (0, 0)
    client.close()


def test_data_directory_in_use_reports_holder_pid(start: Starter, tmp_path: Path) -> None:
    broker = start(data_dir=tmp_path / "data")
    second = subprocess.run(
        [
            *[sys.executable, "-m", "minibroker", "start"],
            *["--listener", "PLAINTEXT://127.0.0.1:0", "--data-dir", str(tmp_path / "data")],
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    said = second.stdout + second.stderr
    assert second.returncode != 0
    assert str(broker.pid) in said
    assert str(tmp_path / "data") in said
    assert "Traceback" not in said
    ConfluentClient(broker.bootstrap_servers).cluster()


@pytest.mark.alone
def test_sigterm_ends_with_0_in_time_although_clients_are_at_work(
    start: Starter, begin_run: Callable[..., Run]
) -> None:
    broker = start()
    run = begin_run(broker)
    run.wait_progress()
    began = time.monotonic()
    assert broker.stop() == 0
    assert time.monotonic() - began < ENDS_WITHIN_S
    assert "Traceback" not in broker.printed()

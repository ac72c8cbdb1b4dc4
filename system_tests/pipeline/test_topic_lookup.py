"""Jobs with a broker that has no activity topic: they fail at once, with a remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.lab.activity.events import TOPIC
from system_tests.harness.brokers import start_minibroker
from system_tests.harness.waiting import PATIENCE_S

pytestmark = [pytest.mark.minibroker, pytest.mark.java]


def test_broker_without_activity_topic_is_reported(tmp_path: Path) -> None:
    broker = start_minibroker(data_dir=tmp_path / "data")
    server = broker.bootstrap_servers
    try:
        for job in (["ingest", "--into", str(tmp_path / "activity")], ["watch"]):
            command = [sys.executable, "-m", "minibroker", "pipeline", *job, "--from", server]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            said = f"{server} has no topic {TOPIC}, because it records no activity: start the"
            assert said in done.stderr
            assert "activity.enable=true" in done.stderr
            assert (done.returncode, done.stdout) == (1, "")
    finally:
        broker.stop()
        broker.forget()
    assert not (tmp_path / "activity").exists()

"""`minibroker configs --zookeeper`: a running broker applies what it writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from system_tests.harness.brokers import start_minibroker
from system_tests.harness.waiting import PATIENCE_S, wait_until
from system_tests.harness.zookeeper import ZooKeeper

pytestmark = pytest.mark.minibroker

RATE = "connection_creation_rate"


def configs(*words: str) -> list[str]:
    """The lines that the command prints."""
    command = [sys.executable, "-m", "minibroker", "configs", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_configs_written_to_zookeeper_apply_at_broker(
    zookeeper_server: ZooKeeper, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    connect = f"{zookeeper_server.address}/{fresh('configs')}"
    before = ("--zookeeper", connect, "--alter", "--add-config")
    assert configs(*before, f"{RATE}=500", "--ip", "127.0.0.9") == [
        "Completed updating config for entity: ips '127.0.0.9'."
    ]
    with start_minibroker(data_dir=tmp_path, settings={"zookeeper.connect": connect}) as broker:
        asked = ("-b", broker.bootstrap_servers, "--describe", "--entity-type")
        assert configs(*asked, "ips") == [f"Quota configs for ip '127.0.0.9' are {RATE}=500.0"]
        configs(*before, "max.connections=400", "--broker-defaults")
        wait_until(
            lambda: any("  max.connections=400 " in line for line in configs(*asked, "brokers")),
            "the broker to follow",
        )
        assert configs("--zookeeper", connect, "--describe", "--entity-type", "brokers") == [
            "Configs for default brokers are max.connections=400"
        ]

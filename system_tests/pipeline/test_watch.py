"""The watch of a broker: a client comes above its quota, and is told of while it is held."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from minibroker.pipeline.watch.alerts import FIELDS, VERSION
from system_tests.conftest import without_toolchain
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.jars import ToolchainMissing, connector_jars
from system_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.minibroker, pytest.mark.java, pytest.mark.timeout(300)]

CLIENT = "reports"
BYTES_PER_SECOND = 20_000


@pytest.fixture
def told() -> Iterator[RunningBroker]:
    """A broker that writes its activity, with a quota for one client."""
    broker = start_minibroker(settings={"activity.enable": "true"})
    command = [sys.executable, "-m", "minibroker", "configs", "-b", broker.bootstrap_servers]
    quota = f"producer_byte_rate={BYTES_PER_SECOND}"
    subprocess.run([*command, "--client", CLIENT, "--alter", "--add-config", quota], check=True)
    yield broker
    broker.stop()
    broker.forget()


@pytest.fixture
def watch(told: RunningBroker, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, looking at the broker; what it prints is in a file."""
    try:
        jars = ",".join(map(str, connector_jars().glob("*.jar")))
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    command = [sys.executable, "-m", "minibroker", "pipeline", "watch", "--master", "local[1]"]
    command += ["--from", told.bootstrap_servers, "--alerts-to", "alerts", "--from-beginning"]
    command += ["--every", "1", "--intervals", "2", "--late", "1", "--conf", f"spark.jars={jars}"]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        running = subprocess.Popen(command, stdout=out, stderr=err, text=True)
        yield running
        running.terminate()
        running.wait(30)


def produce(broker: RunningBroker) -> None:
    """Four seconds of twice the quota."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": CLIENT})
    for _ in range(16):
        producer.produce("orders", b"x" * BYTES_PER_SECOND)
        assert producer.flush(60) == 0


def alerts(broker: RunningBroker) -> list[dict[str, Any]]:
    """What is on the topic."""
    config = {
        "bootstrap.servers": broker.bootstrap_servers, "group.id": "test",
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }  # fmt: skip
    consumer = Consumer(config)
    consumer.subscribe(["alerts"])
    try:
        found = [record for record in consumer.consume(100, timeout=10) if record.error() is None]
    finally:
        consumer.close()
    for record in found:
        key, value = record.key(), record.value()
        assert key is not None
        assert value is not None
        assert json.loads(value)["id"] == key.decode()
    return [json.loads(record.value() or b"") for record in found]


def test_who_is_above_a_quota_is_told_here_and_on_the_topic(
    told: RunningBroker, watch: subprocess.Popen[str], tmp_path: Path
) -> None:
    produce(told)

    def printed() -> str:
        assert watch.poll() is None, (tmp_path / "err").read_text()[-3000:]
        return (tmp_path / "out").read_text()

    held = f"raised   client {CLIENT} on broker 1: held for 2 s"
    wait_until(lambda: held in printed(), "the throttle to be told", within_s=200)
    wait_until(lambda: "producer_byte_rate above 80 %" in printed(), "the rate", within_s=30)
    found = alerts(told)
    assert {(each["rule"], each["state"]) for each in found} >= {
        ("throttled", "raised"), ("over", "raised"),
    }  # fmt: skip
    for each in found:
        assert list(each) == list(FIELDS)
        assert (each["version"], each["broker"], each["client_id"]) == (VERSION, 1, CLIENT)
        assert each["text"] in printed()

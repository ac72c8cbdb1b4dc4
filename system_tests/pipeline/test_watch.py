"""Watching a broker: a client exceeds its quota, and an alert is raised while it is throttled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.pipeline.watch.rules import FIELDS, VERSION
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.waiting import SPARK_PATIENCE_S, wait_until
from system_tests.pipeline.job_launchers import by_minibroker, by_spark
from system_tests.pipeline.watch_process import CLIENT, Watch, alerts, produce, set_quota

pytestmark = [pytest.mark.minibroker, pytest.mark.java]


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """A broker that writes its activity, with a quota for one client."""
    broker = start_minibroker(settings={"activity.enable": "true"})
    set_quota(broker.bootstrap_servers)
    yield broker
    broker.stop()
    broker.forget()


@pytest.fixture(params=[by_minibroker, by_spark])
def watch(broker: RunningBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watch]:
    """The command, looking at the broker."""
    running = Watch(tmp_path, broker.bootstrap_servers, by=request.param)
    yield running
    running.kill()


def test_client_above_quota_raises_alert_on_console_and_topic(
    broker: RunningBroker, watch: Watch
) -> None:
    config = {"bootstrap.servers": broker.bootstrap_servers}
    produce(config)
    held = f"raised   client {CLIENT} on broker 1: throttled for 2 s"
    wait_until(
        lambda: held in watch.printed(), "the throttle to be reported", within_s=SPARK_PATIENCE_S
    )
    over = "producer_byte_rate above 80 %"
    wait_until(lambda: over in watch.printed(), "the rate to be reported")
    found = alerts(config)
    assert {(each["rule"], each["state"]) for each in found} >= {
        ("throttled", "raised"), ("over", "raised"),
    }  # fmt: skip
    for each in found:
        assert list(each) == list(FIELDS)
        assert (each["version"], each["broker"], each["client_id"]) == (VERSION, 1, CLIENT)
        assert each["text"] in watch.printed()

"""What a client logs at its default level while a broker serves it well."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from system_tests.harness.brokers import RunningBroker
from system_tests.harness.waiting import wait_until


def test_librdkafka_has_nothing_to_log(
    broker: RunningBroker, fresh: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "statistics.interval.ms": 50,
        "stats_cb": lambda _: seen.append(None),
    }
    seen: list[None] = []
    with caplog.at_level(logging.DEBUG, logger="quiet"):
        producer = Producer(settings, logger=logging.getLogger("quiet"))
        producer.produce(fresh("quiet"), b"v")
        assert producer.flush(60) == 0
        # It asks for telemetry within its first second, if the broker offers that.
        wait_until(lambda: producer.poll(0.05) is not None and len(seen) > 40, "two seconds")
    assert [record.getMessage() for record in caplog.records if record.name == "quiet"] == []

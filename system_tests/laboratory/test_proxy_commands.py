"""`minibroker trace` and `minibroker judge` with the journal of a proxy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from minibroker.testing import MiniBroker, MiniProxy
from system_tests.harness.waiting import PATIENCE_S

pytestmark = pytest.mark.minibroker

THROTTLE_MS = 3000
PAUSE_S = 0.2
"""Longer than anything that is on its way, and shorter than the throttle."""


@pytest.fixture(scope="module")
def proxy(minibroker: MiniBroker) -> Iterator[MiniProxy]:
    with MiniProxy(minibroker.bootstrap_servers) as started:
        yield started
        assert "Traceback" not in started.log()


@pytest.fixture
def topic(minibroker: MiniBroker, fresh: Callable[[str], str]) -> str:
    return minibroker.create_topic(fresh("proxied"))


def command(proxy: MiniProxy, *words: str) -> subprocess.Popen[str]:
    """Start a command that finds the proxy's control API as the guide says."""
    return subprocess.Popen(
        [sys.executable, "-m", "minibroker", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MINIBROKER_CONTROL": proxy.control_url},
    )


def produce(proxy: MiniProxy, topic: str, client_id: str, count: int) -> None:
    """Produce records, each when the one before is delivered."""
    config = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": client_id, "linger.ms": 0}
    producer = Producer(config)
    for _ in range(count):
        producer.produce(topic, b"x")
        assert producer.flush(PATIENCE_S) == 0
        producer.poll(PAUSE_S)


def test_trace_pairs_requests_that_are_in_flight_with_their_responses(
    proxy: MiniProxy, topic: str, fresh: Callable[[str], str]
) -> None:
    client_id = fresh("traced")
    with command(proxy, "trace", "--client-id", client_id) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == "tracing; press Ctrl-C to end\n"
        produce(proxy, topic, client_id, 3)
        lines: list[str] = []
        while sum(" Produce v" in line for line in lines) < 3:
            lines.append(process.stdout.readline().rstrip())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    # librdkafka may close the connection to its bootstrap server with a Metadata in flight.
    produced_on = next(line.split()[1] for line in lines if " Produce v" in line)
    exchanges = [line for line in lines if line.split()[1] == produced_on and " #" in line]
    assert all(" B -> " in line and line.endswith(" ms") for line in exchanges), "\n".join(lines)
    numbers = [line.partition(" #")[2].split()[0] for line in exchanges if " Produce v" in line]
    assert len(set(numbers)) == 3


def test_judge_finds_a_client_that_ignores_a_throttle_of_the_proxy(
    proxy: MiniProxy, topic: str, fresh: Callable[[str], str]
) -> None:
    """https://github.com/confluentinc/librdkafka/issues/5592."""
    client_id = fresh("judged")
    with proxy.journal, proxy.faults as faults:
        rule = {"throttle_ms": THROTTLE_MS, "mute": False, "first": 1}
        faults.add("throttle", api="Produce", topic=topic, **rule)
        produce(proxy, topic, client_id, 4)
        with command(proxy, "judge", "--client-id", client_id) as process:
            report, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "  obeys-throttle (warning, KIP-219): 1 of 1 situation" in report
    assert f"throttled it for {THROTTLE_MS} ms" in report

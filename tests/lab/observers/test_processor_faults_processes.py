"""Fault rules in brokers of several processes: exact counts, and processes that die."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from minibroker.testing import ControlError, MiniBroker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from tests.broker.network.raw_client import RawClient

HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")
CONNECTIONS = 8
REQUESTS = 20
SETTINGS = {"process.mode": "separate", "num.network.threads": 2, "num.io.threads": 2}


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as started:
        yield started


def beat(broker: MiniBroker) -> list[int]:
    """The errors of the requests of one connection."""
    with RawClient(broker.bootstrap_servers) as client:
        return [client.ask(HEARTBEAT, 4).error_code for _ in range(REQUESTS)]


def test_rule_fires_exactly_as_often_as_it_says_over_all_processes(broker: MiniBroker) -> None:
    with broker.faults as faults, ThreadPoolExecutor(CONNECTIONS) as threads:
        first = faults.add("error", api="Heartbeat", error="NOT_COORDINATOR", first=37)
        every = faults.add("error", api="Heartbeat", error="REBALANCE_IN_PROGRESS", every=10)
        found = list(threads.map(beat, [broker] * CONNECTIONS))
        codes = [code for each in found for code in each]
        rest = CONNECTIONS * REQUESTS - 37
        assert codes.count(ErrorCode.NOT_COORDINATOR) == 37
        assert codes.count(ErrorCode.REBALANCE_IN_PROGRESS) == rest // 10
        assert (first.matches, every.matches) == (CONNECTIONS * REQUESTS, rest)


def wait_restarted(broker: MiniBroker, name: str) -> None:
    """Wait until a process that was killed serves again."""
    while True:
        with suppress(ControlError):  # Until the broker is ready again.
            processes = broker.control.get("v1", "health")["processes"]
            if any(each["restarts"] for each in processes if each["name"] == name):
                return


def test_killed_processor_is_restarted_with_the_rules(broker: MiniBroker) -> None:
    with broker.faults as faults:
        codes = faults.add("error", api="Heartbeat", error="NOT_COORDINATOR")
        for name in ("processor-0", "processor-1"):
            faults.add("kill", api="Metadata", process=name, first=1)
            with RawClient(broker.bootstrap_servers) as client, suppress(ConnectionResetError):
                client.send(MetadataRequest(topics=[]), 12)
                client.receive_frame()  # There is one if the other processor has to send it.
            wait_restarted(broker, name)
        assert set(beat(broker)) == {ErrorCode.NOT_COORDINATOR}
        assert codes.hits == REQUESTS


def test_rules_and_what_they_hold_survive_a_killed_controller(broker: MiniBroker) -> None:
    with broker.faults as faults, RawClient(broker.bootstrap_servers) as client:
        codes = faults.add("error", api="Heartbeat", error="NOT_COORDINATOR", first=REQUESTS + 1)
        assert set(beat(broker)) == {ErrorCode.NOT_COORDINATOR}
        held = faults.add("hold", api="FindCoordinator")
        client.send(FindCoordinatorRequest(key="g"), 3)
        held.wait()
        faults.add("kill", api="Metadata", process="controller", first=1)
        with RawClient(broker.bootstrap_servers) as other:
            other.ask(MetadataRequest(topics=[]), 12)
        wait_restarted(broker, "controller")
        assert beat(broker).count(ErrorCode.NOT_COORDINATOR) == 1
        assert (codes.matches, codes.hits) == (2 * REQUESTS, REQUESTS + 1)
        while not held.held:
            pass
        assert not client.is_readable()
        assert held.release() == 1
        client.receive(FindCoordinatorRequest(key="g"), 3)


def test_response_of_a_worker_killed_after_its_work_is_sent(broker: MiniBroker) -> None:
    with broker.faults as faults:
        faults.add("kill", api="Heartbeat", process="worker-0", at="after", first=1)
        assert len(beat(broker)) == REQUESTS
    wait_restarted(broker, "worker-0")


def test_paused_process_delays_the_request(broker: MiniBroker) -> None:
    with broker.faults as faults:
        faults.add("pause", api="Heartbeat", process="worker-1", pause_ms=50, first=1)
        assert len(beat(broker)) == REQUESTS


def test_clock_jumps_when_a_request_arrives(broker: MiniBroker) -> None:
    before = broker.clock()["offset_ms"]
    with broker.faults as faults:
        faults.add("advance", api="Heartbeat", advance_ms=60_000, first=1)
        beat(broker)
    assert broker.clock()["offset_ms"] - before == pytest.approx(60_000, abs=1)


def test_unknown_process_is_rejected_with_the_known_ones(broker: MiniBroker) -> None:
    with pytest.raises(ControlError, match=r"process: .*worker-1"):
        broker.faults.add("kill", process="worker-7")

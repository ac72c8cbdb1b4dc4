"""A proxy in front of minibroker: cheap, and the same as in front of any cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minibroker.testing import ControlError, MiniBroker, MiniProxy, ProxyNotStarted
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from tests.broker.network.raw_client import RawClient


@pytest.fixture(scope="module")
def proxy() -> Iterator[MiniProxy]:
    with MiniBroker() as broker, MiniProxy(broker.bootstrap_servers) as started:
        yield started


@pytest.fixture
def client(proxy: MiniProxy) -> Iterator[RawClient]:
    with RawClient(proxy.bootstrap_servers, "faulty") as connected:
        yield connected


def test_only_the_proxy_s_addresses_are_named(proxy: MiniProxy, client: RawClient) -> None:
    (broker,) = client.ask(MetadataRequest(topics=[]), 12).brokers
    assert f"{broker.host}:{broker.port}" == proxy.bootstrap_servers
    (broker,) = client.ask(DescribeClusterRequest(), 1).brokers
    assert f"{broker.host}:{broker.port}" == proxy.bootstrap_servers
    (found,) = client.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators
    assert f"{found.host}:{found.port}" == proxy.bootstrap_servers


def test_rules_work_as_on_a_broker(proxy: MiniProxy, client: RawClient) -> None:
    beat = HeartbeatRequest(group_id="g", member_id="m")
    with proxy.faults as faults:
        rule = faults.add("error", api="Heartbeat", group="g", error="NOT_COORDINATOR", first=1)
        assert client.ask(beat, 4).error_code == ErrorCode.NOT_COORDINATOR
        assert client.ask(beat, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (rule.matches, rule.hits) == (2, 1)
        assert rule.wait()["id"] == rule.id
    assert proxy.faults.list() == []
    with pytest.raises(ControlError, match="acts on a broker"):
        proxy.faults.add("kill", process="worker-0")
    assert proxy.log() == ""


def test_journal_works_as_on_a_broker(proxy: MiniProxy) -> None:
    beat = HeartbeatRequest(group_id="j", member_id="m")
    with proxy.journal as journal:
        with RawClient(proxy.bootstrap_servers, "judged") as client, proxy.faults as faults:
            faults.add("observe", api="Heartbeat", group="j")
            client.ask(beat, 4)
        journal.wait_for(kind="connection_closed", client_id="judged")
        journal.assert_in_order(
            {"kind": "connection_opened"},
            {"kind": "request", "api": "Heartbeat", "group": "j"},
            {"kind": "fault", "details": {"action": "observe"}},
            {"kind": "response", "client_id": "judged", "error": "UNKNOWN_MEMBER_ID"},
            {"kind": "connection_closed", "details": {"reason": "client_closed"}},
        )
        (response,) = journal.entries(kind="response", client_id="judged")
        assert response["throttle_time_ms"] == 0
        assert response["stages"]["total"] > 0
        assert response["role"] == "proxy"


def test_proxy_that_cannot_start_says_why() -> None:
    with pytest.raises(ProxyNotStarted, match="no upstream broker answers"):
        MiniProxy("127.0.0.1:1").start()
    with pytest.raises(ProxyNotStarted, match="write host:port"):
        MiniProxy("kafka").start()
    with pytest.raises(RuntimeError, match="not running"):
        assert MiniProxy("kafka").bootstrap_servers

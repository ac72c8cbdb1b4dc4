"""The proxy in front of three nodes of Apache Kafka, with real clients."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.testing import MiniProxy
from system_tests.harness.kafka_cluster import NODES, KafkaCluster
from system_tests.harness.kafka_tools import KafkaTools
from system_tests.harness.waiting import PATIENCE_S, wait_until
from system_tests.laboratory.clients import ConfluentKafka, KafkaPython, PythonClient

pytestmark = [
    pytest.mark.minibroker,
    pytest.mark.java,
    # kafka-python sometimes leaves the socket of a lost connection to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

VALUES = [b"one", b"two", b"three"]


@pytest.fixture(scope="module")
def cluster(kafka_tools: KafkaTools) -> Iterator[KafkaCluster]:
    with tempfile.TemporaryDirectory(prefix="kafka-cluster-") as folder:
        started = KafkaCluster(Path(folder), kafka_tools)
        yield started
        started.stop()


@pytest.fixture(scope="module")
def proxy(cluster: KafkaCluster) -> Iterator[MiniProxy]:
    # One address is enough: the other brokers are discovered.
    with MiniProxy(cluster.node(1).bootstrap_servers) as started:
        wait_for_brokers(started)
        yield started
        assert "Traceback" not in started.log()


def wait_for_brokers(proxy: MiniProxy) -> set[int]:
    """Wait until all brokers are registered, and return their ports at the proxy."""
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})

    def ports() -> set[int]:
        found = {each.port for each in admin.list_topics(timeout=30).brokers.values()}
        return found if len(found) == NODES else set()

    return wait_until(ports, "all brokers to be registered")


def create_topic(proxy: MiniProxy, name: str, *replicas: int) -> str:
    """Create a topic of one partition through the proxy; its leader is the first replica."""
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    topic = NewTopic(name, num_partitions=1, replica_assignment=[list(replicas)])
    admin.create_topics([topic])[name].result(PATIENCE_S)
    return name


@pytest.fixture(params=[ConfluentKafka, KafkaPython], ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest, proxy: MiniProxy) -> PythonClient:
    kind: type[PythonClient] = request.param
    return kind(proxy.bootstrap_servers)


@pytest.fixture
def topic(proxy: MiniProxy, fresh: Callable[[str], str]) -> str:
    """A topic whose leader is not the broker of the first listener."""
    return create_topic(proxy, fresh("proxied"), 3, 1)


def connected_ports() -> set[int]:
    """The ports to which this process is connected, as the kernel lists them."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue  # It was closed in the meantime.
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].partition(":")[2], 16) for row in rows if row[9] in inodes}


def test_records_and_groups_go_through_the_proxy(
    proxy: MiniProxy, client: PythonClient, topic: str, fresh: Callable[[str], str]
) -> None:
    group = fresh("group")
    client.produce(topic, VALUES, idempotent=True)
    assert client.consume(topic, len(VALUES), group) == VALUES
    client.produce(topic, [b"four"], idempotent=False)
    assert client.consume(topic, 1, group) == [b"four"]


def test_clients_connect_to_the_proxy_only(
    proxy: MiniProxy, cluster: KafkaCluster, topic: str
) -> None:
    before = connected_ports()
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "log_level": 0})
    producer.produce(topic, b"one")
    assert producer.flush(PATIENCE_S) == 0
    listeners = wait_for_brokers(proxy)
    nodes = {node.address[1] for node in cluster.nodes}
    assert not listeners & nodes
    assert not (connected_ports() - before) & nodes
    assert connected_ports() & listeners


def test_error_of_a_rule_is_retried(proxy: MiniProxy, client: PythonClient, topic: str) -> None:
    with proxy.faults as faults:
        faults.add("error", api="Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", first=1)
        lost = faults.add("disconnect", api="Produce", topic=topic, at="after", nth=3)
        client.produce(topic, VALUES, idempotent=True)
        lost.wait()
    assert client.consume(topic, len(VALUES)) == VALUES


def test_disconnect_in_the_middle_of_a_fetch_response_loses_no_record(
    proxy: MiniProxy, client: PythonClient, topic: str
) -> None:
    client.produce(topic, VALUES, idempotent=True)
    with proxy.faults as faults:
        faults.add("disconnect", api="Fetch", topic=topic, at="middle", first=2)
        found = client.consume(topic, len(VALUES))
    assert [each for each in found if isinstance(each, bytes)] == VALUES


def test_error_of_one_broker_is_selected_by_its_address(
    proxy: MiniProxy, cluster: KafkaCluster, topic: str
) -> None:
    client = ConfluentKafka(proxy.bootstrap_servers)
    with proxy.faults as faults:
        leader = cluster.node(3).bootstrap_servers
        faults.add("delay", api="Produce", listener=leader, delay_ms=50, first=1)
        client.produce(topic, VALUES, idempotent=True)
    other = proxy.faults.add("observe", api="Produce", listener=cluster.node(1).bootstrap_servers)
    client.produce(topic, VALUES, idempotent=True)
    assert other.hits == 0
    other.remove()


def test_clients_follow_a_new_leader(
    proxy: MiniProxy, cluster: KafkaCluster, fresh: Callable[[str], str]
) -> None:
    topic = create_topic(proxy, fresh("moved"), 2, 3)
    client = ConfluentKafka(proxy.bootstrap_servers)
    client.produce(topic, VALUES, idempotent=True)
    cluster.node(2).kill()
    try:
        client.produce(topic, VALUES, idempotent=True)
        assert client.consume(topic, 2 * len(VALUES)) == VALUES * 2
    finally:
        cluster.restart(2)
        wait_for_brokers(proxy)

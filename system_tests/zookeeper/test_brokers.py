"""Complete brokers with metadata in ZooKeeper: what other programs find there and may change."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from minibroker.testing.failures import BrokerFailed
from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.model import Record
from system_tests.connections.dialling import Client, change_clock, wait_counted
from system_tests.harness.brokers import RunningBroker, StartFailed, start_minibroker
from system_tests.harness.control import ask, processes, wait_ready
from system_tests.harness.waiting import PATIENCE_S, wait_until
from system_tests.harness.zookeeper import ZooKeeper

pytestmark = pytest.mark.minibroker

Start = Callable[..., RunningBroker]
SESSION_MS = "40000"  # much longer than a role takes to come back on a busy machine


@pytest.fixture
def connect(zookeeper_server: ZooKeeper, fresh: Callable[[str], str]) -> str:
    return f"{zookeeper_server.address}/{fresh('kafka')}"


@pytest.fixture
def tree(connect: str) -> Iterator[KazooClient]:
    client = KazooClient(connect)
    assert client.start_async().wait(
        PATIENCE_S
    )  # the broker is to make the chroot, so it is not there
    yield client
    client.stop()
    client.close()


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[RunningBroker] = []

    def begin(data_dir: Path, connect: str, **settings: str) -> RunningBroker:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        given |= {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": SESSION_MS}
        running.append(start_minibroker(data_dir=data_dir, settings=given))
        return running[-1]

    yield begin
    for broker in running:
        broker.forget()


def read(tree: KazooClient, path: str) -> Any:
    return json.loads(tree.get(path)[0])


def test_topics_survive_restart_and_use_kafka_znodes(
    start: Start, connect: str, tree: KazooClient, tmp_path: Path
) -> None:
    broker = start(tmp_path / "data", connect)
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic("orders", 2, configs={"retention.ms": "7200000"})
    client.produce("orders", [Record(b"k", b"v")])
    host, port = broker.address
    registered = read(tree, "/brokers/ids/1")
    assert (registered["host"], registered["port"]) == (host, port)
    assert registered["endpoints"] == [f"PLAINTEXT://{host}:{port}"]
    assert tree.exists("/brokers/ids/1").ephemeralOwner != 0
    assert read(tree, "/controller")["brokerid"] == 1
    assert read(tree, "/cluster/id")["id"] == client.cluster().cluster_id
    assert read(tree, "/brokers/topics/orders")["partitions"] == {"0": [1], "1": [1]}
    assert read(tree, "/config/topics/orders")["config"] == {"retention.ms": "7200000"}
    assert tree.get("/controller_epoch")[0] == b"1"
    client.close()
    assert broker.stop() == 0
    assert tree.get_children("/brokers/ids") == []
    assert not tree.exists("/controller")

    broker = start(tmp_path / "data", connect)
    client = ConfluentClient(broker.bootstrap_servers)
    assert len(client.leaders("orders")) == 2
    assert client.topic_configs("orders")["retention.ms"] == "7200000"
    assert sum(end for _, end in (client.bounds("orders", each) for each in (0, 1))) == 1
    assert tree.get("/controller_epoch")[0] == b"2"
    client.close()
    assert broker.stop() == 0
    assert not (tmp_path / "data" / "config.sqlite").exists()


def test_second_broker_with_same_id_is_rejected(start: Start, connect: str, tmp_path: Path) -> None:
    first = start(tmp_path / "one", connect)
    with pytest.raises(StartFailed, match="another broker uses this config store") as caught:
        start(tmp_path / "two", connect)
    assert "Traceback" not in str(caught.value)
    ConfluentClient(first.bootstrap_servers).cluster()


def test_unreachable_zookeeper_is_reported(start: Start, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"no ZooKeeper answered at 127\.0\.0\.1:1") as caught:
        start(tmp_path / "data", "127.0.0.1:1", zookeeper_connection_timeout_ms="300")
    assert "Traceback" not in str(caught.value)
    assert "did not end" not in str(
        caught.value
    )  # the process that waited for the controller ended at once


def test_killed_controller_is_back_long_before_its_session_ends(
    start: Start, connect: str, tree: KazooClient, tmp_path: Path
) -> None:
    broker = start(tmp_path / "data", connect)
    owner = tree.exists("/controller").ephemeralOwner
    controller = processes(broker)["controller"].pid
    assert controller is not None
    os.kill(controller, signal.SIGKILL)

    def owned_by_another() -> bool:
        found = tree.exists("/controller")
        return found is not None and found.ephemeralOwner != owner

    wait_until(owned_by_another, "the next life to register", within_s=float(SESSION_MS) / 2000)
    wait_ready(broker)
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic("after", 1)
    client.close()


def test_deposed_controller_is_elected_again(
    start: Start, connect: str, tree: KazooClient, tmp_path: Path
) -> None:
    broker = start(tmp_path / "data", connect)
    tree.delete("/controller")
    wait_until(lambda: tree.get("/controller_epoch")[0] == b"2", "another election")
    wait_until(lambda: tree.exists("/controller"), "the controller to register")
    wait_ready(broker)
    with pytest.warns(BrokerFailed, match="/controller was deleted"):
        broker.check()
    assert "Traceback" not in broker.printed()


def test_configs_that_others_write_take_effect_without_any_time_passing(
    start: Start, connect: str, tree: KazooClient, tmp_path: Path
) -> None:
    broker = start(tmp_path / "data", connect)
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic("orders", 1)
    written = {"version": 1, "config": {"retention.ms": "1234567"}}
    change_clock(broker, freeze=True)
    tree.create("/config/topics/orders", json.dumps(written).encode())
    notice = {"version": 2, "entity_path": "topics/orders"}
    tree.create("/config/changes/config_change_", json.dumps(notice).encode(), sequence=True)
    wait_until(
        lambda: client.topic_configs("orders")["retention.ms"] == "1234567",
        "the broker to follow",
    )
    client.close()


def write(tree: KazooClient, path: str, config: dict[str, str]) -> None:
    """Write as other programs do: first the config, then a notification."""
    data = json.dumps({"version": 1, "config": config}).encode()
    if tree.exists(f"/config/{path}"):
        tree.set(f"/config/{path}", data)
    else:
        tree.create(f"/config/{path}", data, makepath=True)
    notice = json.dumps({"version": 2, "entity_path": path}).encode()
    tree.create("/config/changes/config_change_", notice, sequence=True)


def test_sharded_processors_follow_limits_and_report_ignored(
    start: Start, connect: str, tree: KazooClient, tmp_path: Path
) -> None:
    settings = {"acceptor_mode": "sharded", "num_network_threads": "3"}
    broker = start(tmp_path / "data", connect, **settings)

    def wait_limit(wanted: int) -> None:
        path = "/v1/connections"
        wait_until(lambda: ask(broker, "GET", path)["limit"] == wanted, "the broker to follow")

    def fill(number: int, opened: ExitStack) -> bool:
        """Open connections if they are admitted: each processor gets a limit separately."""
        inside = [opened.enter_context(Client(broker.address)) for _ in range(number)]
        if not all(client.answered() for client in inside):
            opened.close()
            wait_counted(broker, 0)
            return False
        return True

    for number in (2, 5, 3):
        write(tree, "brokers/<default>", {"kafka_connections_max": str(number)})
        wait_limit(number)
        with ExitStack() as opened:
            wait_until(partial(fill, number, opened), "all processors to follow")
            for _ in range(5):
                assert opened.enter_context(Client(broker.address)).is_disconnected()
        wait_counted(broker, 0)
    write(tree, "ips/127.0.0.1", {"connection_creation_rate": "0"})
    write(tree, "brokers/<default>", {"kafka_connections_max": "4", "max.connections": "1"})
    wait_limit(4)
    with ExitStack() as opened:
        wait_until(partial(fill, 4, opened), "all processors to follow")
    assert broker.stop() == 0
    warnings = [line for line in broker.printed().splitlines() if "limits have no effect" in line]
    for line, name in zip(warnings, ("the quota of 127.0.0.1", "max.connections"), strict=True):
        assert f'limits="{name}"' in line or f"limits={name} " in line
        assert "set acceptor.mode=single" in line


def test_broker_serves_on_while_zookeeper_is_away(
    own_server: ZooKeeper, start: Start, tmp_path: Path
) -> None:
    broker = start(tmp_path / "data", own_server.address)
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic("orders", 1)
    own_server.kill()
    client.produce("orders", [Record(b"k", b"v")])
    assert client.bounds("orders", 0) == (0, 1)
    own_server.start()
    client.create_topic("more", 1)
    assert all(process.restarts == 0 for process in processes(broker).values())
    client.close()
    assert broker.stop() == 0
    assert "Traceback" not in broker.printed()


def test_unmarked_data_directory_is_adopted_only_by_own_cluster(
    start: Start, connect: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    broker = start(data, connect)
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic("orders", 1)
    client.produce("orders", [Record(b"k", b"v")])
    client.close()
    assert broker.stop() == 0
    mark = (data / "meta.properties").read_text()
    (data / "meta.properties").unlink()  # as earlier versions left the directory
    names = sorted(os.listdir(data))
    with pytest.raises(StartFailed, match=r"has 1 partitions of 1 topics.*--recover-topics"):
        start(data, f"{connect}-other")
    assert sorted(os.listdir(data)) == names
    second = start(tmp_path / "second", f"{connect}-second")
    client = ConfluentClient(second.bootstrap_servers)
    client.create_topic("users", 1)
    client.close()
    assert second.stop() == 0
    with pytest.raises(StartFailed, match="has none of them: use the cluster that"):
        start(data, f"{connect}-second")
    assert sorted(os.listdir(data)) == names
    broker = start(data, connect)
    assert "without meta.properties was adopted" in broker.printed()
    client = ConfluentClient(broker.bootstrap_servers)
    assert [record.value for record in client.read("orders", 0, 0, 1)] == [b"v"]
    client.close()
    assert broker.stop() == 0
    adopted = (data / "meta.properties").read_text()
    assert mark.splitlines()[:3] == adopted.splitlines()[:3]


def test_data_directory_of_another_cluster_is_rejected(
    start: Start, connect: str, tree: KazooClient, tmp_path: Path
) -> None:
    assert start(tmp_path / "data", connect).stop() == 0
    other = f"{connect}-other"
    assert start(tmp_path / "second", other).stop() == 0
    mine = read(tree, "/cluster/id")["id"]
    with pytest.raises(StartFailed, match=f"config store belongs to .*directory to cluster {mine}"):
        start(tmp_path / "data", other)

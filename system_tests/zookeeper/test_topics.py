"""Topics that others make, change and delete in a real ZooKeeper, as clients of a broker see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.model import Record
from system_tests.harness.control import processes
from system_tests.harness.waiting import wait_until
from system_tests.harness.zookeeper import ZooKeeper
from system_tests.zookeeper.test_brokers import Start, connect, read, start, tree

__all__ = ["connect", "start", "tree"]

pytestmark = pytest.mark.minibroker


def node(partitions: int) -> bytes:
    """A topic's data as Kafka's tools of the 2.x line write it."""
    replicas = {str(index): [1] for index in range(partitions)}
    return json.dumps({"version": 1, "partitions": replicas}).encode()


def test_foreign_topics_are_created_grown_and_deleted(
    start: Start, connect: str, tree: KazooClient, tmp_path: Path
) -> None:
    broker = start(tmp_path / "data", connect)
    client = ConfluentClient(broker.bootstrap_servers)
    config = {"version": 1, "config": {"retention.ms": "7200000"}}
    tree.create("/config/topics/theirs", json.dumps(config).encode())
    tree.create("/brokers/topics/theirs", node(1))
    wait_until(lambda: "theirs" in client.topics(), "the topic to be known")
    assert client.topic_configs("theirs")["retention.ms"] == "7200000"
    assert client.produce("theirs", [Record(b"k", b"v")]) == [0]
    made = read(tree, "/brokers/topics/theirs")
    assert (len(made["topic_id"]), made["partitions"]) == (22, {"0": [1]})
    made["partitions"]["1"] = [1]
    tree.set("/brokers/topics/theirs", json.dumps(made).encode())
    wait_until(lambda: len(client.leaders("theirs")) == 2, "a second partition")
    state = "/brokers/topics/theirs/partitions/1/state"
    wait_until(lambda: tree.exists(state), "the broker to publish the leader")
    assert (read(tree, state)["leader"], read(tree, state)["isr"]) == (1, [1])
    tree.create("/admin/delete_topics/theirs")
    wait_until(lambda: "theirs" not in client.topics(), "the topic to be gone")
    wait_until(lambda: not tree.get_children("/admin/delete_topics"), "no request to be left")
    assert tree.get_children("/brokers/topics") == ["__consumer_offsets"]
    assert tree.get_children("/config/topics") == ["__consumer_offsets"]
    client.close()


def test_bad_topic_nodes_are_skipped_and_logged_once(
    start: Start, connect: str, tree: KazooClient, tmp_path: Path
) -> None:
    broker = start(tmp_path / "data", connect)
    client = ConfluentClient(broker.bootstrap_servers)
    tree.create("/brokers/topics/broken", b"{")
    tree.create("/brokers/topics/no name for a topic", node(1))
    tree.create("/admin/delete_topics/nobody-knows-it")
    for number in range(3):
        tree.set("/brokers/topics/broken", b"{")
        tree.create(f"/brokers/topics/good-{number}", node(1))
    good = {f"good-{number}" for number in range(3)}
    wait_until(lambda: good <= client.topics(), "the good ones to be known")
    wait_until(lambda: not tree.get_children("/admin/delete_topics"), "no request to be left")
    client.create_topic("ours", 1)
    assert client.topics() == {"__consumer_offsets", "ours", *good}
    client.close()
    assert broker.stop() == 0
    assert broker.printed().count("/brokers/topics/broken: is not JSON") == 1

    broker = start(tmp_path / "data", connect)
    client = ConfluentClient(broker.bootstrap_servers)
    assert {"good-0", "ours"} <= client.topics()
    client.close()


def test_topic_changes_during_lost_session_are_applied(
    own_server: ZooKeeper, start: Start, tmp_path: Path, fresh: Callable[[str], str]
) -> None:
    connect = f"{own_server.address}/{fresh('kafka')}"
    broker = start(tmp_path / "data", connect)
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic("gone", 1)
    client.create_topic("grown", 1)
    own_server.kill()
    own_server.start()
    # Whether it is back before the broker or after it, nothing may be missed.
    theirs = KazooClient(connect)
    theirs.start()
    theirs.create("/brokers/topics/made", node(2))
    grown = json.loads(theirs.get("/brokers/topics/grown")[0])
    grown["partitions"]["1"] = [1]
    theirs.set("/brokers/topics/grown", json.dumps(grown).encode())
    theirs.create("/admin/delete_topics/gone")
    theirs.stop()
    theirs.close()
    wait_until(
        lambda: client.topics() - {"__consumer_offsets"} == {"grown", "made"},
        "the broker to see all",
    )
    assert len(client.leaders("grown")) == 2
    assert all(process.restarts == 0 for process in processes(broker).values())
    client.close()
    assert broker.stop() == 0
    assert "Traceback" not in broker.printed()

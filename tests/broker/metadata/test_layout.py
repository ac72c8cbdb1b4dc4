"""Formats in the store: Kafka's own, in both directions, and invalid ones."""

from __future__ import annotations

import json

import pytest

from minibroker.broker.metadata import layout
from minibroker.broker.metadata.image import Broker, Topic
from minibroker.broker.metadata.layout import LayoutError, ProducerIdBlock

TOPIC = Topic(
    "orders", bytes(range(16)), tuple(layout.make_partition(index, (1, 2)) for index in range(3))
)


def test_topic_node_is_encoded_as_in_kafka() -> None:
    assert json.loads(layout.encode_topic(TOPIC)) == {
        "version": 3,
        "topic_id": "AAECAwQFBgcICQoLDA0ODw",
        "partitions": {"0": [1, 2], "1": [1, 2], "2": [1, 2]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    node = layout.decode_topic("orders", layout.encode_topic(TOPIC))
    assert node == (TOPIC.topic_id, ((1, 2),) * 3)


def test_broker_node_is_encoded_as_in_kafka() -> None:
    broker = Broker(1, "r1", {"PLAINTEXT": ("box", 9092), "INNER": ("10.0.0.1", 9093)})
    protocols = {"PLAINTEXT": "PLAINTEXT", "INNER": "SSL"}
    assert json.loads(layout.encode_broker(broker, protocols, 1234)) == {
        "version": 5,
        "host": "box",
        "port": 9092,
        "jmx_port": -1,
        "timestamp": "1234",
        "endpoints": ["PLAINTEXT://box:9092", "INNER://10.0.0.1:9093"],
        "listener_security_protocol_map": protocols,
        "features": {},
        "rack": "r1",
    }


def test_other_nodes_are_encoded_as_in_kafka() -> None:
    assert layout.encode_cluster_id("abc") == b'{"version":"1","id":"abc"}'
    assert layout.encode_controller(3, 99) == b'{"version":1,"brokerid":3,"timestamp":"99"}'
    assert layout.encode_config({"a": "b"}) == b'{"version":1,"config":{"a":"b"}}'
    assert layout.encode_producer_ids(3, ProducerIdBlock(1000, 1000)) == (
        b'{"version":1,"broker":3,"block_start":"1000","block_end":"1999"}'
    )


def test_encoded_nodes_decode_to_same_values() -> None:
    assert layout.decode_cluster_id(layout.encode_cluster_id("abc")) == "abc"
    assert layout.decode_config("/c", layout.encode_config({"a": "b"})) == {"a": "b"}
    data = layout.encode_producer_ids(3, ProducerIdBlock(1000, 1000))
    assert layout.decode_producer_ids(data) == 2000
    assert layout.decode_epoch(b"7") == 7


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"topic_id":"AAECAwQFBgcICQoLDA0ODw"}',
        b'{"topic_id":"AAEC","partitions":{"0":[1]}}',
        b'{"topic_id":"AAECAwQFBgcICQoLDA0ODw","partitions":{"1":[1]}}',
        b'{"topic_id":"AAECAwQFBgcICQoLDA0ODw","partitions":{"0":[]}}',
        b'{"topic_id":"AAECAwQFBgcICQoLDA0ODw","partitions":[]}',
        b'{"topic_id":5,"partitions":{"0":[1]}}',
        b'{"partitions":{}}',
        b'{"partitions":{"0":["1"]}}',
        b'{"partitions":{"0":[true]}}',
        b'{"partitions":{"0":[-1]}}',
        b"[" * 100_000,
    ],
)
def test_invalid_topic_node_is_rejected_with_its_path(data: bytes) -> None:
    with pytest.raises(LayoutError, match=r"^/brokers/topics/orders: "):
        layout.decode_topic("orders", data)


def test_other_invalid_nodes_are_rejected_with_their_path() -> None:
    with pytest.raises(LayoutError, match="/cluster/id: has no id"):
        layout.decode_cluster_id(b'{"version":"1"}')
    with pytest.raises(LayoutError, match="/config/topics/a: has no config"):
        layout.decode_config(layout.config_path("topics", "a"), b'{"config":{"a":5}}')
    with pytest.raises(LayoutError, match="/latest_producer_id_block"):
        layout.decode_producer_ids(b'{"block_end":"x"}')
    with pytest.raises(LayoutError, match="/controller_epoch"):
        layout.decode_epoch(b"one")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"version":2,"entity_path":"ips/1.2.3.4"}', ("ips", "1.2.3.4")),
        (b'{"version":2,"entity_path":"users/u/clients/c"}', ("users", "u/clients/c")),
        (b'{"version":1,"entity_type":"topics","entity_name":"t"}', ("topics", "t")),
    ],
)
def test_both_versions_of_a_change_are_read(data: bytes, found: tuple[str, str]) -> None:
    assert layout.decode_config_change("/config/changes/x", data) == found


def test_change_is_written_as_the_second_version() -> None:
    data = layout.encode_config_change("brokers", "<default>")
    assert json.loads(data) == {"version": 2, "entity_path": "brokers/<default>"}
    assert layout.decode_config_change("x", data) == ("brokers", "<default>")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"topics",
        b"[]",
        b"{}",
        b'{"version":3,"entity_path":"a/b"}',
        b'{"version":1}',
        b'{"version":2,"entity_path":"topics"}',
        b'{"version":2,"entity_path":7}',
    ],
)
def test_invalid_config_change_notification_is_rejected(data: bytes) -> None:
    with pytest.raises(LayoutError, match="/config/changes/x"):
        layout.decode_config_change("/config/changes/x", data)


@pytest.mark.parametrize("data", [b"", b"null"])
def test_empty_config_node_sets_no_config(data: bytes) -> None:
    assert layout.decode_config("/config/ips/a", data) == {}

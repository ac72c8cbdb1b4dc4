"""Paths and JSON formats of metadata in the config store, which are Kafka's.

Owns the paths, and encoding and decoding of every node. It must never access a store. Invariant: it
reads what Kafka's tools of ZooKeeper mode write, and they read what it writes, so fields that this
broker does not need are written with Kafka's defaults. Kafka's ``zk/ZkData.scala``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from minibroker.broker.metadata.image import (
    BROKER,
    CLIENT,
    CLIENT_METRICS,
    DELEGATION_TOKEN,
    GROUP,
    IP,
    TOPIC,
    USER,
    Broker,
    PartitionRegistration,
    Topic,
    Uuid,
)
from minibroker_protocol.types import uuid_from_text, uuid_text

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
PRODUCER_IDS = "/latest_producer_id_block"
BROKERS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONFIG_CHANGES = "/config/changes"
DELETE_TOPICS = "/admin/delete_topics"

PERSISTENT_PATHS = (
    "/cluster",
    BROKERS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    *(
        f"/config/{kind}"
        for kind in (TOPIC, BROKER, IP, USER, CLIENT, GROUP, CLIENT_METRICS, DELEGATION_TOKEN)
    ),
)
"""Nodes that exist from the first start on."""

CONFIG_CHANGE = f"{CONFIG_CHANGES}/config_change_"
"""Prefix of sequential nodes that name a changed config."""

FIRST_LEADER_EPOCH = 0
LEADER_EPOCH_MAX = 2**31 - 1


class LayoutError(Exception):
    """Invalid data of a node; the message names the path."""


class ProducerIdBlock(NamedTuple):
    """``size`` unique producer ids, from ``first`` on."""

    first: int
    size: int


class TopicNode(NamedTuple):
    """Content of a topic's node: its id, which tools of Kafka 2.x omit, and the replicas of each
    partition.
    """

    topic_id: Uuid | None
    replicas: tuple[tuple[int, ...], ...]


def broker_path(broker_id: int) -> str:
    """Return the path of a registered broker's ephemeral node."""
    return f"{BROKERS}/{broker_id}"


def topic_path(name: str) -> str:
    """Return the path of a topic's node, which has its id and replicas."""
    return f"{TOPICS}/{name}"


def topic_in(path: str) -> str | None:
    """The name in the path of a topic's own node; None for any other path."""
    above, _, name = path.rpartition("/")
    return name if above == TOPICS else None


def deletion_path(name: str) -> str:
    """Return the path of the node with which a tool requests a topic's deletion."""
    return f"{DELETE_TOPICS}/{name}"


def configs_path(kind: str) -> str:
    """Return the parent path of the configs of all resources of a kind."""
    return f"/config/{kind}"


def config_path(kind: str, name: str) -> str:
    """Return the node of a resource's config; it exists only if something is set."""
    return f"{configs_path(kind)}/{name}"


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _load(path: str, data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path}: is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise LayoutError(f"{path}: is not a JSON object")
    return fields


def encode_cluster_id(cluster_id: str) -> bytes:
    """The data of `CLUSTER_ID`."""
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """The cluster id in the data of `CLUSTER_ID`."""
    found = _load(CLUSTER_ID, data).get("id")
    if not isinstance(found, str) or not found:
        raise LayoutError(f"{CLUSTER_ID}: has no id")
    return found


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    """The data of `CONTROLLER`."""
    return _dump({"version": 1, "brokerid": broker_id, "timestamp": str(timestamp_ms)})


def encode_broker(broker: Broker, protocols: Mapping[str, str], timestamp_ms: int) -> bytes:
    """Encode a broker's node; ``protocols`` maps listeners to security protocols."""
    host, port = next(iter(broker.endpoints.values()))
    fields: dict[str, Any] = {
        "version": 5,
        "host": host,
        "port": port,
        "jmx_port": -1,
        "timestamp": str(timestamp_ms),
        "endpoints": [f"{name}://{host}:{port}" for name, (host, port) in broker.endpoints.items()],
        "listener_security_protocol_map": {name: protocols[name] for name in broker.endpoints},
        "features": {},
    }
    if broker.rack is not None:
        fields["rack"] = broker.rack
    return _dump(fields)


def registration_time(path: str, data: bytes) -> str:
    """When the broker or controller of a node registered; it stays when its addresses change."""
    return str(_load(path, data).get("timestamp"))


def encode_topic(topic: Topic) -> bytes:
    """The data of a topic's node: its id, and every partition's replicas."""
    return _dump({
        "version": 3,
        "topic_id": uuid_text(topic.topic_id),
        "partitions": {str(p.index): list(p.replicas) for p in topic.partitions},
        "adding_replicas": {},
        "removing_replicas": {},
    })  # fmt: skip


def decode_topic(name: str, data: bytes) -> TopicNode:
    """Decode a topic's node."""
    path = topic_path(name)
    fields = _load(path, data)
    try:
        text = fields.get("topic_id")
        topic_id = None if text is None else uuid_from_text(text)
        found = {int(index): tuple(ids) for index, ids in fields["partitions"].items()}
        replicas = tuple(found[index] for index in range(len(found)))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise LayoutError(f"{path}: cannot be read as a topic: {error!r}") from None
    if not replicas:
        raise LayoutError(f"{path}: has no partitions")
    for index, ids in enumerate(replicas):
        if not ids or not all(type(each) is int and each >= 0 for each in ids):
            raise LayoutError(f"{path}: partition {index} has no replicas")
    return TopicNode(topic_id, replicas)


def partitions_path(topic: str) -> str:
    """Return the parent of the nodes of a topic's partitions."""
    return f"{topic_path(topic)}/partitions"


def leader_epochs_path(topic: str) -> str:
    """Return the node of a topic's leader epochs; it exists only if one is not the first.

    It is not Kafka's, which has them in the node ``state`` of each partition.
    """
    return f"{topic_path(topic)}/leader_epochs"


def encode_leader_epochs(topic: Topic) -> bytes:
    """Encode the leader epochs of a topic that are not the first."""
    epochs = {
        str(each.index): each.leader_epoch
        for each in topic.partitions
        if each.leader_epoch != FIRST_LEADER_EPOCH
    }
    return _dump({"version": 1, "leader_epochs": epochs})


def decode_leader_epochs(topic: str, data: bytes) -> dict[int, int]:
    """The leader epochs in a node, by partition index."""
    path = leader_epochs_path(topic)
    try:
        stored = _load(path, data)["leader_epochs"]
        found = {int(index): int(epoch) for index, epoch in stored.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LayoutError(f"{path}: has no leader epochs: {error!r}") from None
    if not all(0 <= epoch <= LEADER_EPOCH_MAX for epoch in found.values()):
        raise LayoutError(f"{path}: has an impossible leader epoch")
    return found


def encode_state(partition: PartitionRegistration, controller_epoch: int) -> bytes:
    """Encode the node ``state`` of a partition: leader and in-sync replicas."""
    return _dump({
        "controller_epoch": controller_epoch,
        "leader": partition.leader,
        "version": 1,
        "leader_epoch": partition.leader_epoch,
        "isr": list(partition.isr),
    })  # fmt: skip


def make_partition(index: int, replicas: tuple[int, ...]) -> PartitionRegistration:
    """Return a partition whose replicas are all in sync; the first one leads."""
    return PartitionRegistration(index, replicas[0], FIRST_LEADER_EPOCH, replicas, replicas)


def encode_config(config: Mapping[str, str]) -> bytes:
    """The data of a config node."""
    return _dump({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """The settings in the data of a config node, which may be empty."""
    if data in (b"", b"null"):
        return {}
    found = _load(path, data).get("config")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise LayoutError(f"{path}: has no config")
    return found


def encode_config_change(kind: str, name: str) -> bytes:
    """Encode a node below `CONFIG_CHANGES`, which names a changed config."""
    return _dump({"version": 2, "entity_path": f"{kind}/{name}"})


def decode_config_change(path: str, data: bytes) -> tuple[str, str]:
    """Decode type and name of such a node, of version 2 or the older 1.

    Levels below a name, such as a user's clients, are part of the name.
    """
    fields = _load(path, data)
    match fields:
        case {"version": 1, "entity_type": str(kind), "entity_name": str(name)}:
            return kind, name
        case {"version": 2, "entity_path": str(entity)} if "/" in entity:
            kind, _, name = entity.partition("/")
            return kind, name
    raise LayoutError(f"{path}: does not name the changed config")


def encode_producer_ids(broker_id: int, block: ProducerIdBlock) -> bytes:
    """The data of `PRODUCER_IDS`: the newest block that was handed out."""
    return _dump({
        "version": 1,
        "broker": broker_id,
        "block_start": str(block.first),
        "block_end": str(block.first + block.size - 1),
    })  # fmt: skip


def decode_producer_ids(data: bytes) -> int:
    """The first producer id after the block in the data of `PRODUCER_IDS`."""
    try:
        return int(_load(PRODUCER_IDS, data)["block_end"]) + 1
    except (KeyError, ValueError, TypeError) as error:
        raise LayoutError(f"{PRODUCER_IDS}: cannot be read: {error!r}") from None


def decode_epoch(data: bytes) -> int:
    """The number in the data of `CONTROLLER_EPOCH`."""
    try:
        return int(data)
    except ValueError:
        raise LayoutError(f"{CONTROLLER_EPOCH}: is not a number") from None

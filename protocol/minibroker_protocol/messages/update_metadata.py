"""UpdateMetadata (API key 6): a controller sends cluster metadata to a broker.

Versions 0 to 8, in the compact encoding from 6 on. Kafka has it up to 3.9, in ZooKeeper mode.

What changed:
  1  request adds endpoints, drops v0_host, v0_port
  2  request adds rack
  3  request adds listener
  4  request adds offline_replicas
  5  request adds broker_epoch, topic_states, drops ungrouped_partition_states and their topic_name
  7  request adds topic_id
  8  request adds is_kraft_controller, type
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID,
    Uuid,
)


class UpdateMetadataPartitionState(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC, versions="0-4")
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    controller_epoch: int = field(INT32)
    leader: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    isr: list[int] = field(array(INT32), means=Meaning.BROKER)
    zk_version: int = field(INT32)
    replicas: list[int] = field(array(INT32), means=Meaning.BROKER)
    offline_replicas: list[int] = field(array(INT32), means=Meaning.BROKER, versions="4+")


class UpdateMetadataTopicState(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="7+")
    partition_states: list[UpdateMetadataPartitionState] = field(
        array(UpdateMetadataPartitionState)
    )


class UpdateMetadataEndpoint(Struct):
    port: int = field(INT32, means=Meaning.PEER_PORT)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    listener: str = field(STRING, versions="3+")
    security_protocol: int = field(INT16)


class UpdateMetadataBroker(Struct):
    id: int = field(INT32, means=Meaning.BROKER)
    v0_host: str = field(STRING, means=Meaning.PEER_HOST, versions="0")
    v0_port: int = field(INT32, means=Meaning.PEER_PORT, versions="0")
    endpoints: list[UpdateMetadataEndpoint] = field(array(UpdateMetadataEndpoint), versions="1+")
    rack: str | None = field(NULLABLE_STRING, versions="2+")


class UpdateMetadataRequest(Message, api_key=6, versions="0-8", flexible="6+"):
    controller_id: int = field(INT32, means=Meaning.BROKER)
    is_kraft_controller: bool = field(BOOLEAN, versions="8+")
    type: int = field(INT8, tagged="8+", tag=0)
    controller_epoch: int = field(INT32)
    broker_epoch: int = field(INT64, versions="5+", default=-1)
    ungrouped_partition_states: list[UpdateMetadataPartitionState] = field(
        array(UpdateMetadataPartitionState), versions="0-4"
    )
    topic_states: list[UpdateMetadataTopicState] = field(
        array(UpdateMetadataTopicState), versions="5+"
    )
    live_brokers: list[UpdateMetadataBroker] = field(array(UpdateMetadataBroker))


class UpdateMetadataResponse(Message, api_key=6, versions="0-8", flexible="6+"):
    error_code: int = field(INT16, means=Meaning.ERROR)

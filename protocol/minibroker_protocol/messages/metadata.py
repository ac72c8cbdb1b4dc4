"""Metadata (API key 3): brokers, topics, and the leaders of partitions.

Versions 0 to 13, in the compact encoding from 9 on.

What changed:
   1  response adds rack, is_internal, controller_id
   2  response adds cluster_id
   3  response adds throttle_time_ms
   4  request adds allow_auto_topic_creation
   5  response adds offline_replicas
   7  response adds leader_epoch
   8  request adds include_cluster_authorized_operations, include_topic_authorized_operations;
      response adds topic_authorized_operations, cluster_authorized_operations
  10  request adds topic_id; response adds topic_id
  11  request drops include_cluster_authorized_operations; response drops
      cluster_authorized_operations
  13  response adds error_code
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, NULLABLE_STRING, STRING, UUID, Uuid


class MetadataRequestTopic(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="10+")
    name: str | None = field(STRING, means=Meaning.TOPIC, nullable="10+")


class MetadataRequest(Message, api_key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = field(array(MetadataRequestTopic), nullable="1+")
    allow_auto_topic_creation: bool = field(BOOLEAN, versions="4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOLEAN, versions="8-10")
    include_topic_authorized_operations: bool = field(BOOLEAN, versions="8+")


class MetadataResponseBroker(Struct):
    node_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.HOST)
    port: int = field(INT32, means=Meaning.PORT)
    rack: str | None = field(NULLABLE_STRING, versions="1+", default=None)


class MetadataResponsePartition(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, versions="7+", default=-1)
    replica_nodes: list[int] = field(array(INT32), means=Meaning.BROKER)
    isr_nodes: list[int] = field(array(INT32), means=Meaning.BROKER)
    offline_replicas: list[int] = field(array(INT32), means=Meaning.BROKER, versions="5+")


class MetadataResponseTopic(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    name: str | None = field(STRING, means=Meaning.TOPIC, nullable="12+")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="10+")
    is_internal: bool = field(BOOLEAN, versions="1+")
    partitions: list[MetadataResponsePartition] = field(array(MetadataResponsePartition))
    topic_authorized_operations: int = field(INT32, versions="8+", default=-0x80000000)


class MetadataResponse(Message, api_key=3, versions="0-13", flexible="9+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="6+", versions="3+")
    brokers: list[MetadataResponseBroker] = field(array(MetadataResponseBroker))
    cluster_id: str | None = field(
        NULLABLE_STRING, means=Meaning.CLUSTER, versions="2+", default=None
    )
    controller_id: int = field(INT32, means=Meaning.BROKER, versions="1+", default=-1)
    topics: list[MetadataResponseTopic] = field(array(MetadataResponseTopic))
    cluster_authorized_operations: int = field(INT32, versions="8-10", default=-0x80000000)
    error_code: int = field(INT16, means=Meaning.ERROR, versions="13+")

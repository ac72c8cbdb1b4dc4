"""StreamsGroupHeartbeat (API key 88): membership of a streams group (KIP-1071).

Versions 0-1, all in the compact encoding. Version 1 has the recovery lag as a long, and asks for
the description of the topology (KIP-1331).
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
    UINT16,
)


class KeyValue(Struct):
    key: str = field(STRING)
    value: str = field(STRING)


class TopicInfo(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    topic_configs: list[KeyValue] = field(array(KeyValue))


class CopartitionGroup(Struct):
    source_topics: list[int] = field(array(INT16))
    source_topic_regex: list[int] = field(array(INT16))
    repartition_source_topics: list[int] = field(array(INT16))


class Subtopology(Struct):
    subtopology_id: str = field(STRING)
    source_topics: list[str] = field(array(STRING), means=Meaning.TOPIC)
    source_topic_regex: list[str] = field(array(STRING), means=Meaning.TOPIC_PATTERN)
    state_changelog_topics: list[TopicInfo] = field(array(TopicInfo))
    repartition_sink_topics: list[str] = field(array(STRING), means=Meaning.TOPIC)
    repartition_source_topics: list[TopicInfo] = field(array(TopicInfo))
    copartition_groups: list[CopartitionGroup] = field(array(CopartitionGroup))


class Topology(Struct):
    epoch: int = field(INT32)
    subtopologies: list[Subtopology] = field(array(Subtopology))


class TaskIds(Struct):
    subtopology_id: str = field(STRING)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class Endpoint(Struct):
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class TaskOffset(Struct):
    subtopology_id: str = field(STRING)
    partition: int = field(INT32, means=Meaning.PARTITION)
    offset: int = field(INT64, means=Meaning.OFFSET)


class StreamsGroupHeartbeatRequest(Message, api_key=88, versions="0-1", flexible="0+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    member_id: str = field(STRING, means=Meaning.MEMBER)
    member_epoch: int = field(INT32, means=Meaning.MEMBER_EPOCH)
    endpoint_information_epoch: int = field(INT32)
    instance_id: str | None = field(NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, default=None)
    rack_id: str | None = field(NULLABLE_STRING, default=None)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    topology: Topology | None = field(Topology, nullable="0+", default=None)
    active_tasks: list[TaskIds] | None = field(array(TaskIds), nullable="0+", default=None)
    standby_tasks: list[TaskIds] | None = field(array(TaskIds), nullable="0+", default=None)
    warmup_tasks: list[TaskIds] | None = field(array(TaskIds), nullable="0+", default=None)
    process_id: str | None = field(NULLABLE_STRING, default=None)
    user_endpoint: Endpoint | None = field(Endpoint, nullable="0+", default=None)
    client_tags: list[KeyValue] | None = field(array(KeyValue), nullable="0+", default=None)
    task_offsets: list[TaskOffset] | None = field(array(TaskOffset), nullable="0+", default=None)
    task_end_offsets: list[TaskOffset] | None = field(
        array(TaskOffset), nullable="0+", default=None
    )
    shutdown_application: bool = field(BOOLEAN)


class Status(Struct):
    status_code: int = field(INT8)
    status_detail: str = field(STRING, means=Meaning.MESSAGE)


class TopicPartition(Struct):
    topic: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class EndpointToPartitions(Struct):
    user_endpoint: Endpoint = field(Endpoint)
    active_partitions: list[TopicPartition] = field(array(TopicPartition))
    standby_partitions: list[TopicPartition] = field(array(TopicPartition))


class StreamsGroupHeartbeatResponse(Message, api_key=88, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    member_id: str = field(STRING, means=Meaning.MEMBER)
    member_epoch: int = field(INT32, means=Meaning.MEMBER_EPOCH)
    heartbeat_interval_ms: int = field(INT32)
    acceptable_recovery_lag_legacy: int = field(INT32, versions="0")
    task_offset_interval_ms: int = field(INT32)
    acceptable_recovery_lag: int = field(INT64, versions="1+", default=-1)
    status: list[Status] | None = field(array(Status), nullable="0+")
    active_tasks: list[TaskIds] | None = field(array(TaskIds), nullable="0+", default=None)
    standby_tasks: list[TaskIds] | None = field(array(TaskIds), nullable="0+", default=None)
    warmup_tasks: list[TaskIds] | None = field(array(TaskIds), nullable="0+", default=None)
    topology_description_required: bool = field(BOOLEAN, versions="1+")
    endpoint_information_epoch: int = field(INT32)
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = field(
        array(EndpointToPartitions), nullable="0+", default=None
    )

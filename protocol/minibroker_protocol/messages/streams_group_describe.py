"""StreamsGroupDescribe (API key 89): state and members of streams groups (KIP-1071).

Versions 0-1, all in the compact encoding. Version 1 adds the description of the topology (KIP-1331)
and the assignor (KIP-1357).
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


class StreamsGroupDescribeRequest(Message, api_key=89, versions="0-1", flexible="0+"):
    group_ids: list[str] = field(array(STRING), means=Meaning.GROUP)
    include_authorized_operations: bool = field(BOOLEAN)
    include_topology_description: bool = field(BOOLEAN, versions="1+")


class KeyValue(Struct):
    key: str = field(STRING)
    value: str = field(STRING)


class TopicInfo(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    topic_configs: list[KeyValue] = field(array(KeyValue))


class Subtopology(Struct):
    subtopology_id: str = field(STRING)
    source_topics: list[str] = field(array(STRING), means=Meaning.TOPIC)
    repartition_sink_topics: list[str] = field(array(STRING), means=Meaning.TOPIC)
    state_changelog_topics: list[TopicInfo] = field(array(TopicInfo))
    repartition_source_topics: list[TopicInfo] = field(array(TopicInfo))


class Topology(Struct):
    epoch: int = field(INT32)
    subtopologies: list[Subtopology] | None = field(array(Subtopology), nullable="0+", default=None)


class Endpoint(Struct):
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class TaskOffset(Struct):
    subtopology_id: str = field(STRING)
    partition: int = field(INT32, means=Meaning.PARTITION)
    offset: int = field(INT64, means=Meaning.OFFSET)


class TaskIds(Struct):
    subtopology_id: str = field(STRING)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class Assignment(Struct):
    active_tasks: list[TaskIds] = field(array(TaskIds))
    standby_tasks: list[TaskIds] = field(array(TaskIds))
    warmup_tasks: list[TaskIds] = field(array(TaskIds))


class Member(Struct):
    member_id: str = field(STRING, means=Meaning.MEMBER)
    member_epoch: int = field(INT32, means=Meaning.MEMBER_EPOCH)
    instance_id: str | None = field(NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, default=None)
    rack_id: str | None = field(NULLABLE_STRING, default=None)
    client_id: str = field(STRING, means=Meaning.CLIENT_ID)
    client_host: str = field(STRING, means=Meaning.CLIENT_HOST)
    topology_epoch: int = field(INT32)
    process_id: str = field(STRING)
    user_endpoint: Endpoint | None = field(Endpoint, nullable="0+", default=None)
    client_tags: list[KeyValue] = field(array(KeyValue))
    task_offsets: list[TaskOffset] = field(array(TaskOffset))
    task_end_offsets: list[TaskOffset] = field(array(TaskOffset))
    assignment: Assignment = field(Assignment)
    target_assignment: Assignment = field(Assignment)
    is_classic: bool = field(BOOLEAN)


class TopologyDescriptionNode(Struct):
    name: str = field(STRING)
    node_type: int = field(INT8)
    source_topics: list[str] = field(array(STRING), means=Meaning.TOPIC)
    sink_topic: str | None = field(NULLABLE_STRING, means=Meaning.TOPIC, default=None)
    stores: list[str] = field(array(STRING))
    successors: list[str] = field(array(STRING))


class TopologyDescriptionSubtopology(Struct):
    subtopology_id: str = field(STRING)
    nodes: list[TopologyDescriptionNode] = field(array(TopologyDescriptionNode))


class TopologyDescriptionGlobalStore(Struct):
    source: TopologyDescriptionNode = field(TopologyDescriptionNode)
    processor: TopologyDescriptionNode = field(TopologyDescriptionNode)


class TopologyDescription(Struct):
    subtopologies: list[TopologyDescriptionSubtopology] = field(
        array(TopologyDescriptionSubtopology)
    )
    global_stores: list[TopologyDescriptionGlobalStore] = field(
        array(TopologyDescriptionGlobalStore)
    )


class DescribedGroup(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    group_id: str = field(STRING, means=Meaning.GROUP)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    topology: Topology | None = field(Topology, nullable="0+", default=None)
    members: list[Member] = field(array(Member))
    authorized_operations: int = field(INT32, default=-0x80000000)
    topology_description: TopologyDescription | None = field(
        TopologyDescription, versions="1+", nullable="1+", default=None
    )
    topology_description_status: int = field(INT8, versions="1+")
    assignor_name: str | None = field(NULLABLE_STRING, versions="1+", default=None)


class StreamsGroupDescribeResponse(Message, api_key=89, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    groups: list[DescribedGroup] = field(array(DescribedGroup))

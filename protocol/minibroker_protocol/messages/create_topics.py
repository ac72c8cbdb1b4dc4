"""CreateTopics (API key 19): make topics.

Versions 2 to 7, in the compact encoding from 5 on.

What changed:
  5  response adds topic_config_error_code, num_partitions, replication_factor, configs
  7  response adds topic_id
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    NULLABLE_STRING,
    STRING,
    UUID,
    Uuid,
)


class CreatableReplicaAssignment(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    broker_ids: list[int] = field(array(INT32), means=Meaning.BROKER)


class CreatableTopicConfig(Struct):
    name: str = field(STRING, means=Meaning.CONFIG)
    value: str | None = field(NULLABLE_STRING)


class CreatableTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    num_partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    assignments: list[CreatableReplicaAssignment] = field(array(CreatableReplicaAssignment))
    configs: list[CreatableTopicConfig] = field(array(CreatableTopicConfig))


class CreateTopicsRequest(Message, api_key=19, versions="2-7", flexible="5+"):
    topics: list[CreatableTopic] = field(array(CreatableTopic))
    timeout_ms: int = field(INT32, default=60000)
    validate_only: bool = field(BOOLEAN)


class CreatableTopicConfigs(Struct):
    name: str = field(STRING, means=Meaning.CONFIG)
    value: str | None = field(NULLABLE_STRING)
    read_only: bool = field(BOOLEAN)
    config_source: int = field(INT8, default=-1)
    is_sensitive: bool = field(BOOLEAN)


class CreatableTopicResult(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="7+")
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    topic_config_error_code: int = field(INT16, means=Meaning.PARTIAL_ERROR, tagged="5+", tag=0)
    num_partitions: int = field(INT32, versions="5+", default=-1)
    replication_factor: int = field(INT16, versions="5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = field(
        array(CreatableTopicConfigs), versions="5+", nullable="0+"
    )


class CreateTopicsResponse(Message, api_key=19, versions="2-7", flexible="5+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="3+")
    topics: list[CreatableTopicResult] = field(array(CreatableTopicResult))

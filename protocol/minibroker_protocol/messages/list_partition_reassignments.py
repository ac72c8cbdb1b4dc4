"""ListPartitionReassignments (API key 46): which partitions are moving.

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING


class ListPartitionReassignmentsTopics(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partition_indexes: list[int] = field(array(INT32), means=Meaning.PARTITION)


class ListPartitionReassignmentsRequest(Message, api_key=46, versions="0", flexible="0+"):
    timeout_ms: int = field(INT32, default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        array(ListPartitionReassignmentsTopics), nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    replicas: list[int] = field(array(INT32), means=Meaning.BROKER)
    adding_replicas: list[int] = field(array(INT32), means=Meaning.BROKER)
    removing_replicas: list[int] = field(array(INT32), means=Meaning.BROKER)


class OngoingTopicReassignment(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[OngoingPartitionReassignment] = field(array(OngoingPartitionReassignment))


class ListPartitionReassignmentsResponse(Message, api_key=46, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    topics: list[OngoingTopicReassignment] = field(array(OngoingTopicReassignment))

"""CreatePartitions (API key 37): add partitions to topics.

Versions 0 to 3, in the compact encoding from 2 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, NULLABLE_STRING, STRING


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = field(array(INT32), means=Meaning.BROKER)


class CreatePartitionsTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    count: int = field(INT32)
    assignments: list[CreatePartitionsAssignment] | None = field(
        array(CreatePartitionsAssignment), nullable="0+"
    )


class CreatePartitionsRequest(Message, api_key=37, versions="0-3", flexible="2+"):
    topics: list[CreatePartitionsTopic] = field(array(CreatePartitionsTopic))
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOLEAN)


class CreatePartitionsTopicResult(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)


class CreatePartitionsResponse(Message, api_key=37, versions="0-3", flexible="2+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    results: list[CreatePartitionsTopicResult] = field(array(CreatePartitionsTopicResult))

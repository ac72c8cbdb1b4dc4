"""DeleteTopics (API key 20): remove topics.

Versions 1 to 6, in the compact encoding from 4 on.

What changed:
  5  response adds error_message
  6  request adds topics, drops topic_names; response adds topic_id
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING, UUID, Uuid


class DeleteTopicState(Struct):
    name: str | None = field(NULLABLE_STRING, means=Meaning.TOPIC, default=None)
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)


class DeleteTopicsRequest(Message, api_key=20, versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = field(array(DeleteTopicState), versions="6+")
    topic_names: list[str] = field(array(STRING), means=Meaning.TOPIC, versions="0-5")
    timeout_ms: int = field(INT32)


class DeletableTopicResult(Struct):
    name: str | None = field(STRING, means=Meaning.TOPIC, nullable="6+")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="6+")
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(
        NULLABLE_STRING, means=Meaning.MESSAGE, versions="5+", default=None
    )


class DeleteTopicsResponse(Message, api_key=20, versions="1-6", flexible="4+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="2+")
    responses: list[DeletableTopicResult] = field(array(DeletableTopicResult))

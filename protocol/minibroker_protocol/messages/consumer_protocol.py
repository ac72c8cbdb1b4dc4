"""Messages of consumers to each other, in JoinGroup and SyncGroup.

These travel as bytes inside a group's metadata and assignments, with their version (int16) before
them; brokers pass them on unread. Versions 0 to 3, none of them in the compact encoding.

What changed:
  1  subscription adds owned_partitions
  2  subscription adds generation_id
  3  subscription adds rack_id
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT32, NULLABLE_BYTES, NULLABLE_STRING, STRING


class TopicPartition(Struct):
    topic: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class ConsumerProtocolSubscription(Message, versions="0-3"):
    topics: list[str] = field(array(STRING), means=Meaning.TOPIC)
    user_data: bytes | None = field(NULLABLE_BYTES, default=None)
    owned_partitions: list[TopicPartition] = field(array(TopicPartition), versions="1+")
    generation_id: int = field(INT32, means=Meaning.GENERATION, versions="2+", default=-1)
    rack_id: str | None = field(NULLABLE_STRING, versions="3+", default=None)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    assigned_partitions: list[TopicPartition] = field(array(TopicPartition))
    user_data: bytes | None = field(NULLABLE_BYTES, default=None)

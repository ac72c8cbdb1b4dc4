"""ControlledShutdown (API key 7): a broker announces its shutdown to the controller.

Versions 0 to 3, in the compact encoding from 3 on. Kafka has it up to 3.9, in ZooKeeper mode.
Version 0 of the request has a header without a client id.

What changed:
  2  request adds broker_epoch
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, STRING


class ControlledShutdownRequest(Message, api_key=7, versions="0-3", flexible="3+"):
    broker_id: int = field(INT32, means=Meaning.BROKER)
    broker_epoch: int = field(INT64, versions="2+", default=-1)


class RemainingPartition(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partition_index: int = field(INT32, means=Meaning.PARTITION)


class ControlledShutdownResponse(Message, api_key=7, versions="0-3", flexible="3+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    remaining_partitions: list[RemainingPartition] = field(array(RemainingPartition))

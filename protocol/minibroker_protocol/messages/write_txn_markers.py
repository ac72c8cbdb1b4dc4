"""WriteTxnMarkers (API key 27): write a transaction's outcome into its partitions.

Versions 1 to 2, all in the compact encoding.

What changed:
  2  request adds transaction_version
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT8, INT16, INT32, INT64, STRING


class WritableTxnMarkerTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partition_indexes: list[int] = field(array(INT32), means=Meaning.PARTITION)


class WritableTxnMarker(Struct):
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID)
    producer_epoch: int = field(INT16, means=Meaning.PRODUCER_EPOCH)
    transaction_result: bool = field(BOOLEAN)
    topics: list[WritableTxnMarkerTopic] = field(array(WritableTxnMarkerTopic))
    coordinator_epoch: int = field(INT32)
    transaction_version: int = field(INT8, versions="2+")


class WriteTxnMarkersRequest(Message, api_key=27, versions="1-2", flexible="0+"):
    markers: list[WritableTxnMarker] = field(array(WritableTxnMarker))


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)


class WritableTxnMarkerTopicResult(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[WritableTxnMarkerPartitionResult] = field(
        array(WritableTxnMarkerPartitionResult)
    )


class WritableTxnMarkerResult(Struct):
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID)
    topics: list[WritableTxnMarkerTopicResult] = field(array(WritableTxnMarkerTopicResult))


class WriteTxnMarkersResponse(Message, api_key=27, versions="1-2", flexible="0+"):
    markers: list[WritableTxnMarkerResult] = field(array(WritableTxnMarkerResult))

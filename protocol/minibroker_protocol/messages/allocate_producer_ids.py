"""AllocateProducerIds (API key 67): a broker gets a block of producer ids.

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import INT16, INT32, INT64


class AllocateProducerIdsRequest(Message, api_key=67, versions="0", flexible="0+"):
    broker_id: int = field(INT32, means=Meaning.BROKER)
    broker_epoch: int = field(INT64, default=-1)


class AllocateProducerIdsResponse(Message, api_key=67, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    producer_id_start: int = field(INT64, means=Meaning.PRODUCER_ID)
    producer_id_len: int = field(INT32)

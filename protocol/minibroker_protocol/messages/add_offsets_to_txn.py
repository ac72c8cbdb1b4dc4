"""AddOffsetsToTxn (API key 25): make a group's offsets part of a transaction.

Versions 0 to 4, in the compact encoding from 3 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import INT16, INT32, INT64, STRING


class AddOffsetsToTxnRequest(Message, api_key=25, versions="0-4", flexible="3+"):
    transactional_id: str = field(STRING, means=Meaning.TRANSACTIONAL_ID)
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID)
    producer_epoch: int = field(INT16, means=Meaning.PRODUCER_EPOCH)
    group_id: str = field(STRING, means=Meaning.GROUP)


class AddOffsetsToTxnResponse(Message, api_key=25, versions="0-4", flexible="3+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    error_code: int = field(INT16, means=Meaning.ERROR)

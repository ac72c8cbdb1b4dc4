"""EndTxn (API key 26): commit or abort a transaction.

Versions 0 to 5, in the compact encoding from 3 on.

What changed:
  5  response adds producer_id, producer_epoch
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, INT64, STRING


class EndTxnRequest(Message, api_key=26, versions="0-5", flexible="3+"):
    transactional_id: str = field(STRING, means=Meaning.TRANSACTIONAL_ID)
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID)
    producer_epoch: int = field(INT16, means=Meaning.PRODUCER_EPOCH)
    committed: bool = field(BOOLEAN)


class EndTxnResponse(Message, api_key=26, versions="0-5", flexible="3+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    error_code: int = field(INT16, means=Meaning.ERROR)
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID, versions="5+", default=-1)
    producer_epoch: int = field(INT16, means=Meaning.PRODUCER_EPOCH, versions="5+", default=-1)

"""ExpireDelegationToken (API key 40): make a token end sooner.

Versions 1 to 2, in the compact encoding from 2 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import BYTES, INT16, INT32, INT64


class ExpireDelegationTokenRequest(Message, api_key=40, versions="1-2", flexible="2+"):
    hmac: bytes = field(BYTES, secret=True)
    expiry_time_period_ms: int = field(INT64)


class ExpireDelegationTokenResponse(Message, api_key=40, versions="1-2", flexible="2+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    expiry_timestamp_ms: int = field(INT64)
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)

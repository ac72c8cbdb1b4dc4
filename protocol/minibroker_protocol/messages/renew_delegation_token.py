"""RenewDelegationToken (API key 39): make a token last longer.

Versions 1 to 2, in the compact encoding from 2 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import BYTES, INT16, INT32, INT64


class RenewDelegationTokenRequest(Message, api_key=39, versions="1-2", flexible="2+"):
    hmac: bytes = field(BYTES, secret=True)
    renew_period_ms: int = field(INT64)


class RenewDelegationTokenResponse(Message, api_key=39, versions="1-2", flexible="2+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    expiry_timestamp_ms: int = field(INT64)
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)

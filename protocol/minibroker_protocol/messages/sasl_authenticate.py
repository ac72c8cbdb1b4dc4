"""SaslAuthenticate (API key 36): one step of a SASL exchange.

Versions 0 to 2, in the compact encoding from 2 on.

What changed:
  1  response adds session_lifetime_ms
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import BYTES, INT16, INT64, NULLABLE_STRING


class SaslAuthenticateRequest(Message, api_key=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = field(BYTES, secret=True)


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible="2+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    auth_bytes: bytes = field(BYTES, secret=True)
    session_lifetime_ms: int = field(INT64, versions="1+")

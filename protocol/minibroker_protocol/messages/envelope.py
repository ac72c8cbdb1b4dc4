"""Envelope (API key 58): a request forwarded between brokers.

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import BYTES, INT16, NULLABLE_BYTES


class EnvelopeRequest(Message, api_key=58, versions="0", flexible="0+"):
    request_data: bytes = field(BYTES, secret=True)
    request_principal: bytes | None = field(NULLABLE_BYTES)
    client_host_address: bytes = field(BYTES, means=Meaning.CLIENT_HOST)


class EnvelopeResponse(Message, api_key=58, versions="0", flexible="0+"):
    response_data: bytes | None = field(NULLABLE_BYTES, secret=True, default=None)
    error_code: int = field(INT16, means=Meaning.ERROR)

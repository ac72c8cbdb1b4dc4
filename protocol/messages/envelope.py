"""Envelope (API key 58): a request forwarded between brokers.

Version 0, in the compact encoding.
"""

from __future__ import annotations

from protocol.schema import Message, field
from protocol.types import BYTES, INT16, NULLABLE_BYTES


class EnvelopeRequest(Message, api_key=58, versions="0", flexible="0+"):
    request_data: bytes = field(BYTES)
    request_principal: bytes | None = field(NULLABLE_BYTES)
    client_host_address: bytes = field(BYTES)


class EnvelopeResponse(Message, api_key=58, versions="0", flexible="0+"):
    response_data: bytes | None = field(NULLABLE_BYTES, default=None)
    error_code: int = field(INT16)

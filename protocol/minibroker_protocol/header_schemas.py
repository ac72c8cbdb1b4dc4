"""The schemas of request and response headers, for the dissector.

Owns the declarations. It must never know how a broker reads headers: `headers` does so by hand.
Invariant: both read the same bytes alike. Kafka's ``RequestHeader.json``, ``ResponseHeader.json``.
"""

from __future__ import annotations

from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import INT16, INT32, PLAIN_NULLABLE_STRING


class RequestHeaderSchema(Message, versions="0-2", flexible="2+"):
    """Version 2 goes before requests in the compact encoding, version 1 before all others but
    version 0 of ControlledShutdown.
    """

    request_api_key: int = field(INT16)
    request_api_version: int = field(INT16)
    correlation_id: int = field(INT32)
    client_id: str | None = field(PLAIN_NULLABLE_STRING, versions="1+", default="")


class ResponseHeaderSchema(Message, versions="0-1", flexible="1+"):
    """Version 1 goes before responses in the compact encoding."""

    correlation_id: int = field(INT32)

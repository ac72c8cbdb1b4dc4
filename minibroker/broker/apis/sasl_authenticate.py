"""SaslAuthenticate (36): a step of a SASL exchange; rejected outside of authentication.

Versions 0-2. `network.sasl` handles the request while a client authenticates or re-authenticates,
before any API reads it. Any other request arrives here and gets ILLEGAL_SASL_STATE. Invariant: the
API never changes the principal of a connection. In Kafka:
``KafkaApis.handleSaslAuthenticateRequest``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import Context, without_owner
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from minibroker_protocol.registry import ApiKey


def answer(_ctx: Context, _request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Reject the request with ILLEGAL_SASL_STATE."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


API = without_owner(
    answer,
    key=ApiKey.SASL_AUTHENTICATE,
    versions=(0, 2),
    requires=(),
)

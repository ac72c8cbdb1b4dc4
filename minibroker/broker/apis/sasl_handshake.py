"""SaslHandshake (17): choose a SASL mechanism; rejected outside of authentication.

Versions 0-1. `network.sasl` handles the request while a client authenticates or re-authenticates,
before any API reads it. Any other request arrives here and gets ILLEGAL_SASL_STATE. Invariant: the
API never changes the principal of a connection. In Kafka: ``KafkaApis.handleSaslHandshakeRequest``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import Context, without_owner
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from minibroker_protocol.registry import ApiKey


def answer(_ctx: Context, _request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Reject the request with ILLEGAL_SASL_STATE."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


API = without_owner(
    answer,
    key=ApiKey.SASL_HANDSHAKE,
    versions=(0, 1),
    requires=(),
    left_out=(
        "the mechanism GSSAPI: Kerberos needs a realm; PLAIN, SCRAM and OAUTHBEARER are served",
    ),
)

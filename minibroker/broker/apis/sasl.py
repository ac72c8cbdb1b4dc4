"""SaslHandshake and SaslAuthenticate outside of authentication, where they are rejected.

`network.sasl` handles them while a client authenticates or re-authenticates, before any API reads
them. Any other request arrives here and gets ILLEGAL_SASL_STATE. Invariant: neither API changes the
principal of a connection. In Kafka: ``KafkaApis``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import Context, without_owner
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from minibroker_protocol.registry import ApiKey

# SaslHandshake (17) -------------------------------------------------------------------------------
#
# Choose a SASL mechanism; rejected outside of authentication. Versions 0-1. `network.sasl` handles
# the request while a client authenticates or re-authenticates, before any API reads it. Any other
# request arrives here and gets ILLEGAL_SASL_STATE. Invariant: the API never changes the principal
# of a connection. In Kafka: ``KafkaApis.handleSaslHandshakeRequest``.


def _reject_handshake(_ctx: Context, _request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


SASL_HANDSHAKE = without_owner(
    _reject_handshake,
    key=ApiKey.SASL_HANDSHAKE,
    versions=(0, 1),
    requires=(),
    left_out=(
        "the mechanism GSSAPI: Kerberos needs a realm; PLAIN, SCRAM and OAUTHBEARER are served",
    ),
)


# SaslAuthenticate (36) ----------------------------------------------------------------------------
#
# A step of a SASL exchange; rejected outside of authentication. Versions 0-2. `network.sasl`
# handles the request while a client authenticates or re-authenticates, before any API reads it. Any
# other request arrives here and gets ILLEGAL_SASL_STATE. Invariant: the API never changes the
# principal of a connection. In Kafka: ``KafkaApis.handleSaslAuthenticateRequest``.


def _reject_authenticate(
    _ctx: Context, _request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


SASL_AUTHENTICATE = without_owner(
    _reject_authenticate,
    key=ApiKey.SASL_AUTHENTICATE,
    versions=(0, 2),
    requires=(),
)


APIS = (
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
)

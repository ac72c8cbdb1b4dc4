"""SaslHandshake (17): choose a SASL mechanism; rejected outside of authentication.

Versions 0-1. `network.sasl` handles the request while a client authenticates or re-authenticates,
before any API reads it. Any other request arrives here and gets ILLEGAL_SASL_STATE. Invariant: the
API never changes the principal of a connection. In Kafka: ``KafkaApis.handleSaslHandshakeRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.base import Api, Context, Owner
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from minibroker_protocol.registry import ApiKey


def split(_ctx: Context, _request: SaslHandshakeRequest) -> Mapping[Owner, None]:
    """No owner is involved."""
    return {}


def merge(
    _ctx: Context, _request: SaslHandshakeRequest, _replies: Mapping[Owner, None]
) -> SaslHandshakeResponse:
    """Reject the request with ILLEGAL_SASL_STATE."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


API: Api[SaslHandshakeRequest, None, None, SaslHandshakeResponse] = Api(
    key=ApiKey.SASL_HANDSHAKE,
    versions=(0, 1),
    split=split,
    merge=merge,
    left_out=(
        "the mechanism GSSAPI: Kerberos needs a realm; PLAIN, SCRAM and OAUTHBEARER are served",
    ),
)

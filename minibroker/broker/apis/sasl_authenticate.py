"""SaslAuthenticate (36): a step of a SASL exchange; rejected outside of authentication.

Versions 0-2. `network.sasl` handles the request while a client authenticates or re-authenticates,
before any API reads it. Any other request arrives here and gets ILLEGAL_SASL_STATE. Invariant: the
API never changes the principal of a connection. In Kafka:
``KafkaApis.handleSaslAuthenticateRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.base import Api, Context, Owner
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from minibroker_protocol.registry import ApiKey


def split(_ctx: Context, _request: SaslAuthenticateRequest) -> Mapping[Owner, None]:
    """No owner is involved."""
    return {}


def merge(
    _ctx: Context, _request: SaslAuthenticateRequest, _replies: Mapping[Owner, None]
) -> SaslAuthenticateResponse:
    """Reject the request with ILLEGAL_SASL_STATE."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


API: Api[SaslAuthenticateRequest, None, None, SaslAuthenticateResponse] = Api(
    key=ApiKey.SASL_AUTHENTICATE, versions=(0, 2), split=split, merge=merge
)

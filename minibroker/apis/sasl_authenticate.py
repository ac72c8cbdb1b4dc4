"""SaslAuthenticate (36): a step of a SASL exchange, which is refused wherever it comes by here.

Versions 0-2.  A client that has yet to prove who it is, or does so again, is answered by
`network.sasl` before any API sees its bytes; any other has nothing to prove, and ILLEGAL_SASL_STATE
says so.  The invariant: nothing here changes who anybody is.  Echoes
``KafkaApis.handleSaslAuthenticateRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.apis.base import Api, Context, Owner
from protocol.errors import ErrorCode
from protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from protocol.registry import ApiKey


def split(_ctx: Context, _request: SaslAuthenticateRequest) -> Mapping[Owner, None]:
    """Nobody needs to be asked."""
    return {}


def merge(
    _ctx: Context, _request: SaslAuthenticateRequest, _replies: Mapping[Owner, None]
) -> SaslAuthenticateResponse:
    """There is nothing to prove."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


API: Api[SaslAuthenticateRequest, None, None, SaslAuthenticateResponse] = Api(
    key=ApiKey.SASL_AUTHENTICATE, versions=(0, 2), split=split, merge=merge
)

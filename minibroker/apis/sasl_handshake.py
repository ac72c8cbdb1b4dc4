"""SaslHandshake (17): choose a SASL mechanism, which is refused wherever it comes by here.

Versions 0-1.  A client that has yet to prove who it is, or may prove it again, is answered by
`network.sasl` before any API sees its bytes; any other has nothing to prove, and ILLEGAL_SASL_STATE
says so.  The invariant: nothing here changes who anybody is.  Echoes
``KafkaApis.handleSaslHandshakeRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.apis.base import Api, Context, Owner
from protocol.errors import ErrorCode
from protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from protocol.registry import ApiKey


def split(_ctx: Context, _request: SaslHandshakeRequest) -> Mapping[Owner, None]:
    """Nobody needs to be asked."""
    return {}


def merge(
    _ctx: Context, _request: SaslHandshakeRequest, _replies: Mapping[Owner, None]
) -> SaslHandshakeResponse:
    """There is nothing to choose."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


API: Api[SaslHandshakeRequest, None, None, SaslHandshakeResponse] = Api(
    key=ApiKey.SASL_HANDSHAKE,
    versions=(0, 1),
    split=split,
    merge=merge,
    left_out=(
        "the mechanism GSSAPI: Kerberos needs a realm; PLAIN, SCRAM and OAUTHBEARER are served",
        "delegation tokens: SCRAM with tokenauth=true is refused",
    ),
)

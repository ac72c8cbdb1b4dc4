"""ExpireDelegationToken (40): set the end of a token by its HMAC (KIP-48).

Versions 1-2. Only the owner and the renewers may do this. A negative period removes the token at
once. In Kafka: ``DelegationTokenControlManager.expireDelegationToken``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.base import CONTROLLER, Api, Context, ControllerScope, Owner
from minibroker.broker.apis.delegation_tokens import NO_TIMESTAMP, change_token, requests_problem
from minibroker.broker.metadata.delegation_tokens import TokenChange, plan_expiry
from minibroker.broker.security.delegation_token import decode_token
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from minibroker_protocol.registry import ApiKey

ExpireDelegationTokenReply = tuple[ErrorCode, int]
"""The error, and the new expiry in epoch milliseconds."""


def split(ctx: Context, request: ExpireDelegationTokenRequest) -> Mapping[Owner, TokenChange]:
    """Send the request to the controller if this connection may send it."""
    if requests_problem(ctx):
        return {}
    principal, period_ms = ctx.caller.principal, request.expiry_time_period_ms
    return {CONTROLLER: TokenChange(bytes(request.hmac), principal, ctx.wall_ms, period_ms)}


async def execute_at_controller(
    scope: ControllerScope, part: TokenChange
) -> ExpireDelegationTokenReply:
    """Expire the token, and wait until every process knows it."""
    error, change = await change_token(scope, lambda image, key: plan_expiry(image, key, part))
    if change is None:
        return error, 0
    token = decode_token(change.name, change.config)
    return error, part.now_ms if token is None else token.expires_ms


def merge(
    ctx: Context,
    _request: ExpireDelegationTokenRequest,
    replies: Mapping[Owner, ExpireDelegationTokenReply],
) -> ExpireDelegationTokenResponse:
    """The new expiry, or the error."""
    error, expires_ms = requests_problem(ctx), NO_TIMESTAMP
    if not error:
        error, expires_ms = replies[CONTROLLER]
    return ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=expires_ms)


API: Api[
    ExpireDelegationTokenRequest,
    TokenChange,
    ExpireDelegationTokenReply,
    ExpireDelegationTokenResponse,
] = Api(
    key=ApiKey.EXPIRE_DELEGATION_TOKEN,
    versions=(1, 2),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
)

"""ExpireDelegationToken (40): set the end of a token by its HMAC (KIP-48).

Versions 1-2. Only the owner and the renewers may do this. A negative period removes the token at
once. In Kafka: ``DelegationTokenControlManager.expireDelegationToken``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import Context, ControllerRequest, ControllerScope, at_controller
from minibroker.broker.apis.delegation_tokens import NO_TIMESTAMP, change_expiry, requests_problem
from minibroker.broker.metadata.delegation_tokens import TokenChange, plan_expiry
from minibroker_protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from minibroker_protocol.registry import ApiKey


async def execute(
    scope: ControllerScope, request: ControllerRequest[ExpireDelegationTokenRequest]
) -> ExpireDelegationTokenResponse:
    """Expire the token, and wait until every process knows it."""
    message, now_ms = request.message, request.wall_ms
    change = TokenChange(
        message.hmac, request.caller.principal, now_ms, message.expiry_time_period_ms
    )
    error, expires_ms = await change_expiry(
        scope, now_ms, lambda image, key: plan_expiry(image, key, change)
    )
    return ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=expires_ms)


def reject(
    ctx: Context, _request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse | None:
    """The error of a connection that may not send requests about tokens."""
    problem = requests_problem(ctx)
    if not problem:
        return None
    return ExpireDelegationTokenResponse(error_code=problem, expiry_timestamp_ms=NO_TIMESTAMP)


API = at_controller(
    execute,
    key=ApiKey.EXPIRE_DELEGATION_TOKEN,
    versions=(1, 2),
    requires=(),
    reject=reject,
)

"""Common part of the four requests about delegation tokens.

Decides whether a connection may send them at all, and makes the changes of tokens at the
controller. Invariant: a connection without authentication, or one that was authenticated with a
token, can neither see nor change tokens. In Kafka: ``KafkaApis.allowTokenRequests``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minibroker.broker.apis.base import Context, ControllerScope
from minibroker.broker.metadata.image import ChangeRejected, ConfigChanged, Image
from minibroker.broker.security.delegation_token import decode_token
from minibroker.broker.security.principal import ANONYMOUS
from minibroker.broker.settings import Settings
from minibroker.broker.settings.definitions import DELEGATION_TOKEN_SECRET_KEY
from minibroker_protocol.errors import ErrorCode

NO_TIMESTAMP: Final = -1
"""Time in a response to a request that is not allowed."""

PlanToken = Callable[[Image, str], ConfigChanged | ChangeRejected]
"""A change of tokens, given the image and the secret key."""


def requests_problem(ctx: Context) -> ErrorCode:
    """Why this connection may not send requests about tokens, or NONE."""
    caller = ctx.caller
    protocol = ctx.settings.security_protocol(caller.listener)
    unproven = protocol == "PLAINTEXT" or (protocol == "SSL" and caller.principal == ANONYMOUS)
    if caller.by_token or unproven:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return ErrorCode.NONE


def secret_key(settings: Settings) -> str:
    """The key of the secrets of tokens; empty if tokens are disabled."""
    return settings[DELEGATION_TOKEN_SECRET_KEY] or ""


async def change_token(
    scope: ControllerScope, plan: PlanToken
) -> tuple[ErrorCode, ConfigChanged | None]:
    """Carry out a change of one token, and wait until every process has applied it.

    Returns the error, and the stored token.
    """
    key = secret_key(scope.settings)
    if not key:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, None
    planned: list[ConfigChanged | ChangeRejected] = []

    def plan_with_key(image: Image) -> list[ConfigChanged | ChangeRejected]:
        planned[:] = [plan(image, key)]
        return planned

    outcome = await scope.cluster.change_tokens(plan_with_key)
    await scope.publish(outcome.updates)
    for rejection in outcome.rejections:
        if rejection is not None:
            return rejection.code, None
    [change] = planned
    assert isinstance(change, ConfigChanged)
    return ErrorCode.NONE, change


async def change_expiry(
    scope: ControllerScope, now_ms: int, plan: PlanToken
) -> tuple[ErrorCode, int]:
    """Carry out a change of a token's expiry; return the error, and the new expiry or 0."""
    error, change = await change_token(scope, plan)
    if change is None:
        return error, 0
    token = decode_token(change.name, change.config)
    return error, now_ms if token is None else token.expires_ms

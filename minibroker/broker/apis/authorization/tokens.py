"""Authorization checks of requests about delegation tokens.

Defines the rights for tokens of others: CREATE_TOKENS and DESCRIBE_TOKENS on their owner, and
DESCRIBE on a token. Invariant: owners and renewers need no right for their own tokens. Kafka has
these checks in ``KafkaApis`` and ``DelegationTokenManager.filterToken``.
"""

from __future__ import annotations

from typing import Any

from minibroker.broker.apis import create_delegation_token as creation
from minibroker.broker.apis.authorization.authorizer_check import Finish
from minibroker.broker.apis.base import Context, Denied
from minibroker.broker.apis.delegation_tokens import requests_problem
from minibroker.broker.security.acl import Operation, Resource
from minibroker.broker.security.principal import Principal
from minibroker_protocol.errors import ErrorCode


def create_delegation_token(ctx: Context, request: Any) -> Denied | None:
    """Require CREATE_TOKENS on the owner if that is not the caller."""
    owner = creation.owner_of(ctx, request)
    if requests_problem(ctx) or owner == ctx.caller.principal:
        return None
    if ctx.allows(Operation.CREATE_TOKENS, Resource.USER, str(owner)):
        return None
    error = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    return Denied(creation.refusal(ctx, request, error))


def describe_delegation_token(ctx: Context, _request: Any) -> Finish:
    """Omit the tokens of others that the caller may not describe."""

    def is_visible(token: Any) -> bool:
        owner = Principal(token.principal_type, token.principal_name)
        renewers = [Principal(one.principal_type, one.principal_name) for one in token.renewers]
        return (
            ctx.caller.principal in (owner, *renewers)
            or ctx.allows(
                Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.token_id, quietly=True
            )
            or ctx.allows(Operation.DESCRIBE_TOKENS, Resource.USER, str(owner), quietly=True)
        )

    def finish(response: Any) -> Any:
        response.tokens = [token for token in response.tokens if is_visible(token)]
        return response

    return finish

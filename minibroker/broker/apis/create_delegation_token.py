"""CreateDelegationToken (38): create a token that its owner can authenticate with (KIP-48).

Versions 1-3. From version 3 on a token can be created for another owner. The token's secret is the
HMAC in the response. Renewers must be of type User. A lifetime that is not positive, or longer than
``delegation.token.max.lifetime.ms``, is replaced by that. In Kafka:
``DelegationTokenControlManager.createDelegationToken``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import CONTROLLER, Api, Context, ControllerScope, Owner
from minibroker.broker.apis.delegation_tokens import (
    NO_TIMESTAMP,
    change_token,
    requests_problem,
    secret_key,
)
from minibroker.broker.metadata.delegation_tokens import plan_token, token_lifetimes
from minibroker.broker.security.delegation_token import DelegationToken, issue, token_hmac
from minibroker.broker.security.principal import USER, Principal
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from minibroker_protocol.registry import ApiKey


class CreateDelegationTokenPart(NamedTuple):
    """A requested token; the time is that of the request."""

    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    max_lifetime_ms: int
    now_ms: int


CreateDelegationTokenReply = tuple[ErrorCode, DelegationToken | None]
"""The error, and the created token."""


def split(
    ctx: Context, request: CreateDelegationTokenRequest
) -> Mapping[Owner, CreateDelegationTokenPart]:
    """Send a valid request to the controller."""
    if _problem(ctx, request):
        return {}
    renewers = tuple(Principal(one.principal_type, one.principal_name) for one in request.renewers)
    part = CreateDelegationTokenPart(
        owner_of(ctx, request),
        ctx.caller.principal,
        renewers,
        request.max_lifetime_ms,
        ctx.wall_ms,
    )
    return {CONTROLLER: part}


def owner_of(ctx: Context, request: CreateDelegationTokenRequest) -> Principal:
    """The owner of the requested token: by default the caller."""
    if not request.owner_principal_name:
        return ctx.caller.principal
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def _problem(ctx: Context, request: CreateDelegationTokenRequest) -> ErrorCode:
    problem = requests_problem(ctx)
    if not problem and any(one.principal_type != USER for one in request.renewers):
        return ErrorCode.INVALID_PRINCIPAL_TYPE
    return problem


async def execute_at_controller(
    scope: ControllerScope, part: CreateDelegationTokenPart
) -> CreateDelegationTokenReply:
    """Store the token, and wait until every process knows it."""
    token = issue(
        scope.cluster.new_token_id(),
        part.owner,
        part.requester,
        part.renewers,
        now_ms=part.now_ms,
        requested_ms=part.max_lifetime_ms,
        lifetimes=token_lifetimes(scope.settings),
    )
    error, _ = await change_token(scope, lambda image, _key: plan_token(image, token))
    return error, None if error else token


def merge(
    ctx: Context,
    request: CreateDelegationTokenRequest,
    replies: Mapping[Owner, CreateDelegationTokenReply],
) -> CreateDelegationTokenResponse:
    """The token with its secret, or the error."""
    problem = _problem(ctx, request)
    if problem:
        return refusal(ctx, request, problem)
    error, token = replies[CONTROLLER]
    response = refusal(ctx, request, error)
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = 0
    if token is not None:
        response.issue_timestamp_ms = token.issued_ms
        response.expiry_timestamp_ms = token.expires_ms
        response.max_timestamp_ms = token.max_ms
        response.token_id = token.token_id
        response.hmac = token_hmac(secret_key(ctx.settings), token.token_id)
    return response


def refusal(
    ctx: Context, request: CreateDelegationTokenRequest, error: ErrorCode
) -> CreateDelegationTokenResponse:
    """An error, with the principals that the token would have had."""
    owner, requester = owner_of(ctx, request), ctx.caller.principal
    return CreateDelegationTokenResponse(
        error_code=error,
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=NO_TIMESTAMP,
        expiry_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
        token_id="",
        hmac=b"",
    )


API: Api[
    CreateDelegationTokenRequest,
    CreateDelegationTokenPart,
    CreateDelegationTokenReply,
    CreateDelegationTokenResponse,
] = Api(
    key=ApiKey.CREATE_DELEGATION_TOKEN,
    versions=(1, 3),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
)

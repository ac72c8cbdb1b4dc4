"""CreateDelegationToken (38): create a token that its owner can authenticate with (KIP-48).

Versions 1-3. From version 3 on a token can be created for another owner. The token's secret is the
HMAC in the response. Renewers must be of type User. A lifetime that is not positive, or longer than
``delegation.token.max.lifetime.ms``, is replaced by that. In Kafka:
``DelegationTokenControlManager.createDelegationToken``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import (
    SPECIAL,
    Caller,
    Context,
    ControllerRequest,
    ControllerScope,
    at_controller,
)
from minibroker.broker.apis.delegation_tokens import (
    NO_TIMESTAMP,
    change_token,
    requests_problem,
    secret_key,
)
from minibroker.broker.metadata.delegation_tokens import plan_token, token_lifetimes
from minibroker.broker.security.delegation_token import issue, token_hmac
from minibroker.broker.security.principal import USER, Principal
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from minibroker_protocol.registry import ApiKey


async def execute(
    scope: ControllerScope, request: ControllerRequest[CreateDelegationTokenRequest]
) -> CreateDelegationTokenResponse:
    """Store the token, wait until every process knows it, and return it with its secret."""
    message, caller = request.message, request.caller
    renewers = tuple(Principal(one.principal_type, one.principal_name) for one in message.renewers)
    token = issue(
        scope.cluster.new_token_id(),
        owner_of(caller, message),
        caller.principal,
        renewers,
        now_ms=request.wall_ms,
        requested_ms=message.max_lifetime_ms,
        lifetimes=token_lifetimes(scope.settings),
    )
    error, _ = await change_token(scope, lambda image, _key: plan_token(image, token))
    response = refusal(caller, message, error)
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = 0
    if not error:
        response.issue_timestamp_ms = token.issued_ms
        response.expiry_timestamp_ms = token.expires_ms
        response.max_timestamp_ms = token.max_ms
        response.token_id = token.token_id
        response.hmac = token_hmac(secret_key(scope.settings), token.token_id)
    return response


def reject(
    ctx: Context, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse | None:
    """The error of a connection that may not create tokens, or of renewers that are no users."""
    problem = requests_problem(ctx)
    if not problem and any(one.principal_type != USER for one in request.renewers):
        problem = ErrorCode.INVALID_PRINCIPAL_TYPE
    return refusal(ctx.caller, request, problem) if problem else None


def owner_of(caller: Caller, request: CreateDelegationTokenRequest) -> Principal:
    """The owner of the requested token: by default the caller."""
    if not request.owner_principal_name:
        return caller.principal
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def refusal(
    caller: Caller, request: CreateDelegationTokenRequest, error: ErrorCode
) -> CreateDelegationTokenResponse:
    """An error, with the principals that the token would have had."""
    owner, requester = owner_of(caller, request), caller.principal
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


API = at_controller(
    execute,
    key=ApiKey.CREATE_DELEGATION_TOKEN,
    versions=(1, 3),
    requires=SPECIAL,
    reject=reject,
)

"""The requests about SCRAM credentials: describe and alter them.

Converts messages to the records of `metadata.credentials`. Invariant: salts and keys are never
returned, and each user has a result of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from minibroker.broker.apis.base import (
    CLUSTER_DENIED_TEXT,
    CONTROLLER,
    SPECIAL,
    Api,
    Caller,
    Context,
    ControllerRequest,
    ControllerScope,
    Owner,
    Requires,
    at_controller,
    error_fields,
    without_owner,
)
from minibroker.broker.metadata.acls import (
    CredentialChange,
    TokenChange,
    all_tokens,
    iterations,
    plan_expiry,
    plan_renewal,
    plan_token,
    token_lifetimes,
    users,
)
from minibroker.broker.metadata.image import ChangeRejected, ConfigChanged, Image
from minibroker.broker.security.acl import Operation
from minibroker.broker.security.principal import ANONYMOUS, USER, Principal
from minibroker.broker.security.scram import (
    MECHANISM_NUMBERS,
    DelegationToken,
    credential,
    decode_token,
    issue,
    token_hmac,
)
from minibroker.broker.settings import DELEGATION_TOKEN_SECRET_KEY, Settings
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from minibroker_protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from minibroker_protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from minibroker_protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from minibroker_protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from minibroker_protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from minibroker_protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from minibroker_protocol.registry import ApiKey

# DescribeUserScramCredentials (50) ----------------------------------------------------------------
#
# The SCRAM mechanisms and iteration counts of users. Version 0. An empty or null list selects all
# users with credentials. Salts and keys are never returned. A user without credentials or one that
# the request repeats gets its own error. In Kafka: ``ScramImage.describe``.


def _describe_credentials(
    ctx: Context, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    counts = Counter(user.name for user in request.users or ())
    if not counts:
        counts = Counter(users(ctx.image))
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_described_user(ctx, user, times) for user, times in counts.items()],
    )


def _described_user(ctx: Context, user: str, times: int) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=user, error_message=None)
    found = iterations(ctx.image, user)
    if times > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        text = "Cannot describe SCRAM credentials for the same user twice in a single request: "
        result.error_message = text + user
    elif not found:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        text = "Attempt to describe a user credential that does not exist: "
        result.error_message = text + user
    else:
        result.credential_infos = [
            CredentialInfo(mechanism=number, iterations=count) for number, count in found.items()
        ]
    return result


DESCRIBE_USER_SCRAM_CREDENTIALS = without_owner(
    _describe_credentials,
    key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)


# AlterUserScramCredentials (51) -------------------------------------------------------------------
#
# Set and remove SCRAM credentials, independently for each user. Version 0. Clients send salted
# passwords. The stored and server keys are derived from them here, so the salted passwords never
# leave the network processor. The response is sent when every process has applied the credentials.
# In Kafka: ``ScramControlManager.alterCredentials``.


CredentialChanges = tuple[CredentialChange, ...]
UserRejections = dict[str, ChangeRejected | None]


def _split_alteration(
    _ctx: Context, request: AlterUserScramCredentialsRequest
) -> Mapping[Owner, CredentialChanges]:
    deletions = (CredentialChange(one.name, one.mechanism, None) for one in request.deletions)
    return {CONTROLLER: (*deletions, *map(_upsertion, request.upsertions))}


def _upsertion(upsertion: ScramCredentialUpsertion) -> CredentialChange:
    # A credential of an unknown mechanism is rejected later, whatever its keys are.
    mechanism = MECHANISM_NUMBERS.get(upsertion.mechanism, MECHANISM_NUMBERS[1])
    made = credential(
        mechanism, bytes(upsertion.salted_password), bytes(upsertion.salt), upsertion.iterations
    )
    return CredentialChange(upsertion.name, upsertion.mechanism, made)


async def _alter_credentials(scope: ControllerScope, part: CredentialChanges) -> UserRejections:
    """Validate, store, and wait until every process has applied the change."""
    rejections, updates = await scope.cluster.alter_credentials(part)
    await scope.publish(updates)
    return rejections


def _merge_alteration(
    _ctx: Context,
    _request: AlterUserScramCredentialsRequest,
    replies: Mapping[Owner, UserRejections],
) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user,
                **error_fields(rejection),
            )
            for user, rejection in replies[CONTROLLER].items()
        ]
    )


def _refuse_alteration(
    request: AlterUserScramCredentialsRequest, error: ErrorCode
) -> AlterUserScramCredentialsResponse:
    names = [one.name for one in request.deletions]
    names += [one.name for one in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user, error_code=error, error_message=CLUSTER_DENIED_TEXT
            )
            for user in dict.fromkeys(names)
        ]
    )


ALTER_USER_SCRAM_CREDENTIALS = Api(
    key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, refusal=_refuse_alteration),),
    split=_split_alteration,
    execute_at_controller=_alter_credentials,
    merge=_merge_alteration,
)


# ----------- The requests about delegation tokens: create, renew, expire and describe them (KIP-48)
# Decides whether a connection may send them at all, and makes the changes of tokens at the
# controller. Invariant: a connection without authentication, or one that was authenticated with a
# token, can neither see nor change tokens. In Kafka: ``KafkaApis.allowTokenRequests`` and
# ``DelegationTokenControlManager``.


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


Response = TypeVar("Response")


def _rejects(response: Callable[..., Response]) -> Callable[[Context, Any], Response | None]:
    """Return a check of connections that may not change tokens, with the class of its response."""

    def reject(ctx: Context, _request: Any) -> Response | None:
        problem = requests_problem(ctx)
        if not problem:
            return None
        return response(error_code=problem, expiry_timestamp_ms=NO_TIMESTAMP)

    return reject


# CreateDelegationToken (38) -----------------------------------------------------------------------
#
# Create a token that its owner can authenticate with (KIP-48). Versions 1-3. From version 3 on a
# token can be created for another owner. The token's secret is the HMAC in the response. Renewers
# must be of type User. A lifetime that is not positive, or longer than
# ``delegation.token.max.lifetime.ms``, is replaced by that. In Kafka:
# ``DelegationTokenControlManager.createDelegationToken``.


async def _create_token(
    scope: ControllerScope, request: ControllerRequest[CreateDelegationTokenRequest]
) -> CreateDelegationTokenResponse:
    """Store the token, wait until every process knows it, and return it with its secret."""
    message, caller = request.message, request.caller
    renewers = tuple(Principal(one.principal_type, one.principal_name) for one in message.renewers)
    token = issue(
        scope.cluster.new_token_id(),
        requested_owner(caller, message),
        caller.principal,
        renewers,
        now_ms=request.wall_ms,
        requested_ms=message.max_lifetime_ms,
        lifetimes=token_lifetimes(scope.settings),
    )
    error, _ = await change_token(scope, lambda image, _key: plan_token(image, token))
    response = creation_refusal(caller, message, error)
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = 0
    if not error:
        response.issue_timestamp_ms = token.issued_ms
        response.expiry_timestamp_ms = token.expires_ms
        response.max_timestamp_ms = token.max_ms
        response.token_id = token.token_id
        response.hmac = token_hmac(secret_key(scope.settings), token.token_id)
    return response


def _reject_creation(
    ctx: Context, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse | None:
    """The error of a connection that may not create tokens, or of renewers that are no users."""
    problem = requests_problem(ctx)
    if not problem and any(one.principal_type != USER for one in request.renewers):
        problem = ErrorCode.INVALID_PRINCIPAL_TYPE
    return creation_refusal(ctx.caller, request, problem) if problem else None


def requested_owner(caller: Caller, request: CreateDelegationTokenRequest) -> Principal:
    """The owner of the requested token: by default the caller."""
    if not request.owner_principal_name:
        return caller.principal
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def creation_refusal(
    caller: Caller, request: CreateDelegationTokenRequest, error: ErrorCode
) -> CreateDelegationTokenResponse:
    """An error, with the principals that the token would have had."""
    owner, requester = requested_owner(caller, request), caller.principal
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


CREATE_DELEGATION_TOKEN = at_controller(
    _create_token,
    key=ApiKey.CREATE_DELEGATION_TOKEN,
    versions=(1, 3),
    requires=SPECIAL,
    reject=_reject_creation,
)


# RenewDelegationToken (39) ------------------------------------------------------------------------
#
# Extend the validity of a token by its HMAC (KIP-48). Versions 1-2. Only the owner and the renewers
# may renew a token, and not beyond its maximum lifetime. A period that is not positive is
# ``delegation.token.expiry.time.ms``. In Kafka:
# ``DelegationTokenControlManager.renewDelegationToken``.


async def _renew_token(
    scope: ControllerScope, request: ControllerRequest[RenewDelegationTokenRequest]
) -> RenewDelegationTokenResponse:
    """Renew the token, and wait until every process knows it."""
    message, now_ms = request.message, request.wall_ms
    change = TokenChange(message.hmac, request.caller.principal, now_ms, message.renew_period_ms)
    error, expires_ms = await change_expiry(
        scope, now_ms, lambda image, key: plan_renewal(image, scope.settings, key, change)
    )
    return RenewDelegationTokenResponse(error_code=error, expiry_timestamp_ms=expires_ms)


RENEW_DELEGATION_TOKEN = at_controller(
    _renew_token,
    key=ApiKey.RENEW_DELEGATION_TOKEN,
    versions=(1, 2),
    requires=(),
    reject=_rejects(RenewDelegationTokenResponse),
)


# ExpireDelegationToken (40) -----------------------------------------------------------------------
#
# Set the end of a token by its HMAC (KIP-48). Versions 1-2. Only the owner and the renewers may do
# this. A negative period removes the token at once. In Kafka:
# ``DelegationTokenControlManager.expireDelegationToken``.


async def _expire_token(
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


EXPIRE_DELEGATION_TOKEN = at_controller(
    _expire_token,
    key=ApiKey.EXPIRE_DELEGATION_TOKEN,
    versions=(1, 2),
    requires=(),
    reject=_rejects(ExpireDelegationTokenResponse),
)


# DescribeDelegationToken (41) ---------------------------------------------------------------------
#
# Tokens with their secrets (KIP-48). Versions 1-3. The request may name owners; a token is
# described if one of them is its owner or a renewer, and the caller owns or renews it or has the
# rights for it. An empty list of owners finds nothing. In Kafka:
# ``KafkaApis.handleDescribeTokensRequest``.


def _describe_tokens(
    ctx: Context, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """Describe the tokens of the requested owners."""
    problem, key = requests_problem(ctx), secret_key(ctx.settings)
    if problem or not key:
        problem = problem or ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        return DescribeDelegationTokenResponse(error_code=problem)
    owners = None
    if request.owners is not None:
        owners = [Principal(one.principal_type, one.principal_name) for one in request.owners]
    return DescribeDelegationTokenResponse(
        tokens=[
            _described_token(token, key)
            for token in all_tokens(ctx.image)
            if owners is None or any(map(token.may_be_changed_by, owners))
        ]
    )


def _described_token(token: DelegationToken, key: str) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        principal_type=token.owner.kind,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.kind,
        token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac(key, token.token_id),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, name in token.renewers
        ],
    )


DESCRIBE_DELEGATION_TOKEN = without_owner(
    _describe_tokens,
    key=ApiKey.DESCRIBE_DELEGATION_TOKEN,
    versions=(1, 3),
    requires=SPECIAL,
)


# ------------ SaslHandshake and SaslAuthenticate outside of authentication, where they are rejected
# `network.sasl` handles them while a client authenticates or re-authenticates, before any API reads
# them. Any other request arrives here and gets ILLEGAL_SASL_STATE. Invariant: neither API changes
# the principal of a connection. In Kafka: ``KafkaApis``.


# SaslHandshake (17) -------------------------------------------------------------------------------
#
# Choose a SASL mechanism; rejected outside of authentication. Versions 0-1. `network.sasl` handles
# the request while a client authenticates or re-authenticates, before any API reads it. Any other
# request arrives here and gets ILLEGAL_SASL_STATE. Invariant: the API never changes the principal
# of a connection. In Kafka: ``KafkaApis.handleSaslHandshakeRequest``.


def _reject_handshake(_ctx: Context, _request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


SASL_HANDSHAKE = without_owner(
    _reject_handshake,
    key=ApiKey.SASL_HANDSHAKE,
    versions=(0, 1),
    requires=(),
    left_out=(
        "the mechanism GSSAPI: Kerberos needs a realm; PLAIN, SCRAM and OAUTHBEARER are served",
    ),
)


# SaslAuthenticate (36) ----------------------------------------------------------------------------
#
# A step of a SASL exchange; rejected outside of authentication. Versions 0-2. `network.sasl`
# handles the request while a client authenticates or re-authenticates, before any API reads it. Any
# other request arrives here and gets ILLEGAL_SASL_STATE. Invariant: the API never changes the
# principal of a connection. In Kafka: ``KafkaApis.handleSaslAuthenticateRequest``.


def _reject_authenticate(
    _ctx: Context, _request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


SASL_AUTHENTICATE = without_owner(
    _reject_authenticate,
    key=ApiKey.SASL_AUTHENTICATE,
    versions=(0, 2),
    requires=(),
)

APIS = (
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
)

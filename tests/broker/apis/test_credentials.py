"""SCRAM credentials are set, removed and described, for each user independently."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from minibroker.broker.apis.credentials import (
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    requests_problem,
)
from minibroker.broker.metadata.acls import find_token
from minibroker.broker.metadata.image import USER
from minibroker.broker.security.principal import ANONYMOUS, Principal
from minibroker.broker.security.scram import token_hmac
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from minibroker_protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from minibroker_protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from minibroker_protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from minibroker_protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from minibroker_protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.apis.conftest import ApisMaker
from tests.broker.apis.tokens import (
    ALICE,
    BOB,
    EVE,
    HOUR_MS,
    KEY,
    NOW_MS,
    PROVEN,
    SETTINGS,
    ask,
    create,
    describe,
    expire,
    renew,
)

SALTED = b"salted-password-of-alice........"


def upsertion(name: str, mechanism: int = 2, salted: bytes = SALTED) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=4096, salt=b"salt", salted_password=salted
    )


async def test_each_user_has_its_own_result_and_no_password_is_forwarded(apis: Any) -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="bob", mechanism=1)],
        upsertions=[upsertion("alice"), upsertion("carol", 9)],
    )
    response = await apis.ask(ALTER_USER_SCRAM_CREDENTIALS, request, 0)
    assert {result.user: result.error_code for result in response.results} == {
        "bob": ErrorCode.RESOURCE_NOT_FOUND,
        "alice": ErrorCode.NONE,
        "carol": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    }
    assert SALTED not in pickle.dumps(apis.asked)
    kept = apis.controller.at_processor.configs[USER, "alice"]["SCRAM-SHA-512"]
    assert kept.startswith("salt=c2FsdA==,stored_key=")


async def test_empty_salted_password_is_rejected(apis: Any) -> None:
    wanted = [upsertion("alice", salted=b""), upsertion("bob", salted=b"b")]
    response = await apis.ask(
        ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest(upsertions=wanted), 0
    )
    alice, bob = response.results
    assert (alice.error_code, bob.error_code) == (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE)
    assert "the salted password is empty" in alice.error_message
    assert (USER, "alice") not in apis.controller.at_processor.configs


# Describe user scram credentials ------------------------------------------------------------------


async def describe_users(apis: Any, *names: str, all_users: bool = False) -> dict[str, Any]:
    users = None if all_users else [UserName(name=name) for name in names]
    response = await apis.ask(
        DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(users=users), 0
    )
    assert response.error_code == 0
    return {
        result.user: result.error_code
        or [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in response.results
    }


@pytest.mark.parametrize("all_users", [False, True])
async def test_request_without_users_describes_all_users(apis: Any, all_users: bool) -> None:
    assert await describe_users(apis, all_users=all_users) == {}
    wanted = [upsertion("alice", 1), upsertion("alice"), upsertion("a/b")]
    await apis.ask(
        ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest(upsertions=wanted), 0
    )
    assert await describe_users(apis, all_users=all_users) == {
        "alice": [(1, 4096), (2, 4096)],
        "a/b": [(2, 4096)],
    }


async def test_unknown_and_duplicate_users_have_errors(apis: Any) -> None:
    await apis.ask(
        ALTER_USER_SCRAM_CREDENTIALS,
        AlterUserScramCredentialsRequest(upsertions=[upsertion("alice")]),
        0,
    )
    assert await describe_users(apis, "alice", "bob", "carol", "carol") == {
        "alice": [(2, 4096)],
        "bob": ErrorCode.RESOURCE_NOT_FOUND,
        "carol": ErrorCode.DUPLICATE_RESOURCE,
    }


# ----- Delegation tokens are created, renewed, expired and described, by connections that may do so


NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
REQUESTS = (
    CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1),
    RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1),
    ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1),
    DescribeDelegationTokenRequest(owners=None),
)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("by_token", [False, True])
async def test_request_without_proven_identity_is_not_allowed(
    make_apis: ApisMaker, request_: Any, by_token: bool
) -> None:
    apis = await make_apis(*SETTINGS, KEY)
    apis.by_token = by_token
    response = await ask(apis, ALICE, request_, 2, PROVEN if by_token else "PLAINTEXT")
    assert response.error_code == NOT_ALLOWED
    assert apis.asked == {}
    for name in ("issue_timestamp_ms", "expiry_timestamp_ms"):
        assert getattr(response, name, -1) == -1


@pytest.mark.parametrize(
    ("principal", "error"), [(ANONYMOUS, NOT_ALLOWED), (ALICE, ErrorCode.NONE)]
)
async def test_client_with_tls_needs_a_certificate(
    make_apis: ApisMaker, principal: Principal, error: ErrorCode
) -> None:
    protocols = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OUTSIDE:SSL"
    listeners = "listeners=PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0"
    apis = await make_apis(listeners, protocols, KEY, "ssl.keystore.location=x.pem")
    apis.principal = principal
    assert requests_problem(apis.context(38, 3, PROVEN)) == error


# Create delegation token --------------------------------------------------------------------------


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis(*SETTINGS, KEY)
    made.wall_ms = NOW_MS
    return made


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_token_is_created_for_the_caller(apis: Any, version: int) -> None:
    request = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
    response = await ask(apis, ALICE, request, version)
    assert response.error_code == ErrorCode.NONE
    assert (response.principal_type, response.principal_name) == tuple(ALICE)
    if version >= 3:
        assert response.token_requester_principal_name == ALICE.name
    assert response.issue_timestamp_ms == NOW_MS
    assert response.expiry_timestamp_ms == NOW_MS + 24 * HOUR_MS
    assert response.max_timestamp_ms == NOW_MS + 7 * 24 * HOUR_MS
    assert response.hmac == token_hmac("k", response.token_id)
    token = find_token(apis.controller.at_processor, response.token_id)
    assert token is not None
    assert (token.owner, token.requester, token.renewers) == (ALICE, ALICE, ())


@pytest.mark.parametrize(
    ("requested", "lifetime_ms"),
    [(HOUR_MS, HOUR_MS), (0, 168 * HOUR_MS), (999 * HOUR_MS, 168 * HOUR_MS)],
)
async def test_requested_lifetime_is_limited(apis: Any, requested: int, lifetime_ms: int) -> None:
    response = await create(apis, lifetime_ms=requested)
    assert response.max_timestamp_ms == NOW_MS + lifetime_ms
    assert response.expiry_timestamp_ms == NOW_MS + min(lifetime_ms, 24 * HOUR_MS)


async def test_token_can_be_created_for_another_owner_with_renewers(apis: Any) -> None:
    response = await create(apis, ALICE, BOB, owner=BOB)
    assert (response.principal_name, response.token_requester_principal_name) == ("bob", "alice")
    token = find_token(apis.cluster.image, response.token_id)
    assert token is not None
    assert (token.owner, token.requester, token.renewers) == (BOB, ALICE, (ALICE, BOB))


async def test_renewer_of_another_type_is_rejected(apis: Any) -> None:
    response = await create(apis, Principal("Group", "g"))
    assert response.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert response.issue_timestamp_ms == -1
    assert apis.controller.published == []


async def test_tokens_without_a_key_are_disabled(make_apis: ApisMaker) -> None:
    for key in ((), ("delegation.token.secret.key=",)):
        disabled = await make_apis(*SETTINGS, *key)
        response = await create(disabled)
        assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert (response.token_id, response.hmac) == ("", b"")


# Renew delegation token ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_owner_renews_until_the_longest_period(apis: Any, version: int) -> None:
    made = await create(apis)
    apis.wall_ms += HOUR_MS
    request = RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=-1)
    response = await ask(apis, ALICE, request, version)
    assert response.error_code == ErrorCode.NONE
    assert response.expiry_timestamp_ms == NOW_MS + 25 * HOUR_MS


@pytest.mark.parametrize(
    ("period_ms", "expires_ms"), [(HOUR_MS, HOUR_MS), (99 * HOUR_MS, 24 * HOUR_MS)]
)
async def test_renewer_renews_for_a_limited_period(
    apis: Any, period_ms: int, expires_ms: int
) -> None:
    made = await create(apis, BOB)
    response = await renew(apis, BOB, made.hmac, period_ms)
    assert response.expiry_timestamp_ms == NOW_MS + expires_ms


async def test_token_is_not_renewed_beyond_its_maximum_lifetime(apis: Any) -> None:
    made = await create(apis, lifetime_ms=2 * HOUR_MS)
    apis.wall_ms += HOUR_MS
    response = await renew(apis, ALICE, made.hmac)
    assert response.expiry_timestamp_ms == made.max_timestamp_ms == NOW_MS + 2 * HOUR_MS


async def test_renewal_by_others_of_unknown_and_of_expired_tokens_is_rejected(apis: Any) -> None:
    made = await create(apis, lifetime_ms=HOUR_MS)
    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert (await renew(apis, EVE, made.hmac)).error_code == mismatch
    unknown = await renew(apis, ALICE, b"x")
    assert unknown.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    apis.wall_ms += HOUR_MS + 1
    for caller in (ALICE, EVE):
        late = await renew(apis, caller, made.hmac)
        assert late.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED


async def test_renewal_without_a_key_is_disabled(make_apis: ApisMaker) -> None:
    disabled = await make_apis(*SETTINGS)
    response = await renew(disabled, ALICE, b"x")
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


# Expire delegation token --------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_negative_period_removes_the_token(apis: Any, version: int) -> None:
    made = await create(apis)
    request = ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1)
    response = await ask(apis, ALICE, request, version)
    assert (response.error_code, response.expiry_timestamp_ms) == (ErrorCode.NONE, NOW_MS)
    assert find_token(apis.controller.at_processor, made.token_id) is None
    again = await ask(apis, ALICE, request, version)
    assert again.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


@pytest.mark.parametrize(
    ("period_ms", "expires_ms"), [(0, 0), (HOUR_MS, HOUR_MS), (2**63 - 1, 168 * HOUR_MS)]
)
async def test_period_sets_the_expiry(apis: Any, period_ms: int, expires_ms: int) -> None:
    made = await create(apis, BOB)
    response = await expire(apis, BOB, made.hmac, period_ms)
    assert response.expiry_timestamp_ms == NOW_MS + expires_ms


async def test_expiry_by_others_and_of_expired_tokens_is_rejected(apis: Any) -> None:
    made = await create(apis, lifetime_ms=HOUR_MS)
    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert (await expire(apis, EVE, made.hmac)).error_code == mismatch
    apis.wall_ms += HOUR_MS + 1
    late = await expire(apis, ALICE, made.hmac, HOUR_MS)
    assert late.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert (await expire(apis, ALICE, made.hmac)).error_code == ErrorCode.NONE


# Describe delegation token ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_token_is_described_as_created(apis: Any, version: int) -> None:
    made = await create(apis, BOB)
    response = await ask(apis, ALICE, DescribeDelegationTokenRequest(owners=None), version)
    assert response.error_code == ErrorCode.NONE
    [token] = response.tokens
    assert (token.token_id, token.hmac) == (made.token_id, made.hmac)
    assert (token.principal_type, token.principal_name) == ALICE
    assert (token.issue_timestamp, token.expiry_timestamp, token.max_timestamp) == (
        made.issue_timestamp_ms,
        made.expiry_timestamp_ms,
        made.max_timestamp_ms,
    )
    assert [(one.principal_type, one.principal_name) for one in token.renewers] == [BOB]
    if version >= 3:
        assert token.token_requester_principal_name == "alice"


async def test_tokens_are_found_by_owner_or_renewer(apis: Any) -> None:
    own, renewed = await create(apis), await create(apis, BOB)
    found = {token.token_id for token in (await describe(apis, ALICE, ALICE)).tokens}
    assert found == {own.token_id, renewed.token_id}
    [token] = (await describe(apis, BOB, BOB)).tokens
    assert token.token_id == renewed.token_id
    assert (await describe(apis, ALICE, EVE)).tokens == []
    assert (await describe(apis, ALICE, every=False)).tokens == []


async def test_description_without_a_key_is_disabled(make_apis: ApisMaker) -> None:
    disabled = await make_apis(*SETTINGS)
    response = await describe(disabled, ALICE)
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


# --------------------------------------------- SASL requests outside of authentication are rejected


@pytest.mark.parametrize("version", range(2))
async def test_handshake_on_open_connection_is_illegal_sasl_state(apis: Any, version: int) -> None:
    response = await apis.ask(SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE


# Sasl authenticate --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_authenticate_on_open_connection_is_illegal_sasl_state(
    apis: Any, version: int
) -> None:
    response = await apis.ask(SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=b"x"), version)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE

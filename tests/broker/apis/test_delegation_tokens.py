"""Delegation tokens are created, renewed, expired and described, by connections that may do so."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.delegation_tokens import requests_problem
from minibroker.broker.metadata.credentials import find_token
from minibroker.broker.security.delegation_token import token_hmac
from minibroker.broker.security.principal import ANONYMOUS, Principal
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from minibroker_protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from minibroker_protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from minibroker_protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
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

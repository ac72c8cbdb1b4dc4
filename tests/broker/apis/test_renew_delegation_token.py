"""RenewDelegationToken: new expiries, and the callers that may renew."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.broker.apis.conftest import ApisMaker
from tests.broker.apis.tokens import (
    ALICE,
    BOB,
    EVE,
    HOUR_MS,
    KEY,
    NOW_MS,
    SETTINGS,
    ask,
    create,
    renew,
)


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis(*SETTINGS, KEY)
    made.wall_ms = NOW_MS
    return made


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

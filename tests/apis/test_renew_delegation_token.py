"""RenewDelegationToken: new expiries, and the callers that may renew."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.apis.conftest import DeskMaker
from tests.apis.tokens import (
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
async def desk(make_desk: DeskMaker) -> Any:
    made = await make_desk(*SETTINGS, KEY)
    made.wall_ms = NOW_MS
    return made


@pytest.mark.parametrize("version", [1, 2])
async def test_owner_renews_until_the_longest_period(desk: Any, version: int) -> None:
    made = await create(desk)
    desk.wall_ms += HOUR_MS
    request = RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=-1)
    response = await ask(desk, ALICE, request, version)
    assert response.error_code == ErrorCode.NONE
    assert response.expiry_timestamp_ms == NOW_MS + 25 * HOUR_MS


@pytest.mark.parametrize(
    ("period_ms", "expires_ms"), [(HOUR_MS, HOUR_MS), (99 * HOUR_MS, 24 * HOUR_MS)]
)
async def test_renewer_renews_for_a_limited_period(
    desk: Any, period_ms: int, expires_ms: int
) -> None:
    made = await create(desk, BOB)
    response = await renew(desk, BOB, made.hmac, period_ms)
    assert response.expiry_timestamp_ms == NOW_MS + expires_ms


async def test_token_is_not_renewed_beyond_its_maximum_lifetime(desk: Any) -> None:
    made = await create(desk, lifetime_ms=2 * HOUR_MS)
    desk.wall_ms += HOUR_MS
    response = await renew(desk, ALICE, made.hmac)
    assert response.expiry_timestamp_ms == made.max_timestamp_ms == NOW_MS + 2 * HOUR_MS


async def test_renewal_by_others_of_unknown_and_of_expired_tokens_is_rejected(desk: Any) -> None:
    made = await create(desk, lifetime_ms=HOUR_MS)
    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert (await renew(desk, EVE, made.hmac)).error_code == mismatch
    unknown = await renew(desk, ALICE, b"x")
    assert unknown.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    desk.wall_ms += HOUR_MS + 1
    for caller in (ALICE, EVE):
        late = await renew(desk, caller, made.hmac)
        assert late.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED


async def test_renewal_without_a_key_is_disabled(make_desk: DeskMaker) -> None:
    disabled = await make_desk(*SETTINGS)
    response = await renew(disabled, ALICE, b"x")
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED

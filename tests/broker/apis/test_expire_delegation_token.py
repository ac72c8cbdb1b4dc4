"""ExpireDelegationToken: removal at once, a new expiry, and the callers that may."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.metadata.delegation_tokens import find_token
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
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
    expire,
)


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis(*SETTINGS, KEY)
    made.wall_ms = NOW_MS
    return made


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

"""DescribeDelegationToken: tokens by owner, with their secrets."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from tests.broker.apis.conftest import ApisMaker
from tests.broker.apis.tokens import ALICE, BOB, EVE, KEY, NOW_MS, SETTINGS, ask, create, describe


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis(*SETTINGS, KEY)
    made.wall_ms = NOW_MS
    return made


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

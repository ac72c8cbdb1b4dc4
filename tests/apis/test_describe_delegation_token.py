"""DescribeDelegationToken: tokens by owner, with their secrets."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from tests.apis.conftest import DeskMaker
from tests.apis.tokens import ALICE, BOB, EVE, KEY, NOW_MS, SETTINGS, ask, create, describe


@pytest.fixture
async def desk(make_desk: DeskMaker) -> Any:
    made = await make_desk(*SETTINGS, KEY)
    made.wall_ms = NOW_MS
    return made


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_token_is_described_as_created(desk: Any, version: int) -> None:
    made = await create(desk, BOB)
    response = await ask(desk, ALICE, DescribeDelegationTokenRequest(owners=None), version)
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


async def test_tokens_are_found_by_owner_or_renewer(desk: Any) -> None:
    own, renewed = await create(desk), await create(desk, BOB)
    found = {token.token_id for token in (await describe(desk, ALICE, ALICE)).tokens}
    assert found == {own.token_id, renewed.token_id}
    [token] = (await describe(desk, BOB, BOB)).tokens
    assert token.token_id == renewed.token_id
    assert (await describe(desk, ALICE, EVE)).tokens == []
    assert (await describe(desk, ALICE, every=False)).tokens == []


async def test_description_without_a_key_is_disabled(make_desk: DeskMaker) -> None:
    disabled = await make_desk(*SETTINGS)
    response = await describe(disabled, ALICE)
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED

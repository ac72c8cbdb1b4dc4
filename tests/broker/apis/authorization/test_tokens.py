"""Delegation tokens of others: the rights to create and to see them."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.security.acl import Operation, Resource
from minibroker_protocol.errors import ErrorCode
from tests.broker.apis import tokens
from tests.broker.apis.authorization.callers import ALICE, ROOT, grant
from tests.broker.apis.authorization.callers import SETTINGS as AUTHORIZED
from tests.broker.apis.conftest import ApisMaker

BOB = tokens.BOB


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    return await make_apis(*tokens.SETTINGS, *AUTHORIZED, tokens.KEY)


async def test_token_for_another_owner_needs_create_tokens(apis: Any) -> None:
    response = await tokens.create(apis, owner=BOB)
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (response.principal_name, response.token_requester_principal_name) == ("bob", "alice")
    assert (await tokens.create(apis)).error_code == ErrorCode.NONE
    await grant(apis, Resource.USER, str(BOB), Operation.CREATE_TOKENS)
    assert (await tokens.create(apis, owner=BOB)).error_code == ErrorCode.NONE


async def seen(apis: Any, principal: Any) -> set[str]:
    return {token.token_id for token in (await tokens.describe(apis, principal)).tokens}


async def test_tokens_of_others_need_a_right(apis: Any) -> None:
    await grant(apis, Resource.USER, str(BOB), Operation.CREATE_TOKENS)
    own = (await tokens.create(apis, BOB)).token_id
    others = (await tokens.create(apis, owner=BOB)).token_id
    assert await seen(apis, ALICE) == {own}
    assert await seen(apis, BOB) == await seen(apis, ROOT) == {own, others}
    assert await seen(apis, tokens.EVE) == set()
    await grant(apis, Resource.DELEGATION_TOKEN, others, Operation.DESCRIBE)
    assert await seen(apis, ALICE) == {own, others}


async def test_describe_tokens_shows_all_tokens_of_an_owner(apis: Any) -> None:
    await grant(apis, Resource.USER, str(BOB), Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS)
    others = (await tokens.create(apis, owner=BOB)).token_id
    assert await seen(apis, ALICE) == {others}

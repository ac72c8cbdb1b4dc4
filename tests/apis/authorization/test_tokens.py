"""Delegation tokens of others: the rights to create and to see them."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.security.acl import Operation, Resource
from protocol.errors import ErrorCode
from tests.apis import tokens
from tests.apis.authorization.callers import ALICE, ROOT, grant
from tests.apis.authorization.callers import SETTINGS as AUTHORIZED
from tests.apis.conftest import DeskMaker

BOB = tokens.BOB


@pytest.fixture
async def desk(make_desk: DeskMaker) -> Any:
    return await make_desk(*tokens.SETTINGS, *AUTHORIZED, tokens.KEY)


async def test_token_for_another_owner_needs_create_tokens(desk: Any) -> None:
    response = await tokens.create(desk, owner=BOB)
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (response.principal_name, response.token_requester_principal_name) == ("bob", "alice")
    assert (await tokens.create(desk)).error_code == ErrorCode.NONE
    await grant(desk, Resource.USER, str(BOB), Operation.CREATE_TOKENS)
    assert (await tokens.create(desk, owner=BOB)).error_code == ErrorCode.NONE


async def seen(desk: Any, principal: Any) -> set[str]:
    return {token.token_id for token in (await tokens.describe(desk, principal)).tokens}


async def test_tokens_of_others_need_a_right(desk: Any) -> None:
    await grant(desk, Resource.USER, str(BOB), Operation.CREATE_TOKENS)
    own = (await tokens.create(desk, BOB)).token_id
    others = (await tokens.create(desk, owner=BOB)).token_id
    assert await seen(desk, ALICE) == {own}
    assert await seen(desk, BOB) == await seen(desk, ROOT) == {own, others}
    assert await seen(desk, tokens.EVE) == set()
    await grant(desk, Resource.DELEGATION_TOKEN, others, Operation.DESCRIBE)
    assert await seen(desk, ALICE) == {own, others}


async def test_describe_tokens_shows_all_tokens_of_an_owner(desk: Any) -> None:
    await grant(desk, Resource.USER, str(BOB), Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS)
    others = (await tokens.create(desk, owner=BOB)).token_id
    assert await seen(desk, ALICE) == {others}

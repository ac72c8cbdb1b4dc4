"""CreateDelegationToken: lifetimes, owners, renewers, and disabled tokens."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.metadata.delegation_tokens import find_token
from minibroker.broker.security.delegation_token import token_hmac
from minibroker.broker.security.principal import Principal
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from tests.broker.apis.conftest import ApisMaker
from tests.broker.apis.tokens import ALICE, BOB, HOUR_MS, KEY, NOW_MS, SETTINGS, ask, create


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

"""DescribeUserScramCredentials: all or some, and only what may be known."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.alter_user_scram_credentials import API as ALTER
from minibroker.broker.apis.describe_user_scram_credentials import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
)
from minibroker_protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tests.broker.apis.test_alter_user_scram_credentials import upsertion


async def describe(apis: Any, *names: str, everybody: bool = False) -> dict[str, Any]:
    users = None if everybody else [UserName(name=name) for name in names]
    response = await apis.ask(API, DescribeUserScramCredentialsRequest(users=users), 0)
    assert response.error_code == 0
    return {
        result.user: result.error_code
        or [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in response.results
    }


@pytest.mark.parametrize("everybody", [False, True])
async def test_request_without_users_describes_all_users(apis: Any, everybody: bool) -> None:
    assert await describe(apis, everybody=everybody) == {}
    wanted = [upsertion("alice", 1), upsertion("alice"), upsertion("a/b")]
    await apis.ask(ALTER, AlterUserScramCredentialsRequest(upsertions=wanted), 0)
    assert await describe(apis, everybody=everybody) == {
        "alice": [(1, 4096), (2, 4096)],
        "a/b": [(2, 4096)],
    }


async def test_unknown_and_duplicate_users_have_errors(apis: Any) -> None:
    await apis.ask(ALTER, AlterUserScramCredentialsRequest(upsertions=[upsertion("alice")]), 0)
    assert await describe(apis, "alice", "bob", "carol", "carol") == {
        "alice": [(2, 4096)],
        "bob": ErrorCode.RESOURCE_NOT_FOUND,
        "carol": ErrorCode.DUPLICATE_RESOURCE,
    }

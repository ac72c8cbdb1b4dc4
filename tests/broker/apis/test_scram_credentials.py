"""SCRAM credentials are set, removed and described, for each user independently."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from minibroker.broker.apis.scram_credentials import (
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
)
from minibroker.broker.metadata.image import USER
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from minibroker_protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)

SALTED = b"salted-password-of-alice........"


def upsertion(name: str, mechanism: int = 2, salted: bytes = SALTED) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=4096, salt=b"salt", salted_password=salted
    )


async def test_each_user_has_its_own_result_and_no_password_is_forwarded(apis: Any) -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="bob", mechanism=1)],
        upsertions=[upsertion("alice"), upsertion("carol", 9)],
    )
    response = await apis.ask(ALTER_USER_SCRAM_CREDENTIALS, request, 0)
    assert {result.user: result.error_code for result in response.results} == {
        "bob": ErrorCode.RESOURCE_NOT_FOUND,
        "alice": ErrorCode.NONE,
        "carol": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    }
    assert SALTED not in pickle.dumps(apis.asked)
    kept = apis.controller.at_processor.configs[USER, "alice"]["SCRAM-SHA-512"]
    assert kept.startswith("salt=c2FsdA==,stored_key=")


async def test_empty_salted_password_is_rejected(apis: Any) -> None:
    wanted = [upsertion("alice", salted=b""), upsertion("bob", salted=b"b")]
    response = await apis.ask(
        ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest(upsertions=wanted), 0
    )
    alice, bob = response.results
    assert (alice.error_code, bob.error_code) == (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE)
    assert "the salted password is empty" in alice.error_message
    assert (USER, "alice") not in apis.controller.at_processor.configs


# Describe user scram credentials ------------------------------------------------------------------


async def describe(apis: Any, *names: str, everybody: bool = False) -> dict[str, Any]:
    users = None if everybody else [UserName(name=name) for name in names]
    response = await apis.ask(
        DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(users=users), 0
    )
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
    await apis.ask(
        ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest(upsertions=wanted), 0
    )
    assert await describe(apis, everybody=everybody) == {
        "alice": [(1, 4096), (2, 4096)],
        "a/b": [(2, 4096)],
    }


async def test_unknown_and_duplicate_users_have_errors(apis: Any) -> None:
    await apis.ask(
        ALTER_USER_SCRAM_CREDENTIALS,
        AlterUserScramCredentialsRequest(upsertions=[upsertion("alice")]),
        0,
    )
    assert await describe(apis, "alice", "bob", "carol", "carol") == {
        "alice": [(2, 4096)],
        "bob": ErrorCode.RESOURCE_NOT_FOUND,
        "carol": ErrorCode.DUPLICATE_RESOURCE,
    }

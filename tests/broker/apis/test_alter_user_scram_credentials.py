"""AlterUserScramCredentials: no password is stored, and each user is answered."""

from __future__ import annotations

import pickle
from typing import Any

from minibroker.broker.apis.alter_user_scram_credentials import API
from minibroker.broker.metadata.image import USER
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
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
    response = await apis.ask(API, request, 0)
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
    response = await apis.ask(API, AlterUserScramCredentialsRequest(upsertions=wanted), 0)
    alice, bob = response.results
    assert (alice.error_code, bob.error_code) == (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE)
    assert "the salted password is empty" in alice.error_message
    assert (USER, "alice") not in apis.controller.at_processor.configs

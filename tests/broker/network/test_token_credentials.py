"""Authentication with delegation tokens, with a complete broker on a mock clock."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metadata.image import DELEGATION_TOKEN, Image
from minibroker.broker.network import token_credentials
from minibroker.broker.network.token_credentials import TokenCredentials
from minibroker.broker.security.delegation_token import (
    TokenLifetimes,
    encode_token,
    issue,
    token_credential,
)
from minibroker.broker.security.principal import Principal
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from minibroker_protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from minibroker_protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.network.secured import SecuredBroker, secured
from tests.broker.security.tokens import ScramClient, plain
from tests.simulation.client import SimulatedClient

JAAS = (
    "listener.name.sasl_plaintext.plain.sasl.jaas.config="
    'x.PlainLoginModule required user_alice="secret";'
)
SETTINGS = (
    "listeners=PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    JAAS,
    "delegation.token.secret.key=k",
    "delegation.token.expiry.time.ms=60000",
    "delegation.token.expiry.check.interval.ms=1000",
)
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


async def alice(at: SecuredBroker) -> SimulatedClient:
    client = await at.connect("SASL_PLAINTEXT")
    await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    token = plain("alice", "secret")
    assert (await client.ask(SaslAuthenticateRequest(auth_bytes=token), 2)).error_code == 0
    return client


async def token_of(client: SimulatedClient) -> Any:
    return await client.ask(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)


async def login(
    at: SecuredBroker, token: Any, mechanism: str = "SCRAM-SHA-256", more: str = ",tokenauth=true"
) -> tuple[int, int, SimulatedClient]:
    """Authenticate with a token: the error, the lifetime of the session, and the connection."""
    client = await at.connect("SASL_PLAINTEXT")
    await client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
    password = base64.b64encode(token.hmac).decode()
    proof = ScramClient(mechanism, token.token_id, password, more=more)
    first = await client.ask(SaslAuthenticateRequest(auth_bytes=proof.first()), 2)
    assert first.error_code == 0
    final = proof.final(first.auth_bytes)
    answer = await client.ask(SaslAuthenticateRequest(auth_bytes=final), 2)
    return answer.error_code, answer.session_lifetime_ms, client


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_client_with_a_token_is_its_owner(
    tmp_path: Path, autojump_clock: MockClock, mechanism: str
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        token = await token_of(await alice(at))
        error, lifetime_ms, client = await login(at, token, mechanism)
        assert error == 0
        assert 0 < lifetime_ms <= 60_000
        await client.ask(MetadataRequest(topics=[]), 9)
        assert str(at.principal("SASL_PLAINTEXT")) == "User:alice"
        response = await client.ask(DescribeDelegationTokenRequest(owners=None), 3)
        assert response.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


async def test_token_is_no_user_and_a_user_no_token(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        token = await token_of(await alice(at))
        assert (await login(at, token, more=""))[0] == FAILED
        token.hmac = b"wrong"
        assert (await login(at, token))[0] == FAILED
        token.token_id = "unknown"
        assert (await login(at, token))[0] == FAILED


async def test_removed_and_expired_tokens_are_rejected(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        admin = await alice(at)
        removed, expired = await token_of(admin), await token_of(admin)
        request = ExpireDelegationTokenRequest(hmac=removed.hmac, expiry_time_period_ms=-1)
        assert (await admin.ask(request, 2)).error_code == 0
        assert (await login(at, removed))[0] == FAILED
        assert (await login(at, expired))[0] == 0
        await trio.sleep(61)
        assert (await login(at, expired))[0] == FAILED
        response = await (await alice(at)).ask(DescribeDelegationTokenRequest(owners=None), 3)
        assert (response.error_code, response.tokens) == (0, [])


def test_credentials_of_tokens_are_cached_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Principal("User", "alice")
    lifetimes = TokenLifetimes(100, 100)
    configs = {
        (DELEGATION_TOKEN, name): encode_token(
            issue(name, owner, owner, (), now_ms=0, requested_ms=-1, lifetimes=lifetimes)
        )
        for name in ("a", "b")
    }
    made: list[str] = []

    def noting(key: str, token_id: str, mechanism: str) -> Any:
        made.append(token_id)
        return token_credential(key, token_id, mechanism)

    monkeypatch.setattr(token_credentials, "token_credential", noting)
    monkeypatch.setattr(token_credentials, "CACHE_MAX", 1)
    image = replace(Image(), configs=configs)
    settings = Settings.from_sources(pairs=["delegation.token.secret.key=k"])
    found = TokenCredentials(settings, lambda: image, lambda: 50)
    for name in ("a", "a", "b", "a", "none"):
        found.find("SCRAM-SHA-256", name)
    assert made == ["a", "b", "a"]
    late = TokenCredentials(settings, lambda: image, lambda: 101)
    assert late.find("SCRAM-SHA-256", "a") is None
    without_key = TokenCredentials(Settings.from_sources(), lambda: image, lambda: 50)
    assert without_key.find("SCRAM-SHA-256", "a") is None

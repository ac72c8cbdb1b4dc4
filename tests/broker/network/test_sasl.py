"""SASL with a complete broker: successes, requests before authentication, and delayed failures."""

from __future__ import annotations

import base64
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metadata.image import DELEGATION_TOKEN, Image
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network import sasl
from minibroker.broker.network.authenticator import SASL_S
from minibroker.broker.network.sasl import ALLOWED, JwksFile, TokenCredentials, token_rules
from minibroker.broker.security.oauth import BadToken
from minibroker.broker.security.principal import Principal
from minibroker.broker.security.scram import (
    TokenLifetimes,
    encode_token,
    issue,
    salted,
    token_credential,
)
from minibroker.broker.settings import ConfigError, Settings
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from minibroker_protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from minibroker_protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from minibroker_protocol.registry import ApiKey
from tests.broker.network.certificates import client_context
from tests.broker.network.secured import HELLO, SecuredBroker, secured
from tests.broker.security.test_oauth import KEY, OTHER, jwk, jwks, signed
from tests.broker.security.tokens import ScramClient, bearer, plain, unsigned
from tests.simulation.client import SimulatedClient, frame

ALL = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
JAAS = 'listener.name.{}.plain.sasl.jaas.config=x.PlainLoginModule required user_alice="secret";'
SETTINGS = (
    "listeners=PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
    f"sasl.enabled.mechanisms={ALL}",
    JAAS.format("sasl_plaintext"),
    JAAS.format("sasl_ssl"),
)
LOOK = MetadataRequest(topics=[])


async def authenticate(
    client: SimulatedClient, mechanism: str, *tokens: bytes, version: int = 2
) -> list[tuple[int, str | None, bytes, int]]:
    """What each token is answered with: error, text, bytes, lifetime."""
    handshake = await client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
    assert handshake.error_code == 0
    assert handshake.mechanisms == ALL.split(",")
    answers = []
    for token in tokens:
        answer = await client.ask(SaslAuthenticateRequest(auth_bytes=token), version)
        answers.append(
            (answer.error_code, answer.error_message, answer.auth_bytes, answer.session_lifetime_ms)
        )
    return answers


async def set_password(at: SecuredBroker, user: str, number: int, password: str | None) -> None:
    mechanism = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}[number]
    request = AlterUserScramCredentialsRequest()
    if password is None:
        request.deletions = [ScramCredentialDeletion(name=user, mechanism=number)]
    else:
        key = salted(mechanism, password, b"salt", 4096)
        request.upsertions = [
            ScramCredentialUpsertion(
                name=user, mechanism=number, iterations=4096, salt=b"salt", salted_password=key
            )
        ]
    admin = await at.connect("PLAINTEXT")
    [result] = (await admin.ask(request, 0)).results
    assert (result.user, result.error_code) == (user, 0)
    admin.close()


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_password_opens_every_api(
    tmp_path: Path, autojump_clock: MockClock, listener: str, version: int
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        context = client_context() if listener == "SASL_SSL" else None
        client = await at.connect(listener, context)
        assert (await client.ask(HELLO, 4)).error_code == 0
        [answer] = await authenticate(client, "PLAIN", plain("alice", "secret"), version=version)
        assert answer == (0, None, b"", 0)
        [broker] = (await client.ask(LOOK, 9)).brokers
        assert broker.node_id == 1
        assert str(at.principal(listener)) == "User:alice"
        # Without an expiry of the session the client need not reauthenticate.
        again = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.ask(LOOK, 9)).brokers


@pytest.mark.parametrize("steps", [0, 1], ids=["silent", "stops after the handshake"])
async def test_authentication_that_stops_closes_the_connection(
    tmp_path: Path, autojump_clock: MockClock, steps: int
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        began = trio.current_time()
        client = await at.connect("SASL_PLAINTEXT")
        for _ in range(steps):
            assert (await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)).error_code == 0
        assert await client.wait_closed() == b""
        assert trio.current_time() - began == pytest.approx(SASL_S)
        assert await at.closed(CloseReason.AUTHENTICATION_FAILED) == ["SASL_PLAINTEXT"]


async def test_oldest_form_has_no_headers(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        client = await at.connect("SASL_PLAINTEXT")
        assert (await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)).error_code == 0
        token = plain("alice", "secret")
        await client.stream.send_all(len(token).to_bytes(4, "big") + token)
        assert await client.receive_frame() == b""
        assert (await client.ask(LOOK, 9)).brokers


@pytest.mark.parametrize("number", [1, 2])
async def test_scram_credential_applies_when_set_until_deleted(
    tmp_path: Path, autojump_clock: MockClock, number: int
) -> None:
    mechanism = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}[number]

    async def tries(password: str) -> int:
        client = await at.connect("SASL_PLAINTEXT")
        proof = ScramClient(mechanism, "bö,b", password)
        [(error, _, challenge, _)] = await authenticate(client, mechanism, proof.first())
        assert error == 0
        answer = await client.ask(SaslAuthenticateRequest(auth_bytes=proof.final(challenge)), 2)
        if answer.error_code == 0:
            assert answer.auth_bytes.decode() == proof.verifier
        client.close()
        code: int = answer.error_code
        return code

    failed = ErrorCode.SASL_AUTHENTICATION_FAILED
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        assert await tries("one") == failed
        await set_password(at, "bö,b", number, "one")
        assert [await tries("one"), await tries("two")] == [0, failed]
        await set_password(at, "bö,b", number, "two")
        assert [await tries("one"), await tries("two")] == [failed, 0]
        await set_password(at, "bö,b", number, None)
        assert await tries("two") == failed


async def test_failed_authentication_response_is_delayed_before_close(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = (*SETTINGS, "connection.failed.authentication.delay.ms=700")
    with caplog.at_level(logging.INFO, "minibroker"):
        async with secured(tmp_path, autojump_clock, *wanted) as at:
            client = await at.connect("SASL_PLAINTEXT")
            began = trio.current_time()
            [(error, text, _, _)] = await authenticate(client, "PLAIN", plain("alice", "hunter2"))
            assert error == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert text == "Authentication failed: Invalid username or password"
            assert trio.current_time() - began == pytest.approx(0.7)
            assert await client.wait_closed() == b""
            assert await at.closed(CloseReason.AUTHENTICATION_FAILED) == ["SASL_PLAINTEXT"]
    logged = "".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "hunter2" not in logged
    assert "secret" not in logged


async def test_other_clients_are_served_while_a_failure_is_delayed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    wanted = (
        *SETTINGS,
        "connection.failed.authentication.delay.ms=60000",
        "num.network.threads=1",
    )
    async with secured(tmp_path, autojump_clock, *wanted) as at:
        bad = await at.connect("SASL_PLAINTEXT")
        await bad.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        await bad.send_request(SaslAuthenticateRequest(auth_bytes=plain("alice", "wrong")), 2)
        began = trio.current_time()
        good = await at.connect("SASL_PLAINTEXT")
        await authenticate(good, "PLAIN", plain("alice", "secret"))
        assert trio.current_time() - began < 1


async def test_unknown_mechanism_is_answered_with_the_enabled_ones(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        client = await at.connect("SASL_PLAINTEXT")
        answer = await client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ALL.split(",")
        assert await client.wait_closed() == b""


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_requests_before_authentication_are_rejected(
    tmp_path: Path, autojump_clock: MockClock, steps: int
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        client = await at.connect("SASL_PLAINTEXT")
        for request, version in ((HELLO, 4), (SaslHandshakeRequest(mechanism="PLAIN"), 1))[:steps]:
            await client.ask(request, version)
        await client.send_request(LOOK, 9)
        assert await client.wait_closed() == b""
        assert await at.closed(CloseReason.AUTHENTICATION_FAILED) == ["SASL_PLAINTEXT"]


async def test_unsupported_version_is_answered_as_before(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        client = await at.connect("SASL_PLAINTEXT")
        newest = bytearray(frame(HELLO, 4))
        newest[6:8] = (99).to_bytes(2, "big")
        await client.stream.send_all(bytes(newest))
        body = await client.receive_frame()
        assert body[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
        keys = {one.api_key for one in (await client.ask(ApiVersionsRequest(), 0)).api_keys}
        assert {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.FETCH} <= keys
        twice = await client.ask(ApiVersionsRequest(), 0)
        assert twice.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.wait_closed() == b""


async def test_requests_before_authentication_are_those_of_the_persona(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS, "persona=kafka-0.11") as at:
        client = await at.connect("SASL_PLAINTEXT")
        await client.send_request(HELLO, 4)
        body = await client.receive_frame()
        assert body[4:] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big") + bytes(4)
        assert (await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)).error_code == 0
        await client.stream.send_all(frame(SaslAuthenticateRequest(auth_bytes=b"x"), 0))
        assert await client.wait_closed() == b""


async def test_token_out_of_order_is_an_illegal_state(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        client = await at.connect("SASL_PLAINTEXT")
        answer = await client.ask(SaslAuthenticateRequest(auth_bytes=b"x"), 2)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.wait_closed() == b""


async def test_token_has_a_largest_size(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with secured(
        tmp_path, autojump_clock, *SETTINGS, "sasl.server.max.receive.size=1000"
    ) as at:
        client = await at.connect("SASL_PLAINTEXT")
        await client.stream.send_all((1001).to_bytes(4, "big"))
        assert await client.wait_closed() == b""
        assert await at.closed(CloseReason.FRAME_TOO_LARGE) == ["SASL_PLAINTEXT"]
        client = await at.connect("SASL_PLAINTEXT")
        await authenticate(client, "PLAIN", plain("alice", "secret"))
        large = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        await client.stream.send_all(frame(large, 9, client_id="c" * 2000))
        assert await client.receive_frame()


@pytest.mark.parametrize("reauthenticate", [False, True])
async def test_session_expires_without_reauthentication(
    tmp_path: Path, autojump_clock: MockClock, reauthenticate: bool
) -> None:
    limit = "listener.name.sasl_plaintext.plain.connections.max.reauth.ms=5000"
    async with secured(tmp_path, autojump_clock, *SETTINGS, limit) as at:
        client = await at.connect("SASL_PLAINTEXT")
        [answer] = await authenticate(client, "PLAIN", plain("alice", "secret"))
        assert answer[3] == 5000
        await trio.sleep(4)
        if reauthenticate:
            await authenticate(client, "PLAIN", plain("alice", "secret"))
        await trio.sleep(2)
        if reauthenticate:
            assert (await client.ask(LOOK, 9)).brokers
            return
        with pytest.raises(StreamClosed):
            await client.ask(LOOK, 9)
        assert await at.closed(CloseReason.SESSION_EXPIRED) == ["SASL_PLAINTEXT"]


async def test_second_reauthentication_within_a_second_is_rejected(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    limit = "listener.name.sasl_plaintext.plain.connections.max.reauth.ms=5000"
    async with secured(tmp_path, autojump_clock, *SETTINGS, limit) as at:
        client = await at.connect("SASL_PLAINTEXT")
        for _ in range(2):  # The first authentication is none.
            await authenticate(client, "PLAIN", plain("alice", "secret"))
        await trio.sleep(0.9)
        answer = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.ask(LOOK, 9)).brokers
        await trio.sleep(0.2)
        await authenticate(client, "PLAIN", plain("alice", "secret"))
        await trio.sleep(4.5)
        assert (await client.ask(LOOK, 9)).brokers


async def test_reauthentication_cannot_change_the_user(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS, "connections.max.reauth.ms=5000") as at:
        soon = trio.current_time() + at.wall_ms() / 1000 + 100
        tokens = [bearer(unsigned({"sub": name, "exp": soon})) for name in ("carol", "mallory")]
        client = await at.connect("SASL_PLAINTEXT")
        [(error, _, _, lifetime_ms)] = await authenticate(client, "OAUTHBEARER", tokens[0])
        assert (error, lifetime_ms) == (0, 5000)
        [(error, text, _, _)] = await authenticate(client, "OAUTHBEARER", tokens[1])
        assert error == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert text == "Cannot change principals during re-authentication"
        assert await client.wait_closed() == b""


async def test_expired_token_is_rejected(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        client = await at.connect("SASL_PLAINTEXT")
        past = bearer(unsigned({"sub": "carol", "exp": at.wall_ms() / 1000 - 1}))
        answers = await authenticate(client, "OAUTHBEARER", past, b"\x01")
        refusal = b'{"status":"invalid_token"}'
        assert answers[0] == (0, None, refusal, 0)
        assert answers[1][:2] == (ErrorCode.SASL_AUTHENTICATION_FAILED, refusal.decode())


async def test_plaintext_connection_needs_no_authentication(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        client = await at.connect("PLAINTEXT")
        answer = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        answer = await client.ask(SaslAuthenticateRequest(auth_bytes=b"x"), 1)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert str(at.principal("PLAINTEXT")) == "User:ANONYMOUS"


def rules(*pairs: str) -> object:
    given = [*SETTINGS, "ssl.keystore.location=/k.pem", *pairs]
    return token_rules(Settings.from_sources(pairs=given), "SASL_SSL")[1]


def test_token_rules_follow_kafka_s_settings(tmp_path: Path) -> None:
    options = 'unsecuredValidatorPrincipalClaimName="name" unsecuredValidatorRequiredScope="a b" '
    options += 'unsecuredValidatorAllowableClockSkewMs="3000"'
    line = "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config=x.OAuthBearerLoginModule required "
    wanted = rules(f"{line}{options};")
    assert wanted == ("name", "scope", {"a", "b"}, 3000, None, frozenset(), False)
    keys = tmp_path / "jwks.json"
    keys.write_text(jwks(jwk(KEY)))
    of_keys = f"sasl.oauthbearer.jwks.endpoint.url=file://{keys}"
    wanted = rules(of_keys, "sasl.oauthbearer.expected.audience=us")
    assert wanted == ("sub", "scope", frozenset(), 30_000, None, {"us"}, True)
    keys.write_text("{}")
    with pytest.raises(ConfigError, match=r"jwks\.endpoint\.url=file://.*is not a JWKS"):
        rules(of_keys)
    with pytest.raises(ConfigError, match="No such file"):
        rules("sasl.oauthbearer.jwks.endpoint.url=file:///nowhere.json")
    with pytest.raises(ConfigError, match="must be a whole number"):
        rules(f'{line} unsecuredValidatorAllowableClockSkewMs="x";')


def test_changed_keys_of_tokens_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(jwks(jwk(OTHER, "old")))
    keys = JwksFile(str(file))
    with pytest.raises(BadToken, match="unknown key"):
        keys.verify(signed())
    file.with_suffix(".new").write_text(jwks(jwk(KEY)))
    file.with_suffix(".new").replace(file)
    assert keys.verify(signed())["sub"]
    file.write_text("{}")  # An unusable or missing file changes nothing.
    assert keys.verify(signed())["sub"]
    file.unlink()
    assert keys.verify(signed())["sub"]


def test_requests_before_authentication_are_limited_to_three() -> None:
    assert set(ALLOWED) == {18, 17, 36}


SCRAM_JAAS = (
    "listener.name.sasl_plaintext.plain.sasl.jaas.config="
    'x.PlainLoginModule required user_alice="secret";'
)
TOKEN_SETTINGS = (
    "listeners=PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    SCRAM_JAAS,
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
    async with secured(tmp_path, autojump_clock, *TOKEN_SETTINGS) as at:
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
    async with secured(tmp_path, autojump_clock, *TOKEN_SETTINGS) as at:
        token = await token_of(await alice(at))
        assert (await login(at, token, more=""))[0] == FAILED
        token.hmac = b"wrong"
        assert (await login(at, token))[0] == FAILED
        token.token_id = "unknown"
        assert (await login(at, token))[0] == FAILED


async def test_removed_and_expired_tokens_are_rejected(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *TOKEN_SETTINGS) as at:
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

    monkeypatch.setattr(sasl, "token_credential", noting)
    monkeypatch.setattr(sasl, "CACHE_MAX", 1)
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


def test_library_of_signed_tokens_is_imported_only_for_them() -> None:
    code = "import sys, minibroker.broker.network.sasl; assert 'jwt' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

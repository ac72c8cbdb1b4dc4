"""Certificates are presented, and the issuer gives tokens, as the control API is asked to."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from trio.testing import MockClock

from minibroker.broker.metadata.image import BROKER
from minibroker.broker.security.oauth import BadToken, TokenRules, check_claims, verifier
from minibroker.broker.settings import Settings
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.http import make_app
from minibroker.lab.control.security import SECURITY_OPERATIONS
from minibroker.secured import Secured, secured, write_files
from minibroker.token_issuer import AUDIENCE, TokenKind
from tests.lab.control.running_broker import At

ISSUER = "http://127.0.0.1:1/v1/oauth"
RULES = TokenRules(issuer=ISSUER, audience=frozenset({AUDIENCE}), signed=True)
Connect = Callable[..., httpx.AsyncClient]


@pytest.fixture
def made(tmp_path: Path) -> Secured:
    return write_files(secured(tmp_path / "secrets", tls=True, sasl="oauth"))


@pytest.fixture
def connect(at: At) -> Connect:
    """A client of the API of a broker with a secured listener, or with none."""

    def open_client(
        made: Secured | None, token: str = "", listeners: str = ""
    ) -> httpx.AsyncClient:
        pairs = ["node.id=3", f"sasl.oauthbearer.expected.issuer={ISSUER}"]
        if made is not None:
            pairs += [f"listeners={listeners or f'{made.protocol}://127.0.0.1:0'}"]
            pairs += [f"{name}={value}" for name, value in made.settings().items()]
        env = replace(at.env, settings=Settings.from_sources(pairs=pairs))
        broker = ControlledBroker(
            env, at.scope, at.scope.subscribers, lambda *_: None, lambda: SECURITY_OPERATIONS
        )
        transport = httpx.ASGITransport(make_app(broker, (), token))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")

    return open_client


def form(made: Secured, **more: str) -> dict[str, str]:
    return {
        "grant_type": "client_credentials",
        "client_id": made.user,
        "client_secret": made.password,
        **more,
    }


async def user_of(client: httpx.AsyncClient, token: str, now_ms: int) -> str:
    """The user of a token, as a broker finds it with the published keys."""
    keys = (await client.get("/v1/oauth/keys")).text
    return check_claims(verifier(keys)(token), RULES, now_ms).user


async def test_issued_token_is_valid_for_the_broker(
    at: At, made: Secured, connect: Connect, autojump_clock: MockClock
) -> None:
    async with connect(made) as client:
        response = await client.post("/v1/oauth/token", data=form(made, scope="a b", audience="x"))
        assert response.status_code == 200
        assert response.headers["cache-control"] == "no-store"
        answer = response.json()
        assert (answer["token_type"], answer["expires_in"], answer["scope"]) == (
            "Bearer", 3600, "a b",
        )  # fmt: skip
        now_ms = at.env.clock.wall_ms()
        assert await user_of(client, answer["access_token"], now_ms) == made.user
        with pytest.raises(BadToken, match="expired"):
            await user_of(client, answer["access_token"], now_ms + 3_601_000)
        view = (await client.get("/v1/oauth")).json()
        assert (view["issued"], view["token_endpoint"]) == (1, f"{ISSUER}/token")


async def test_client_may_authenticate_by_the_scheme_basic(
    made: Secured, connect: Connect, autojump_clock: MockClock
) -> None:
    pair = base64.b64encode(f"{made.user}:{made.password}".encode()).decode()
    wrong = base64.b64encode(f"{made.user}:x".encode()).decode()
    # The API's own token is not needed: OAuth clients do not have it.
    async with connect(made, token="secret") as client:
        for given, status in ((pair, 200), (wrong, 401)):
            response = await client.post(
                "/v1/oauth/token",
                data={"grant_type": "client_credentials"},
                headers={"authorization": f"Basic {given}"},
            )
            assert response.status_code == status
        assert (await client.get("/v1/oauth/keys")).status_code == 200
        assert (await client.get("/v1/oauth/.well-known/openid-configuration")).status_code == 200
        for path in ("/v1/oauth", "/v1/certificate", "/v1/oauth/tokens", "/v1/oauth/rotate"):
            assert (await client.post(path, json={})).status_code == 401


@pytest.mark.parametrize(
    "changed",
    [
        {"client_secret": "x"},
        {"client_id": "x"},
        {"client_secret": "é"},
        {"grant_type": "password"},
        {"grant_type": ""},
    ],
)
async def test_wrong_token_request_gets_the_error_of_oauth(
    made: Secured, connect: Connect, autojump_clock: MockClock, changed: dict[str, str]
) -> None:
    wanted = (400, "unsupported_grant_type") if "grant_type" in changed else (401, "invalid_client")
    async with connect(made) as client:
        response = await client.post("/v1/oauth/token", data=form(made, **changed))
        assert (response.status_code, response.json()) == (wanted[0], {"error": wanted[1]})


@pytest.mark.parametrize("kind", sorted(set(get_args(TokenKind)) - {"valid"}))
async def test_endpoint_issues_wrong_tokens_on_request(
    at: At, made: Secured, connect: Connect, autojump_clock: MockClock, kind: str
) -> None:
    async with connect(made) as client:
        view = (await client.post("/v1/oauth", json={"kind": kind, "lifetime_s": 60})).json()
        assert (view["kind"], view["lifetime_s"]) == (kind, 60)
        response = await client.post("/v1/oauth/token", data=form(made))
        created = await client.post("/v1/oauth/tokens", json={"kind": kind, "subject": "alice"})
        for token in (response.json()["access_token"], created.json()["access_token"]):
            with pytest.raises(BadToken):
                await user_of(client, token, at.env.clock.wall_ms())


@pytest.mark.parametrize(("kind", "status"), [("denied", 401), ("unavailable", 503)])
async def test_endpoint_fails_on_request(
    made: Secured, connect: Connect, autojump_clock: MockClock, kind: str, status: int
) -> None:
    async with connect(made) as client:
        await client.post("/v1/oauth", json={"kind": kind})
        assert (await client.post("/v1/oauth/token", data=form(made))).status_code == status
        created = (await client.post("/v1/oauth/tokens", json={})).json()
        assert created["access_token"]


async def test_rotated_key_withdraws_older_tokens_only_on_request(
    at: At, made: Secured, connect: Connect, autojump_clock: MockClock
) -> None:
    now_ms = at.env.clock.wall_ms()
    async with connect(made) as client:
        old = (await client.post("/v1/oauth/tokens", json={})).json()["access_token"]
        kept = (await client.post("/v1/oauth/rotate", json={"algorithm": "RS256"})).json()["keys"]
        assert len(kept) == 2
        assert await user_of(client, old, now_ms) == made.user
        (key,) = (await client.post("/v1/oauth/rotate", json={"keep_old": False})).json()["keys"]
        assert key not in kept
        with pytest.raises(BadToken, match="unknown key"):
            await user_of(client, old, now_ms)


async def test_metadata_of_the_issuer_follow_discovery(
    made: Secured, connect: Connect, autojump_clock: MockClock
) -> None:
    async with connect(made) as client:
        found = (await client.get("/v1/oauth/.well-known/openid-configuration")).json()
        assert found["issuer"] == ISSUER
        for place in ("token_endpoint", "jwks_uri"):
            assert found[place].startswith(f"{ISSUER}/")


@pytest.mark.parametrize("kind", ["expired", "wrong_host", "valid"])
async def test_presented_certificate_is_set_for_the_listeners(
    at: At, made: Secured, connect: Connect, autojump_clock: MockClock, kind: str
) -> None:
    async with connect(made) as client:
        view = (await client.post("/v1/certificate", json={"kind": kind})).json()
    async with connect(made) as client:  # of another process, such as a restarted controller
        assert view == (await client.get("/v1/certificate")).json()
        assert view == {"kind": kind, "listeners": ["SASL_SSL"]}
        config = at.scope.image.configs[BROKER, "3"]
        location = Path(config["listener.name.sasl_ssl.ssl.keystore.location"])
        assert location.parent == made.folder
        assert (location.name == "server.pem") == (kind == "valid")
        assert location.name in os.listdir(made.folder)


async def test_operations_need_what_the_broker_was_started_with(
    tmp_path: Path, connect: Connect, autojump_clock: MockClock
) -> None:
    plain = write_files(secured(tmp_path / "plain", sasl="plain"))
    calls: list[tuple[str, Any]] = [("/v1/certificate", {}), ("/v1/oauth", {})]
    for made, codes in ((plain, ["NO_TLS", "NO_OAUTH"]), (None, ["NOT_SECURED"] * 2)):
        async with connect(made) as client:
            for (path, body), code in zip(calls, codes, strict=True):
                response = await client.post(path, json=body)
                assert (response.status_code, response.json()["error"]["code"]) == (409, code)
                assert (await client.get(path)).status_code == 409


async def test_client_certificate_is_created_for_a_user(
    tmp_path: Path, connect: Connect, autojump_clock: MockClock
) -> None:
    mutual = write_files(secured(tmp_path / "mutual", tls="mutual"))
    async with connect(mutual) as client:
        wishes = {"kind": "expired", "user": "alice"}
        answer = (await client.post("/v1/certificate/clients", json=wishes)).json()
        assert answer["file"].startswith(f"{mutual.folder}/client-expired-")
        assert {"PRIVATE KEY", "CERTIFICATE"} == {
            line.strip("-").removeprefix("BEGIN ")
            for line in answer["pem"].splitlines()
            if line.startswith("-----BEGIN")
        }
        for wrong, status in (({"kind": "wrong_host"}, 400), ({"user": "x" * 65}, 409)):
            response = await client.post("/v1/certificate/clients", json=wrong)
            assert response.status_code == status


async def test_client_certificate_needs_a_listener_that_asks_for_it(
    made: Secured, connect: Connect, autojump_clock: MockClock
) -> None:
    async with connect(made) as client:
        response = await client.post("/v1/certificate/clients", json={})
        assert response.status_code == 409
        error = response.json()["error"]
        assert error["code"] == "NO_CLIENT_AUTH"
        assert 'MiniBroker(tls="mutual")' in json.dumps(error).replace('\\"', '"')


async def test_certificate_needs_a_listener_with_tls(
    made: Secured, connect: Connect, autojump_clock: MockClock
) -> None:
    async with connect(made, listeners="PLAINTEXT://127.0.0.1:0") as client:
        response = await client.get("/v1/certificate")
        assert (response.status_code, response.json()["error"]["code"]) == (409, "NO_TLS")


async def test_unknown_kind_is_rejected(
    made: Secured, connect: Connect, autojump_clock: MockClock
) -> None:
    async with connect(made) as client:
        response = await client.post("/v1/certificate", json={"kind": "rotten"})
        assert response.status_code == 400
        assert "expired" in json.dumps(response.json())

"""``minibroker security`` changes the certificate and the tokens of a running broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.client.tokens import ClientCredentials, TokenNotFetched, fetch_token
from minibroker.testing import MiniBroker


@pytest.fixture(scope="module")
def secured_broker() -> Iterator[MiniBroker]:
    with MiniBroker(tls="mutual", sasl="oauth") as made:
        yield made


@pytest.fixture
def run(secured_broker: MiniBroker) -> Callable[..., str]:
    def run_command(*words: str) -> str:
        arguments = ["security", *words, "--control", secured_broker.control_url]
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None:
            raise result.exception
        return result.stdout.strip()

    return run_command


def test_certificate_is_presented(secured_broker: MiniBroker, run: Callable[..., str]) -> None:
    assert run("certificate", "expired") == "SASL_SSL: expired"
    assert secured_broker.control.get("v1", "certificate")["kind"] == "expired"
    assert json.loads(run("certificate", "valid", "--json"))["listeners"] == ["SASL_SSL"]


def test_client_certificate_is_printed(secured_broker: MiniBroker, run: Callable[..., str]) -> None:
    pem = run("client-certificate", "expired", "--user", "alice")
    assert (pem.count("PRIVATE KEY"), pem.splitlines()[-1]) == (2, "-----END CERTIFICATE-----")
    made = json.loads(run("client-certificate", "valid", "--json"))
    assert Path(made["file"]).read_text() == made["pem"]


def test_tokens_are_issued_as_a_command_says(
    secured_broker: MiniBroker, run: Callable[..., str]
) -> None:
    config = secured_broker.client_config()
    secret = config["sasl.oauthbearer.client.secret"]
    credentials = ClientCredentials(config["sasl.oauthbearer.token.endpoint.url"], "test", secret)
    assert run("issue", "denied") == f"{credentials.url}: denied"
    with pytest.raises(TokenNotFetched, match="invalid_client"):
        fetch_token(credentials)
    assert json.loads(run("issue", "valid", "--lifetime", "60", "--json"))["lifetime_s"] == 60
    assert fetch_token(credentials).count(".") == 2


def test_token_is_printed(run: Callable[..., str]) -> None:
    assert run("token", "expired", "--subject", "alice", "--scope", "all").count(".") == 2
    assert json.loads(run("token", "--json"))["access_token"]


def test_keys_are_rotated(secured_broker: MiniBroker, run: Callable[..., str]) -> None:
    key = run("rotate-keys", "--withdraw-old", "--algorithm", "RS256")
    assert secured_broker.tokens.issuer()["keys"] == [key]
    assert len(json.loads(run("rotate-keys", "--json"))["keys"]) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("certificate", "rotten"),
        ("client-certificate", "wrong_host"),
        ("token", "denied"),
        ("issue",),
    ],
)
def test_unknown_kind_is_invalid_usage(run: Callable[..., str], words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as raised:
        run(*words)
    assert raised.value.code == 2

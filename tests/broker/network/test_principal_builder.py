"""Principals: from SASL, certificates, rules, and a custom class."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from trio.testing import MockClock

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.principal_builder import (
    KAFKA_DEFAULT_BUILDER,
    PrincipalBuilder,
    PrincipalNotBuilt,
)
from minibroker.broker.security.principal import ANONYMOUS, Introduction, Principal
from minibroker.broker.settings import ConfigError, Settings
from tests.broker.network.certificates import client_context, truststore
from tests.broker.network.secured import HELLO, secured

LISTENERS = (
    "listeners=SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "ssl.keystore.location=/k.pem",
    "sasl.enabled.mechanisms=SCRAM-SHA-256",
)
SUBJECT = ((("organizationName", "Tests"),), (("commonName", "Alice"),))
RULES = "ssl.principal.mapping.rules=RULE:CN=([^,]*),O=Tests/$1/L"


def by_address(introduction: Introduction) -> object:
    """The builder that these tests plug in."""
    if introduction.client_host == "10.0.0.9":
        raise LookupError("nobody lives there")
    if introduction.client_host == "10.0.0.8":
        return "nobody"
    if introduction.listener == "PLAINTEXT":
        return Principal("Host", introduction.client_host)
    return f"User:{introduction.sasl_user or introduction.subject or 'nobody'}"


BUILDER = f"principal.builder.class={__name__}:by_address"


def named(
    *pairs: str,
    listener: str = "SSL",
    host: str = "10.0.0.1",
    user: str | None = None,
    shown: bool = False,
) -> str:
    settings = Settings.from_sources(pairs=[*LISTENERS, *pairs])
    subject = SUBJECT if shown else None
    return str(PrincipalBuilder(settings).principal(listener, host, user, subject))


def test_principal_without_rules_is_the_subject() -> None:
    assert named(listener="PLAINTEXT") == str(ANONYMOUS)
    assert named() == str(ANONYMOUS)
    assert named(shown=True) == "User:CN=Alice,O=Tests"
    assert named(shown=True, user="bob") == "User:bob"
    assert (
        named(f"principal.builder.class={KAFKA_DEFAULT_BUILDER}", shown=True)
        == "User:CN=Alice,O=Tests"
    )


def test_rules_make_names_of_certificates() -> None:
    assert named(RULES, shown=True) == "User:alice"
    own = "listener.name.ssl.ssl.principal.mapping.rules=RULE:CN=(.*),.*/$1/"
    assert named(RULES, own, shown=True) == "User:Alice"
    with pytest.raises(PrincipalNotBuilt, match="no rule"):
        named("ssl.principal.mapping.rules=RULE:CN=bob/b/", shown=True)


def test_principal_builder_gets_listener_user_and_certificate() -> None:
    assert named(BUILDER, listener="PLAINTEXT") == "Host:10.0.0.1"
    assert named(BUILDER, listener="SASL_PLAINTEXT", user="bob") == "User:bob"
    assert named(BUILDER, shown=True) == "User:CN=Alice,O=Tests"
    with pytest.raises(PrincipalNotBuilt, match="failed: LookupError: nobody lives there"):
        named(BUILDER, host="10.0.0.9")
    with pytest.raises(
        PrincipalNotBuilt, match="returned no principal: 'nobody' must be KIND:NAME"
    ):
        named(BUILDER, host="10.0.0.8")


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ("principal.builder.class=org.example.Builder", "must be a Python package.module:callable"),
        ("principal.builder.class=no_such_module:f", "can't be loaded: ModuleNotFoundError"),
        (f"principal.builder.class={__name__}:nothing", "can't be loaded: AttributeError"),
        (f"principal.builder.class={__name__}:BUILDER", "is not callable"),
        ("ssl.principal.mapping.rules=RULE:x", r"rules \(SSL\): has 'RULE:x', which is not a rule"),
    ],
)
def test_invalid_principal_builder_is_rejected_at_start(pair: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        named(pair)


async def test_certificate_names_the_requests_of_its_connection(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    wanted = (
        "listeners=SSL://127.0.0.1:0",
        f"ssl.truststore.location={truststore(tmp_path)}",
        "ssl.client.auth=requested",
        "ssl.principal.mapping.rules=RULE:CN=(ali[a-z]*),.*O=Tests/$1/U,RULE:CN=bob,.*/$0/",
    )
    async with secured(tmp_path, autojump_clock, *wanted) as at:
        for name, principal in ((None, "ANONYMOUS"), ("alice", "ALICE")):
            client = await at.connect("SSL", client_context(name))
            assert (await client.ask(HELLO, 4)).error_code == 0
            assert at.principal("SSL") == Principal("User", principal)
        stranger = await at.connect("SSL", client_context("mallory"))
        assert await stranger.wait_closed() == b""
        assert await at.closed(CloseReason.AUTHENTICATION_FAILED) == ["SSL"]


async def test_unresolvable_address_fails_only_its_connection(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with secured(tmp_path, autojump_clock, BUILDER) as at:
        good = await at.connect("PLAINTEXT")
        await good.ask(HELLO, 4)
        assert at.principal("PLAINTEXT") == Principal("Host", "127.0.0.1")
        with caplog.at_level(logging.INFO, "minibroker"):
            bad = await at.broker.sources["PLAINTEXT"].connect("10.0.0.9")
            assert await bad.receive_into(memoryview(bytearray(1))) == 0
            assert await at.closed(CloseReason.AUTHENTICATION_FAILED) == ["PLAINTEXT"]
        await good.ask(HELLO, 4)

"""Configurations of clients, in the names of each library, have what a secured broker needs."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.security.client_properties import read_client_properties, tls_context
from minibroker.client.configs import (
    CLIENTS,
    client_config,
    config_json,
    config_text,
    keep_client_properties,
)
from minibroker.secured import InvalidSecurity, Secured, read_files
from tests.test_secured import written


@pytest.mark.parametrize("library", sorted(set(CLIENTS) - {"franz-go"}))
@pytest.mark.parametrize("tls", [True, "mutual"])
def test_every_client_gets_server_authority_and_password(
    tmp_path: Path, library: str, tls: object
) -> None:
    made = written(tmp_path, tls)
    config = client_config(made, library.upper(), "localhost:1,localhost:2")
    shown = str(config).replace("\\n", "\n")
    for wanted in ("localhost:1", "localhost:2", made.password, "test"):
        assert wanted in shown
    is_text = library == "kafkajs"
    authority = Path(made.authority).read_text() if is_text else made.authority
    key = Path(made.certificate).read_text() if is_text else made.certificate
    if library == "aiokafka":
        assert config["ssl_context"].verify_mode == ssl.CERT_REQUIRED
    else:
        assert authority in shown
        assert (key in shown) == (tls == "mutual")
    assert made.password in config_text(made, library, "localhost:1")


def test_properties_are_read_by_the_commands(tmp_path: Path) -> None:
    made = written(tmp_path, "mutual")
    read = read_client_properties(made.properties)
    assert (read.protocol, read.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert tls_context(read).get_ca_certs()


@pytest.fixture
def oauth(tmp_path: Path) -> Secured:
    return written(tmp_path, "mutual", "oauth")._replace(issuer="http://there:1/v1/oauth")


def test_librdkafka_and_java_fetch_tokens_of_the_issuer(oauth: Secured) -> None:
    config = client_config(oauth, "confluent-kafka", "there:2")
    assert config["sasl.oauthbearer.method"] == "oidc"
    assert config["sasl.oauthbearer.token.endpoint.url"] == "http://there:1/v1/oauth/token"
    text = config_text(oauth, "java", "there:2")
    assert f'clientId="test" clientSecret="{oauth.password}"' in text
    assert "allowed.urls=http://there:1/v1/oauth/token" in text.splitlines()[0]
    keep_client_properties(oauth)
    read = read_client_properties(oauth.properties)
    assert read.token_endpoint == "http://there:1/v1/oauth/token"
    assert read_files(oauth.folder) == oauth


@pytest.mark.parametrize("library", ["kafka-python", "aiokafka"])
def test_printed_python_has_the_same_configuration(oauth: Secured, library: str) -> None:
    printed: dict[str, Any] = {}
    exec(config_text(oauth, library, "there:2"), printed)
    config = client_config(oauth, library, "there:2")
    assert printed["config"].keys() == config.keys()
    for name, value in config.items():
        same = type(value).__name__ == type(printed["config"][name]).__name__
        assert (
            same
            if name in {"ssl_context", "sasl_oauth_token_provider"}
            else (printed["config"][name] == value)
        )


def test_printed_context_of_aiokafka_trusts_the_authority_only(tmp_path: Path) -> None:
    made = written(tmp_path, True)
    printed: dict[str, Any] = {}
    exec(config_text(made, "aiokafka", "there:2"), printed)
    context = printed["config"]["ssl_context"]
    assert context.verify_mode == ssl.CERT_REQUIRED
    (trusted,) = context.get_ca_certs()
    assert ("organizationName", "minibroker") in [part[0] for part in trusted["subject"]]


def test_printed_code_keeps_other_characters(tmp_path: Path) -> None:
    made = written(tmp_path / "sécurité-🐈", True)
    printed: dict[str, Any] = {}
    exec(config_text(made, "aiokafka", "there:2"), printed)
    assert printed["config"]["ssl_context"].get_ca_certs()
    assert made.authority in config_text(made, "franz-go", "there:2")


def test_libraries_without_objects_are_configured_by_code(oauth: Secured) -> None:
    for library in ("franz-go", "kafkajs"):
        with pytest.raises(InvalidSecurity, match="by code: minibroker client-config"):
            client_config(oauth, library, "there:2")
    assert "oauthBearerProvider" in config_text(oauth, "kafkajs", "there:2")


@pytest.mark.parametrize("tls", [True, "mutual"])
@pytest.mark.parametrize("sasl", ["plain", "scram-sha-256", "oauth", None])
def test_franz_go_gets_servers_authority_and_password(
    tmp_path: Path, tls: object, sasl: str | None
) -> None:
    made = written(tmp_path, tls, sasl)
    code = config_text(made, "franz-go", "localhost:1,localhost:2")
    assert 'kgo.SeedBrokers("localhost:1", "localhost:2")' in code
    assert made.authority in code
    assert (made.certificate in code) == (tls == "mutual")
    assert sasl is None or made.password in code
    assert "<" not in code.replace("<-", "")


@pytest.mark.parametrize(
    ("language", "library"),
    [("Python", "confluent-kafka"), ("node", "kafkajs"), ("go", "franz-go"), ("java", "java")],
)
def test_language_stands_for_a_library(oauth: Secured, language: str, library: str) -> None:
    assert config_text(oauth, language, "there:1") == config_text(oauth, library, "there:1")
    assert config_json(oauth, language, "there:1") == config_json(oauth, library, "there:1")


def test_json_has_data_or_code(oauth: Secured, tmp_path: Path) -> None:
    found = config_json(oauth, "librdkafka", "there:1")
    assert found == {
        "library": "librdkafka",
        "config": client_config(oauth, "librdkafka", "there:1"),
    }
    for library in ("franz-go", "kafkajs", "aiokafka"):
        code = config_text(oauth, library, "there:1")
        assert config_json(oauth, library, "there:1") == {"library": library, "code": code}
    plain = written(tmp_path, False, "plain")
    assert config_json(plain, "kafkajs", "there:1")["config"]["brokers"] == ["there:1"]


def test_unknown_client_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidSecurity, match=r"no client 'jaav'; did you mean 'java'\?"):
        client_config(Secured(tmp_path, "none", None), "jaav", "")

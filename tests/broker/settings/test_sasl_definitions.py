"""Settings of SASL: the listener and mechanism of a value, and hidden values."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import (
    CONNECTIONS_MAX_REAUTH_MS,
    SASL_JAAS_CONFIG,
    SASL_OAUTHBEARER_JWKS_ENDPOINT_URL,
    ConfigError,
    Settings,
)

SASL = "listeners=SASL_PLAINTEXT://127.0.0.1:0"


def refusal(*pairs: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(pairs=pairs)
    return str(caught.value)


def test_most_specific_listener_and_mechanism_prefix_wins() -> None:
    name = CONNECTIONS_MAX_REAUTH_MS.name
    settings = Settings.from_sources(
        pairs=[
            f"{name}=1",
            f"listener.name.a.{name}=2",
            f"listener.name.a.scram-sha-256.{name}=3",
        ]
    )
    asked = [("A", "SCRAM-SHA-256"), ("A", "PLAIN"), ("A", ""), ("B", "PLAIN")]
    found = [settings.at_listener(at, CONNECTIONS_MAX_REAUTH_MS, how) for at, how in asked]
    assert found == [3, 2, 2, 1]
    ignored = Settings.from_sources(pairs=[f"listener.name.a.gssapi.{name}=3"]).ignored
    assert [entry.name for entry in ignored] == [f"listener.name.a.gssapi.{name}"]


def test_sasl_listener_without_mechanisms_or_plain_users_is_rejected() -> None:
    assert "sasl.enabled.mechanisms= (default): must name mechanisms" in refusal(SASL)
    assert "has GSSAPI; the supported mechanisms are PLAIN" in refusal(
        "sasl.enabled.mechanisms=GSSAPI"
    )
    text = refusal(SASL, "sasl.enabled.mechanisms=PLAIN")
    assert "set listener.name.sasl_plaintext.plain.sasl.jaas.config to org.apache" in text
    Settings.from_sources(pairs=[SASL, "sasl.enabled.mechanisms=SCRAM-SHA-512"])


def test_jaas_password_is_not_in_error_or_repr() -> None:
    name = f"listener.name.a.plain.{SASL_JAAS_CONFIG.name}"
    text = refusal(f"{name}=hunter2")
    assert f"{name}=[hidden] (--set): must be a JAAS line" in text
    settings = Settings.from_sources(pairs=[f'{name}=M required user_a="hunter2";'])
    assert "hunter2" not in repr(settings)


def test_jwks_url_that_is_not_a_file_is_rejected() -> None:
    name = SASL_OAUTHBEARER_JWKS_ENDPOINT_URL.name
    assert "must be a file" in refusal(f"{name}=https://example.test/jwks")
    settings = Settings.from_sources(pairs=[f"{name}=file:///etc/keys.json"])
    assert settings[SASL_OAUTHBEARER_JWKS_ENDPOINT_URL] == "/etc/keys.json"
    assert settings.text(name) == "file:///etc/keys.json"

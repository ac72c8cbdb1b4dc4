"""Settings of TLS: the form of stores, and that no error shows a key."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import (
    SSL_ENABLED_PROTOCOLS,
    SSL_KEYSTORE_KEY,
    ConfigError,
    Settings,
)


def refusal(*pairs: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(pairs=pairs)
    return str(caught.value)


@pytest.mark.parametrize("name", ["ssl.keystore.type", "ssl.truststore.type"])
@pytest.mark.parametrize("form", ["JKS", "pkcs12"])
def test_java_keystore_is_rejected_with_conversion_commands(name: str, form: str) -> None:
    text = refusal(f"{name}={form}")
    assert name in text
    assert "keytool -importkeystore" in text
    assert "openssl pkcs12" in text
    Settings.from_sources(pairs=[f"{name}=pem"])


def test_tls_before_1_2_is_rejected() -> None:
    assert "must be a list of TLSv1.2, TLSv1.3" in refusal("ssl.enabled.protocols=TLSv1.1")
    settings = Settings.from_sources(
        pairs=["listener.name.outside.ssl.enabled.protocols=TLSv1.3"],
    )
    assert settings.at_listener("OUTSIDE", SSL_ENABLED_PROTOCOLS) == ("TLSv1.3",)
    assert settings.at_listener("INSIDE", SSL_ENABLED_PROTOCOLS) == ("TLSv1.2", "TLSv1.3")


def test_keystore_key_is_not_in_repr() -> None:
    settings = Settings.from_sources(pairs=["listener.name.a.ssl.keystore.key=topsecret"])
    assert "topsecret" not in repr(settings)
    assert SSL_KEYSTORE_KEY.sensitive

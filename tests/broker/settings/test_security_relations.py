"""What listeners with TLS need, said so that it can be mended."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import ConfigError, Settings

LISTENERS = "listeners=SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"


def problem(*pairs: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(pairs=[LISTENERS, *pairs])
    [text] = caught.value.problems
    return text


def test_tls_listener_without_certificate_is_rejected() -> None:
    text = problem()
    assert text.startswith("listeners=SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0 (--set):")
    assert "ssl.keystore.location" in text
    Settings.from_sources(pairs=[LISTENERS, "ssl.keystore.location=/k.pem"])
    Settings.from_sources(pairs=[LISTENERS, "listener.name.ssl.ssl.keystore.location=/k.pem"])
    inline = ["ssl.keystore.key=k", "ssl.keystore.certificate.chain=c"]
    Settings.from_sources(pairs=[LISTENERS, *inline])
    assert "SSL" in problem("ssl.keystore.key=k")


def test_keystore_file_and_inline_key_together_are_rejected() -> None:
    text = problem("ssl.keystore.location=/k.pem", "ssl.keystore.key=secret")
    assert text.startswith("ssl.keystore.location=/k.pem (--set): conflicts with ssl.keystore.key")
    text = problem(
        "ssl.keystore.location=/k.pem",
        "listener.name.ssl.ssl.truststore.location=/t.pem",
        "ssl.truststore.certificates=c",
    )
    assert text.startswith("listener.name.ssl.ssl.truststore.location=/t.pem")


@pytest.mark.parametrize("wanted", ["requested", "required"])
def test_client_auth_without_truststore_is_rejected(wanted: str) -> None:
    text = problem("ssl.keystore.location=/k.pem", f"ssl.client.auth={wanted}")
    assert text.startswith(f"ssl.client.auth={wanted} (--set): needs certificate authorities")


def test_client_auth_without_tls_listener_is_accepted() -> None:
    Settings.from_sources(pairs=["ssl.client.auth=required"])

"""Settings in a client's properties; error texts are tested with the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.broker.security.client_properties import ClientProperties, read_client_properties
from minibroker.broker.settings.settings import ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"

Read = Callable[..., ClientProperties]


@pytest.fixture
def read(properties: Callable[..., str]) -> Read:
    return lambda *lines: read_client_properties(properties(*lines))


def test_client_properties_repr_hides_secrets(read: Read) -> None:
    client = read(
        "security.protocol=sasl_ssl",
        "sasl.mechanism=plain",
        f'sasl.jaas.config={PLAIN} username="alice" password="hush";',
        "ssl.key.password=hush",
    )
    assert (client.protocol, client.mechanism, client.has_tls) == ("SASL_SSL", "PLAIN", True)
    assert client.jaas is not None
    assert dict(client.jaas.options)["password"] == "hush"
    assert "hush" not in f"{client} {client!r}"


def test_tls_without_options_sends_no_certificate_and_verifies_hosts(read: Read) -> None:
    client = read("acks=all")
    assert (client.protocol, client.mechanism, client.jaas) == ("PLAINTEXT", None, None)
    assert (client.checks_host, client.trusted, client.token_file) == (True, None, None)
    assert not read("ssl.endpoint.identification.algorithm=").checks_host


def test_truststore_location_overrides_certificates_text(read: Read) -> None:
    lines = ("ssl.truststore.certificates=text", "ssl.truststore.location=file")
    trusted = [read(*lines[:number]).trusted for number in (1, 2)]
    assert [each.value for each in trusted if each] == ["text", "file"]


def test_file_of_a_token_is_a_path(read: Read) -> None:
    lines = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER"]
    lines += [f"sasl.jaas.config={BEARER} ;"]
    url = "sasl.oauthbearer.token.endpoint.url=file:/a%20token"
    assert read(*lines, url).token_file == Path("/a token")
    with pytest.raises(ConfigError, match=r"properties:3: .* has no unsecuredLoginStringClaim_sub"):
        read(*lines)

from __future__ import annotations

import ssl

import pytest

from minibroker.broker.security.handshakes import BadPem, Pem, client_context, explain_tls_failure


def verification_error(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


def test_hostname_mismatch_is_explained_with_remedy() -> None:
    text = explain_tls_failure(verification_error(62, "Hostname mismatch."), "servers", "x.")
    assert text.startswith(
        "Hostname mismatch. Use a host name in servers that its certificate contains, or "
    )
    assert text.endswith("x.ssl.endpoint.identification.algorithm empty")


def test_untrusted_certificate_is_explained_with_remedy() -> None:
    text = explain_tls_failure(verification_error(18, "self-signed certificate"), "servers", "x.")
    assert text.startswith("its certificate is not trusted (self-signed certificate); ")
    assert text.endswith("check x.ssl.truststore.location")


def test_non_tls_server_is_reported_as_wrong_port() -> None:
    text = explain_tls_failure(ssl.SSLError(1, "wrong version number"), "servers")
    assert text.endswith(
        "wrong version number; check that the port in servers is that of a TLS listener"
    )


def test_plaintext_server_is_named_before_openssl_is_quoted() -> None:
    server, client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connection = ssl.create_default_context().wrap_bio(server, client, server_hostname="there")
    with pytest.raises(ssl.SSLError) as raised:
        connection.do_handshake()
    text = explain_tls_failure(raised.value, "servers")
    assert text.startswith("the server does not speak TLS: ")
    assert "[SSL" not in text
    assert "_ssl.c" not in text


def test_rejected_handshake_does_not_suggest_another_port() -> None:
    error = ssl.SSLError(1, "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert protocol version")
    text = explain_tls_failure(error, "servers", "x.")
    assert text.startswith("the server rejected the handshake: ")
    assert text.endswith("; check x.ssl.* settings")


def test_reset_during_handshake_suggests_wrong_port() -> None:
    text = explain_tls_failure(ConnectionResetError("reset"), "servers")
    assert text == (
        "the TLS handshake failed (reset); check that the port in servers is that of a TLS listener"
    )


@pytest.mark.parametrize(
    ("pem", "field"),
    [
        (Pem(True, truststore="no such file"), "truststore"),
        (Pem(True, truststore="no such file", authorities="none"), "truststore"),
        (Pem(True, authorities=""), "authorities"),
        (Pem(True, keystore="no such file"), "keystore"),
    ],
)
def test_invalid_pem_is_rejected_with_its_field(pem: Pem, field: str) -> None:
    with pytest.raises(BadPem, match=r"^can't be read as PEM") as raised:
        client_context(pem, "the.password")
    assert raised.value.field == field
    assert ("the.password" in str(raised.value)) == (field == "keystore")


def test_hostname_verification_follows_setting() -> None:
    for checks_host in (True, False):
        context = client_context(Pem(checks_host), "the.password")
        assert (context.check_hostname, context.verify_mode) == (checks_host, ssl.CERT_REQUIRED)

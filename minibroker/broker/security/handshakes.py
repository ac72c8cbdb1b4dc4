"""Client side of TLS: contexts from PEM files, and messages for failed handshakes.

Owns the conversion of PEM to a client's context, and of OpenSSL's errors to messages. It must never
open a connection. Invariant: a message names the settings that can correct the error, as they are
written.
"""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple

_NAME_MISMATCH_CODES: Final = (62, 64)
"""OpenSSL's codes for a certificate that was issued for another host name or address."""


class Pem(NamedTuple):
    """Truststore and keystore of a client.

    Trusted authorities come from ``truststore`` (a file), else from ``authorities`` (PEM text),
    else from the system. ``keystore`` contains a key and its certificates.
    """

    checks_host: bool
    truststore: str | None = None
    authorities: str | None = None
    keystore: str | None = None
    key_password: str | None = None


class BadPem(ValueError):
    """Raised if a field of a `Pem` cannot be read; the caller prefixes the setting's name."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def client_context(pem: Pem, key_password: str) -> ssl.SSLContext:
    """Return OpenSSL's context; ``key_password`` is the setting's name. Raises `BadPem`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = pem.checks_host
    try:
        if pem.truststore is not None:
            context.load_verify_locations(cafile=pem.truststore)
        elif pem.authorities is not None:
            context.load_verify_locations(cadata=pem.authorities)
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:  # Includes ssl.SSLError; an empty text is a ValueError.
        field = "authorities" if pem.truststore is None else "truststore"
        raise BadPem(field, f"can't be read as PEM: {error}") from None
    try:
        if pem.keystore is not None:
            # Without a password, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(pem.keystore, password=pem.key_password or "")
    except OSError as error:
        text = f"can't be read as PEM with a key and certificates (check {key_password}): {error}"
        raise BadPem("keystore", text) from None
    return context


def explain_tls_failure(failure: OSError, address: str, prefix: str = "") -> str:
    """Explain a failed handshake and name the settings to check.

    ``address`` is the setting with the server's address; ``prefix`` precedes ``ssl.`` in the names
    of the TLS settings.
    """
    if isinstance(failure, ssl.SSLCertVerificationError):
        if failure.verify_code in _NAME_MISMATCH_CODES:
            return (
                f"{failure.verify_message} Use a host name in {address} that its certificate "
                f"contains, or leave {prefix}ssl.endpoint.identification.algorithm empty"
            )
        return (
            f"its certificate is not trusted ({failure.verify_message}); "
            f"check {prefix}ssl.truststore.location"
        )
    reason = f"the TLS handshake failed ({failure})"
    if isinstance(failure, ssl.SSLError):
        openssl = str(getattr(failure, "reason", None) or failure).lower().replace("_", " ")
        if "alert" in openssl:
            return f"the server rejected the handshake: {openssl}; check {prefix}ssl.* settings"
        reason = f"the server does not speak TLS: {openssl}"
    return f"{reason}; check that the port in {address} is that of a TLS listener"

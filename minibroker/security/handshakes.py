"""Our side of a TLS handshake with a server: what it believes and shows, and why it failed.

Owns how PEM becomes a client's context, and the reading of OpenSSL's errors in words for who
configured it; it must never open a connection.  The invariant: a text names the settings that can
mend it, as they are called where they are set.
"""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple

_OTHER_NAME: Final = (62, 64)
"""OpenSSL's numbers for a certificate that is for another host, or another address."""


class Pem(NamedTuple):
    """What a client believes and shows: authorities from a file or else from their text, without
    either those that the system knows; a file with a key and its certificates, or nothing.
    """

    checks_host: bool
    truststore: str | None = None
    authorities: str | None = None
    keystore: str | None = None
    key_password: str | None = None


class BadPem(ValueError):
    """What a field of a `Pem` says can't be read; the text goes on behind the setting's name."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def client_context(pem: Pem, key_password: str) -> ssl.SSLContext:
    """What OpenSSL makes of it; ``key_password`` is the setting's name. Raises `BadPem`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = pem.checks_host
    try:
        if pem.truststore is not None:
            context.load_verify_locations(cafile=pem.truststore)
        elif pem.authorities is not None:
            context.load_verify_locations(cadata=pem.authorities)
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:  # ssl.SSLError is one too; nothing at all is a value
        field = "authorities" if pem.truststore is None else "truststore"
        raise BadPem(field, f"can't be read as PEM: {error}") from None
    try:
        if pem.keystore is not None:
            # Without a password given, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(pem.keystore, password=pem.key_password or "")
    except OSError as error:
        text = "can't be read as PEM with a key and certificates "
        raise BadPem("keystore", f"{text}(is {key_password} right?): {error}") from None
    return context


def why_no_tls(failure: OSError, address: str, prefix: str = "") -> str:
    """What a handshake raised; ``address`` is the setting that names the server, and ``prefix``
    stands before ``ssl.``.
    """
    if isinstance(failure, ssl.SSLCertVerificationError):
        if failure.verify_code in _OTHER_NAME:
            return (
                f"{failure.verify_message} Name it in {address} as its certificate does, "
                f"or leave {prefix}ssl.endpoint.identification.algorithm empty"
            )
        return (
            f"its certificate is not trusted ({failure.verify_message}); "
            f"is {prefix}ssl.truststore.location right?"
        )
    said = failure if isinstance(failure, ssl.SSLError) else f"it ended the handshake ({failure})"
    return f"{said}; is its port in {address} one for TLS?"

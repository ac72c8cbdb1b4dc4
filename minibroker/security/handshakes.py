"""Why a TLS handshake with a server failed, in words for who configured it.

Owns the reading of OpenSSL's errors; it must never open a connection.  The invariant: a text names
the settings that can mend it, with the prefix under which they are set.
"""

from __future__ import annotations

import ssl
from typing import Final

_OTHER_NAME: Final = (62, 64)
"""OpenSSL's numbers for a certificate that is for another host, or another address."""


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

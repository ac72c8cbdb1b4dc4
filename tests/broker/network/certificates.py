"""Certificates for one test run: an authority, a server's, and clients'.

Generated each time, so none is ever in the repository.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import trustme

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@cache
def authority() -> trustme.CA:
    return trustme.CA()


def keystore(directory: Path) -> Path:
    """A PEM file with the server's key and chain."""
    path = directory / "server.pem"
    if not path.exists():
        made = authority().issue_cert("localhost", "127.0.0.1")
        made.private_key_and_cert_chain_pem.write_to_path(path)
    return path


def truststore(directory: Path) -> Path:
    """A PEM file with the authority's certificate."""
    path = directory / "authority.pem"
    authority().cert_pem.write_to_path(path)
    return path


def client_context(name: str | None = None, *, expired: bool = False) -> ssl.SSLContext:
    """Return a client's context, with a certificate if it has a name."""
    context = ssl.create_default_context()
    authority().configure_trust(context)
    context.check_hostname = False
    if name is not None:
        made = authority().issue_cert(
            common_name=name,
            organization_name="Tests",
            not_before=LONG_AGO.replace(year=2019) if expired else None,
            not_after=LONG_AGO if expired else None,
        )
        made.configure_cert(context)
    return context

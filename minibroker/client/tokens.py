"""Fetches a token from the token endpoint of an issuer, as OAuth clients do.

Owns the request of the grant ``client_credentials`` and the errors of its response. It must never
keep a token, nor import anything beyond the standard library. Invariant: an error contains no
secret. Kafka's ``HttpJwtRetriever``; RFC 6749, section 4.4.
"""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from typing import Final, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode

TIMEOUT_S: Final = 10.0
_SHOWN_CHARS_MAX: Final = 200


class TokenNotFetched(Exception):
    """The endpoint gave no token; the text says why."""


class ClientCredentials(NamedTuple):
    """How a client asks for tokens."""

    url: str
    client_id: str
    secret: str
    scope: str = ""


def fetch_token(credentials: ClientCredentials) -> str:
    """Return a new token. Raises `TokenNotFetched`."""
    url, client_id, secret, scope = credentials
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    if scope:
        form["scope"] = scope
    try:
        data = urlencode(form).encode()
        # The URL is from the configuration of the client itself.
        with urllib.request.urlopen(url, data, TIMEOUT_S) as response:  # noqa: S310
            return str(json.load(response)["access_token"])
    except HTTPError as error:
        shown = error.read()[:_SHOWN_CHARS_MAX].decode(errors="replace").strip()
        raise TokenNotFetched(f"{url} answered {error.code}: {shown}") from None
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise TokenNotFetched(f"{url} gave no token: {error}") from None

"""The URL of a control API, which contains its token if it has one.

Owns how a token is written into a URL, and how it is sent. It must never know a socket or a broker,
nor import anything beyond the standard library. Invariant: whoever has the URL can use the API.
The token is a password of HTTP's Basic scheme (RFC 7617), which curl and browsers read from a URL;
the user name has no meaning.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

USER: Final = "minibroker"


class ControlUrl(NamedTuple):
    """A URL in parts."""

    address: str
    """``host:port``"""
    headers: dict[str, str]
    """What requests must contain."""


def with_token(url: str, token: str) -> str:
    """Return the URL with a token; an empty one is none."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{USER}:{quote(token, safe='')}@{rest}" if token else url


def split(url: str) -> ControlUrl:
    """Return the parts of a URL; its scheme may be missing."""
    place = urlsplit(url if "//" in url else f"//{url}", scheme="http")
    address = place.netloc.rpartition("@")[2]
    if not place.password:
        return ControlUrl(address, {})
    credentials = f"{place.username}:{unquote(place.password)}".encode()
    encoded = b2a_base64(credentials, newline=False).decode()
    return ControlUrl(address, {"Authorization": f"Basic {encoded}"})

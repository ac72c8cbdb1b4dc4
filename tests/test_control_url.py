"""A token is part of the URL of a control API, and is sent as a password."""

from __future__ import annotations

from base64 import b64decode

import pytest

from minibroker.control_url import split, with_token


def test_url_without_a_token_is_unchanged() -> None:
    assert with_token("http://127.0.0.1:80", "") == "http://127.0.0.1:80"
    assert split("http://127.0.0.1:80") == ("127.0.0.1:80", {})
    assert split("127.0.0.1:80") == ("127.0.0.1:80", {})


@pytest.mark.parametrize("token", ["abc", "a:b@c/d?e#f%", "ä"])
@pytest.mark.parametrize("address", ["127.0.0.1:80", "[::1]:80"])
def test_token_in_a_url_becomes_a_password(address: str, token: str) -> None:
    found, headers = split(with_token(f"http://{address}", token) + "/v1")
    assert found == address
    encoded = headers["Authorization"].removeprefix("Basic ")
    assert b64decode(encoded).decode() == f"minibroker:{token}"

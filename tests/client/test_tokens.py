"""Tokens are fetched from an endpoint, and its errors are reported without the secret."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from minibroker.client.errors import InvalidClientConfig
from minibroker.client.security import read_client_security
from minibroker.client.tokens import ClientCredentials, TokenNotFetched, fetch_token


class Endpoint(HTTPServer):
    """An issuer that records forms and answers what a test determines."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.forms: list[dict[str, list[str]]] = []
        self.status = 200
        self.answer = b'{"access_token": "one"}'

    @property
    def credentials(self) -> ClientCredentials:
        return ClientCredentials(f"http://127.0.0.1:{self.server_port}/token", "me", "hush", "all")


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.forms.append(parse_qs(body.decode()))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made, ThreadPoolExecutor(1) as executor:
        executor.submit(made.serve_forever)
        yield made
        made.shutdown()


def test_token_is_fetched_with_the_client_credentials(endpoint: Endpoint) -> None:
    assert fetch_token(endpoint.credentials) == "one"
    assert endpoint.forms == [
        {
            "grant_type": ["client_credentials"],
            "client_id": ["me"],
            "client_secret": ["hush"],
            "scope": ["all"],
        }
    ]


def test_error_of_the_endpoint_is_shown_without_the_secret(endpoint: Endpoint) -> None:
    endpoint.status, endpoint.answer = 401, b'{"error": "invalid_client"}'
    with pytest.raises(TokenNotFetched, match=r"answered 401: .*invalid_client") as raised:
        fetch_token(endpoint.credentials)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b"\xff"])
def test_answer_without_a_token_is_an_error(endpoint: Endpoint, answer: bytes) -> None:
    endpoint.answer = answer
    with pytest.raises(TokenNotFetched, match="gave no token"):
        fetch_token(endpoint.credentials)


def test_unreachable_endpoint_is_an_error() -> None:
    with pytest.raises(TokenNotFetched, match=r"127\.0\.0\.1:1/token gave no token"):
        fetch_token(ClientCredentials("http://127.0.0.1:1/token", "me", "hush"))


def test_each_authentication_of_a_properties_file_has_a_new_token(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f'sasl.jaas.config={module} required clientId="me" clientSecret="hush" scope="all";\n'
        f"sasl.oauthbearer.token.endpoint.url={endpoint.credentials.url}\n"
    )
    security = read_client_security(str(file))
    assert security.start_exchange is not None
    assert next(security.start_exchange()) == b"n,,\x01auth=Bearer one\x01\x01"
    endpoint.answer = b'{"access_token": "two"}'
    assert next(security.start_exchange()) == b"n,,\x01auth=Bearer two\x01\x01"
    endpoint.status = 503
    with pytest.raises(InvalidClientConfig, match=r"properties:4: .*answered 503"):
        security.start_exchange()

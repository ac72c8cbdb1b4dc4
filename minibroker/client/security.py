"""A client's security: SASL mechanisms, and the settings of a properties file.

Owns each mechanism's exchange (PLAIN, OAUTHBEARER, SCRAM) as a generator that yields the client's
messages and receives the server's. It must never open a socket, and leaves the validation of the
file to `client_properties`. Invariant: a SCRAM exchange ends only after the server's signature has
been verified; everything that a `ClientSecurity` needs is read when it is created, except the
token, which is read or fetched for each authentication. Kafka's counterparts are ``SaslConfigs``,
``ScramSaslClient`` and ``OAuthBearerSaslClient``; RFC 4616, 5802 and 7628.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
import secrets
import ssl
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from minibroker.broker.security.authentication import OAUTHBEARER, PLAIN
from minibroker.broker.security.client_properties import (
    CLAIM,
    CLIENT_ID,
    CLIENT_SECRET,
    LIFETIME,
    TOKEN_URL,
    ClientProperties,
    read_client_properties,
    read_tls_properties,
    tls_context,
)
from minibroker.broker.security.scram import (
    HASHES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    credential,
    salted,
)
from minibroker.broker.settings.settings import ConfigError, SettingEntry
from minibroker.client.connection import ClientSecurity
from minibroker.client.errors import InvalidClientConfig, ServerNotVerified
from minibroker.client.tokens import ClientCredentials, TokenNotFetched, fetch_token

SaslExchange: TypeAlias = Generator[bytes, bytes, None]

_SERVER_FIRST = re.compile(r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<i>\d{1,9})")
_NO_BINDING: Final = "n,,"


def plain(user: str, password: str) -> SaslExchange:
    """Send user name and password unencrypted."""
    yield f"\0{user}\0{password}".encode()


def oauthbearer(token: str) -> SaslExchange:
    """Send a token. If the server answers with an error, acknowledge it: then the server fails."""
    error = yield f"{_NO_BINDING}\x01auth=Bearer {token}\x01\x01".encode()
    if error:
        yield b"\x01"


def scram(mechanism: str, user: str, password: str, nonce: str) -> SaslExchange:
    """Prove knowledge of the password; ``nonce`` is used once. Raises `ServerNotVerified`."""
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    answer = (yield f"{_NO_BINDING}{first}".encode()).decode(errors="replace")
    found = _SERVER_FIRST.match(answer)
    if found is None or not found["nonce"].startswith(nonce) or found["nonce"] == nonce:
        raise ServerNotVerified("its first message is not a valid SCRAM message for this client")
    if not ITERATIONS_MIN <= int(found["i"]) <= ITERATIONS_MAX:
        raise ServerNotVerified(f"it requires {found['i']} iterations")
    salt = _decoded(found["salt"])
    secret = salted(mechanism, password, salt, int(found["i"]))
    binding = base64.b64encode(_NO_BINDING.encode()).decode()
    final = f"c={binding},r={found['nonce']}"
    signed = f"{first},{answer},{final}".encode()
    known = credential(mechanism, secret, salt, int(found["i"]))
    client_key = hmac.digest(secret, b"Client Key", HASHES[mechanism])
    signature = hmac.digest(known.stored_key, signed, HASHES[mechanism])
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = yield f"{final},p={base64.b64encode(proof).decode()}".encode()
    server_signature = hmac.digest(known.server_key, signed, HASHES[mechanism])
    if not hmac.compare_digest(
        b"v=" + base64.b64encode(server_signature), server_final.partition(b",")[0]
    ):
        raise ServerNotVerified("its signature is wrong, so it does not know the password")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ServerNotVerified("its salt is not base64") from None


def unsecured_token(claims: dict[str, str], now_s: float, lifetime_s: float) -> str:
    """Create an unsigned token, like Kafka's ``OAuthBearerUnsecuredLoginCallbackHandler``.

    For tests only.
    """
    body = {**claims, "iat": now_s, "exp": now_s + lifetime_s}
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, body))
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


LIFETIME_S: Final = "3600"


def read_client_security(file: str) -> ClientSecurity:
    """Read a properties file.

    Raises `InvalidClientConfig`, whose message names the line and never contains a secret.
    """
    try:
        client = read_client_properties(file)
        tls = tls_context(client) if client.has_tls else None
    except ConfigError as error:
        raise InvalidClientConfig(str(error)) from None
    if client.mechanism is None:
        return ClientSecurity(tls)
    return ClientSecurity(tls, client.mechanism, _exchange(client, client.mechanism))


def read_tls(file: str) -> ssl.SSLContext | None:
    """Read the TLS settings of a properties file only; None if its protocol has no TLS.

    Raises `InvalidClientConfig`.
    """
    try:
        client = read_tls_properties(file)
        return tls_context(client) if client.has_tls else None
    except ConfigError as error:
        raise InvalidClientConfig(str(error)) from None


def _exchange(client: ClientProperties, mechanism: str) -> Callable[[], SaslExchange]:
    assert client.jaas is not None
    options = dict(client.jaas.options)
    if client.token_file is not None:
        return partial(_from_file, client.given[TOKEN_URL], client.token_file)
    if client.token_endpoint is not None:
        scope = options.get("scope", "")
        secret = options[CLIENT_SECRET]
        asked = ClientCredentials(client.token_endpoint, options[CLIENT_ID], secret, scope)
        return partial(_from_issuer, client.given[TOKEN_URL], asked)
    if mechanism == OAUTHBEARER:
        claims = {
            name.removeprefix(CLAIM): value
            for name, value in options.items()
            if name.startswith(CLAIM)
        }
        lifetime_s = float(options.get(LIFETIME, LIFETIME_S))
        return lambda: oauthbearer(unsecured_token(claims, time.time(), lifetime_s))
    user, password = options["username"], options["password"]
    if mechanism == PLAIN:
        return partial(plain, user, password)
    return lambda: scram(mechanism, user, password, secrets.token_urlsafe(24))


def _from_file(entry: SettingEntry, file: Path) -> SaslExchange:
    """Start an exchange with the token in ``file``, which another process may renew."""
    try:
        return oauthbearer(file.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidClientConfig(f"{entry.where}: {TOKEN_URL} can't be read: {error}") from None


def _from_issuer(entry: SettingEntry, credentials: ClientCredentials) -> SaslExchange:
    """Start an exchange with a new token of an issuer."""
    try:
        return oauthbearer(fetch_token(credentials))
    except TokenNotFetched as error:
        raise InvalidClientConfig(f"{entry.where}: {TOKEN_URL}: {error}") from None

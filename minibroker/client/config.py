"""Security settings of a client, read from a properties file.

Owns the construction of SASL exchanges from the file's settings. It must never open a socket, and
leaves the validation of the file to `client_properties`. Invariant: everything that a
`ClientSecurity` needs is read and validated when it is created, except the token file, which is
read again for each authentication. Kafka's counterparts are ``CommonClientConfigs`` and
``SaslConfigs``.
"""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from minibroker.broker.security.client_properties import (
    CLAIM,
    LIFETIME,
    TOKEN_URL,
    ClientProperties,
    read_client_properties,
    read_tls_properties,
    tls_context,
)
from minibroker.broker.security.mechanism import OAUTHBEARER, PLAIN
from minibroker.broker.settings.settings import ConfigError, SettingEntry
from minibroker.client.bootstrap import ClientSecurity
from minibroker.client.errors import InvalidClientConfig
from minibroker.client.sasl import SaslExchange, oauthbearer, plain, scram, unsecured_token

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

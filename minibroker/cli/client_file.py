"""A client's properties file as what lets a command in.

Owns the way from what the file says to connections' proofs; it must never open a socket, nor judge
the file, which is `client_properties`'s. Invariant: what an `Access` needs is read and checked when
it is made; only a token's file, which is read for each proof, may be found wrong later.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from minibroker.cli.errors import BadConfig
from minibroker.cli.proofs import Proof, bearer, plain, scram, unsecured_token
from minibroker.cli.servers import Access
from minibroker.config.settings import ConfigError, Given
from minibroker.security.client_properties import (
    CLAIM,
    LIFETIME,
    TOKEN_URL,
    ClientProperties,
    read_client_properties,
    tls_context,
)
from minibroker.security.mechanism import OAUTHBEARER, PLAIN

LIFETIME_S: Final = "3600"


def read_access(file: str) -> Access:
    """What a properties file says. Raises `BadConfig`, which names the line and never a secret."""
    try:
        client = read_client_properties(file)
        tls = tls_context(client) if client.has_tls else None
    except ConfigError as error:
        raise BadConfig(str(error)) from None
    if client.mechanism is None:
        return Access(tls)
    return Access(tls, client.mechanism, _prover(client, client.mechanism))


def _prover(client: ClientProperties, mechanism: str) -> Callable[[], Proof]:
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
        return lambda: bearer(unsecured_token(claims, time.time(), lifetime_s))
    user, password = options["username"], options["password"]
    if mechanism == PLAIN:
        return partial(plain, user, password)
    return lambda: scram(mechanism, user, password, secrets.token_urlsafe(24))


def _from_file(entry: Given, file: Path) -> Proof:
    """A token read when it is needed, as whoever renews it writes it anew."""
    try:
        return bearer(file.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{entry.where}: {TOKEN_URL} can't be read: {error}") from None

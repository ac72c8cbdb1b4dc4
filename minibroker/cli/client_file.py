"""What a client's properties file says of TLS and of a proof.

Owns those of Kafka's client settings that decide who comes in, and the words for mistakes in them.
It must never open a socket. Invariant: what an `Access` needs is read and checked when it is made;
only a token's file, which is read for each proof, may be found wrong later. Kafka's
``SslConfigs`` and ``SaslConfigs``; files are PEM, as the broker's are.
"""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from minibroker.cli.access import Access
from minibroker.cli.errors import BadConfig
from minibroker.cli.proofs import Proof, bearer, plain, scram, unsecured_token
from minibroker.config.jaas import JaasEntry, parse_jaas
from minibroker.config.known import is_known_unserved
from minibroker.config.security_definitions import STORE_TYPE
from minibroker.config.settings import ConfigError, Given, read_properties, unknown_name
from minibroker.config.types import BadValueError
from minibroker.security.mechanism import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
MODULES: Final = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}

PROTOCOL: Final = "security.protocol"
MECHANISM: Final = "sasl.mechanism"
JAAS: Final = "sasl.jaas.config"
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - a name, not a token
TRUSTSTORE: Final = "ssl.truststore.location"
TRUSTSTORE_TYPE: Final = "ssl.truststore.type"
AUTHORITIES: Final = "ssl.truststore.certificates"
KEYSTORE: Final = "ssl.keystore.location"
KEYSTORE_TYPE: Final = "ssl.keystore.type"
KEY_PASSWORD: Final = "ssl.key.password"  # noqa: S105 - a name, not a password
CHECKS_HOST: Final = "ssl.endpoint.identification.algorithm"
SERVED: Final = (
    *(PROTOCOL, MECHANISM, JAAS, TOKEN_URL, TRUSTSTORE, TRUSTSTORE_TYPE, AUTHORITIES),
    *(KEYSTORE, KEYSTORE_TYPE, KEY_PASSWORD, CHECKS_HOST),
)
OURS: Final = ("security.", "ssl.", "sasl.")
"""Beginnings of names in which a misspelt one would let nobody in; others are not ours to judge."""

CLAIM: Final = "unsecuredLoginStringClaim_"
LIFETIME: Final = "unsecuredLoginLifetimeSeconds"
LIFETIME_S: Final = 3600.0


def read_access(file: str) -> Access:
    """What a properties file says. Raises `BadConfig`, which names the line and never a secret."""
    try:
        given = {entry.name: entry for entry in read_properties(file)}
    except ConfigError as error:
        raise BadConfig(str(error)) from None
    for entry in given.values():
        _check_name(entry)
    protocol = _one_of(given, PROTOCOL, PROTOCOLS, "PLAINTEXT")
    tls = _context(given) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL"):
        return Access(tls)
    if MECHANISM not in given:
        names = ", ".join(MECHANISMS)
        raise BadConfig(f"{file}: {protocol} needs {MECHANISM}, which is one of {names}")
    mechanism = _one_of(given, MECHANISM, MECHANISMS, "")
    if JAAS not in given:
        raise BadConfig(f"{file}: {mechanism} needs {JAAS}={_example(mechanism)}")
    return Access(tls, mechanism, _prover(mechanism, given))


def _check_name(entry: Given) -> None:
    name = entry.name
    if name.startswith(OURS) and name not in SERVED and not is_known_unserved(name):
        hint = unknown_name(name, SERVED)
        raise BadConfig(f"{entry.where}: {name} is not taken here{hint}")


def _one_of(given: Mapping[str, Given], name: str, allowed: tuple[str, ...], default: str) -> str:
    if name not in given:
        return default
    value = given[name].value.strip().upper()
    if value not in allowed:
        text = f"{given[name].where}: {name}={given[name].value} must be one of "
        raise BadConfig(text + ", ".join(allowed))
    return value


def _example(mechanism: str) -> str:
    options = 'username="alice" password="secret"'
    if mechanism == OAUTHBEARER:
        options = f'{CLAIM}sub="alice"'
    return f"{MODULES[mechanism]} required {options};"


# TLS ----------------------------------------------------------------------------------------------


def _context(given: Mapping[str, Given]) -> ssl.SSLContext:
    for name in (TRUSTSTORE_TYPE, KEYSTORE_TYPE):
        if name in given:
            try:
                STORE_TYPE.parse(given[name].value)
            except BadValueError as error:
                raise BadConfig(f"{given[name].where}: {name} {error}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Kafka's default is https; whoever leaves it empty wants no look at the host's name.
    context.check_hostname = CHECKS_HOST not in given or bool(given[CHECKS_HOST].value.strip())
    _trust(context, given)
    if KEYSTORE in given:
        _show(context, given)
    return context


def _trust(context: ssl.SSLContext, given: Mapping[str, Given]) -> None:
    entry = given.get(TRUSTSTORE) or given.get(AUTHORITIES)
    if entry is None:
        context.load_default_certs()
        return
    try:
        if entry.name == TRUSTSTORE:
            context.load_verify_locations(cafile=entry.value)
        else:
            context.load_verify_locations(cadata=entry.value)
    except (OSError, ValueError) as error:  # ssl.SSLError is one too; nothing at all is a value
        raise BadConfig(f"{entry.where}: {entry.name} can't be read as PEM: {error}") from None


def _show(context: ssl.SSLContext, given: Mapping[str, Given]) -> None:
    entry = given[KEYSTORE]
    # Without a password given, OpenSSL would ask for one at the terminal.
    password = given[KEY_PASSWORD].value if KEY_PASSWORD in given else ""
    try:
        context.load_cert_chain(entry.value, password=password)
    except OSError as error:
        raise BadConfig(
            f"{entry.where}: {KEYSTORE} can't be read as PEM with a key and certificates "
            f"(is {KEY_PASSWORD} right?): {error}"
        ) from None


# SASL ---------------------------------------------------------------------------------------------


def _prover(mechanism: str, given: Mapping[str, Given]) -> Callable[[], Proof]:
    entry = given[JAAS]
    try:
        jaas = parse_jaas(entry.value)
    except BadValueError as error:
        raise BadConfig(f"{entry.where}: {JAAS} {error}") from None
    module = MODULES[mechanism].rpartition(".")[2]
    if jaas.module_name != module:
        raise BadConfig(f"{entry.where}: {JAAS} has {jaas.module}, {mechanism} needs {module}")
    options = dict(jaas.options)
    if mechanism == OAUTHBEARER:
        return _token_prover(given, jaas)
    missing = [name for name in ("username", "password") if name not in options]
    if missing:
        text = f"{entry.where}: {JAAS} has no {' and no '.join(missing)}; write "
        raise BadConfig(text + _example(mechanism))
    user, password = options["username"], options["password"]
    if mechanism == PLAIN:
        return partial(plain, user, password)
    return lambda: scram(mechanism, user, password, secrets.token_urlsafe(24))


def _token_prover(given: Mapping[str, Given], jaas: JaasEntry) -> Callable[[], Proof]:
    if TOKEN_URL in given:
        return partial(_from_file, given[TOKEN_URL], _token_file(given[TOKEN_URL]))
    claims = {
        name.removeprefix(CLAIM): value for name, value in jaas.options if name.startswith(CLAIM)
    }
    if "sub" not in claims:
        raise BadConfig(
            f'{given[JAAS].where}: {JAAS} has no {CLAIM}sub="NAME", and there is no '
            f"{TOKEN_URL}=file:/FOLDER/TOKEN either"
        )
    lifetime = dict(jaas.options).get(LIFETIME, str(LIFETIME_S))
    try:
        lifetime_s = float(lifetime)
    except ValueError:
        raise BadConfig(f"{given[JAAS].where}: {LIFETIME} must be a number of seconds") from None
    return lambda: bearer(unsecured_token(claims, time.time(), lifetime_s))


def _token_file(entry: Given) -> Path:
    place = urlsplit(entry.value)
    if place.scheme != "file" or place.netloc:
        text = f"{entry.where}: {TOKEN_URL} must be a file with the token, file:/FOLDER/TOKEN; "
        raise BadConfig(text + "tokens are not fetched here")
    return Path(unquote(place.path))


def _from_file(entry: Given, file: Path) -> Proof:
    """A token read when it is needed, as whoever renews it writes it anew."""
    try:
        return bearer(file.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{entry.where}: {TOKEN_URL} can't be read: {error}") from None

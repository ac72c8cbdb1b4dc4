"""Reads TLS and SASL settings of a client's properties file.

Owns those of Kafka's client settings that concern authentication, and their error messages. It must
never open a socket or authenticate. Invariant: a `ClientProperties` is valid, and neither its text
nor an error contains a secret. Kafka's ``SslConfigs`` and ``SaslConfigs``; files are PEM, as the
broker's are.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from minibroker.broker.security.authentication import (
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
)
from minibroker.broker.security.handshakes import BadPem, Pem, client_context
from minibroker.broker.settings.setting import (
    STORE_TYPE,
    BadValueError,
    JaasEntry,
    is_unsupported_kafka_setting,
    parse_jaas,
)
from minibroker.broker.settings.settings import (
    ConfigError,
    SettingEntry,
    read_properties,
    unknown_name,
)

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
CHECKED_PREFIXES: Final = ("security.", "ssl.", "sasl.")
"""Prefixes of names in which an unknown setting is an error; other settings are ignored."""

CLAIM: Final = "unsecuredLoginStringClaim_"
CLIENT_ID: Final = "clientId"
CLIENT_SECRET: Final = "clientSecret"  # noqa: S105 - a name
LIFETIME: Final = "unsecuredLoginLifetimeSeconds"


@dataclass(frozen=True)
class ClientProperties:
    """Settings by name; without ``jaas`` there is no SASL authentication."""

    file: str
    protocol: str
    given: Mapping[str, SettingEntry] = field(repr=False)
    mechanism: str | None = None
    jaas: JaasEntry | None = field(default=None, repr=False)

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def checks_host(self) -> bool:
        """Kafka's default is https; an empty value disables the check of the host name."""
        return CHECKS_HOST not in self.given or bool(self.given[CHECKS_HOST].value.strip())

    @property
    def trusted(self) -> SettingEntry | None:
        """Trusted authorities, as a file or a text; None for those of the system."""
        return self.given.get(TRUSTSTORE) or self.given.get(AUTHORITIES)

    @property
    def token_file(self) -> Path | None:
        """File with OAUTHBEARER tokens, which is read for each authentication."""
        if self.mechanism != OAUTHBEARER or TOKEN_URL not in self.given:
            return None
        place = urlsplit(self.given[TOKEN_URL].value)
        return Path(unquote(place.path)) if place.scheme == "file" else None

    @property
    def token_endpoint(self) -> str | None:
        """URL of an issuer's endpoint that gives OAUTHBEARER tokens."""
        is_used = self.mechanism == OAUTHBEARER and self.token_file is None
        return self.given[TOKEN_URL].value if is_used and TOKEN_URL in self.given else None


def read_tls_properties(file: str) -> ClientProperties:
    """Read a properties file without its SASL settings. Raises `ConfigError` as below."""
    given = {entry.name: entry for entry in read_properties(file)}
    for entry in given.values():
        _check_name(entry)
    protocol = _one_of(given, PROTOCOL, PROTOCOLS, "PLAINTEXT")
    if protocol.endswith("SSL"):
        _check_types(given)
    return ClientProperties(file, protocol, given)


def read_client_properties(file: str) -> ClientProperties:
    """Read a properties file. Raises `ConfigError`, which names file and line."""
    client = read_tls_properties(file)
    protocol, given = client.protocol, client.given
    if not protocol.startswith("SASL"):
        return client
    if MECHANISM not in given:
        names = ", ".join(MECHANISMS)
        raise ConfigError([f"{file}: {protocol} needs {MECHANISM}, which is one of {names}"])
    mechanism = _one_of(given, MECHANISM, MECHANISMS, "")
    if JAAS not in given:
        raise ConfigError([f"{file}: {mechanism} needs {JAAS}={_example(mechanism)}"])
    return replace(client, mechanism=mechanism, jaas=_checked_jaas(mechanism, given))


def _check_name(entry: SettingEntry) -> None:
    name = entry.name
    if (
        name.startswith(CHECKED_PREFIXES)
        and name not in SERVED
        and not is_unsupported_kafka_setting(name)
    ):
        hint = unknown_name(name, SERVED)
        raise ConfigError([f"{entry.where}: {name} is not supported{hint}"])


def _one_of(
    given: Mapping[str, SettingEntry], name: str, allowed: tuple[str, ...], default: str
) -> str:
    if name not in given:
        return default
    value = given[name].value.strip().upper()
    if value not in allowed:
        text = f"{given[name].where}: {name}={given[name].value} must be one of "
        raise ConfigError([text + ", ".join(allowed)])
    return value


def _example(mechanism: str) -> str:
    options = 'username="alice" password="secret"'
    if mechanism == OAUTHBEARER:
        options = f'{CLAIM}sub="alice"'
    return f"{MODULES[mechanism]} required {options};"


# TLS ----------------------------------------------------------------------------------------------

_PEM: Final = {
    "truststore": TRUSTSTORE,
    "authorities": AUTHORITIES,
    "keystore": KEYSTORE,
    "key_password": KEY_PASSWORD,
}
"""The setting of each field of a `Pem`."""


def _check_types(given: Mapping[str, SettingEntry]) -> None:
    for name in (TRUSTSTORE_TYPE, KEYSTORE_TYPE):
        if name in given:
            try:
                STORE_TYPE.parse(given[name].value)
            except BadValueError as error:
                raise ConfigError([f"{given[name].where}: {name} {error}"]) from None


def tls_context(client: ClientProperties) -> ssl.SSLContext:
    """Return the TLS context. Raises `ConfigError` if a file is not PEM."""
    given = {of: client.given[name].value for of, name in _PEM.items() if name in client.given}
    try:
        return client_context(Pem(client.checks_host, **given), KEY_PASSWORD)
    except BadPem as error:
        entry = client.given[_PEM[error.field]]
        raise ConfigError([f"{entry.where}: {entry.name} {error}"]) from None


# SASL ---------------------------------------------------------------------------------------------


def _checked_jaas(mechanism: str, given: Mapping[str, SettingEntry]) -> JaasEntry:
    entry = given[JAAS]
    try:
        jaas = parse_jaas(entry.value)
    except BadValueError as error:
        raise ConfigError([f"{entry.where}: {JAAS} {error}"]) from None
    module = MODULES[mechanism].rpartition(".")[2]
    if jaas.module_name != module:
        text = f"{entry.where}: {JAAS} has {jaas.module}, {mechanism} needs {module}"
        raise ConfigError([text])
    options = dict(jaas.options)
    if mechanism == OAUTHBEARER:
        _check_token(given, options)
        return jaas
    missing = [name for name in ("username", "password") if name not in options]
    if missing:
        text = f"{entry.where}: {JAAS} has no {' and no '.join(missing)}; write "
        raise ConfigError([text + _example(mechanism)])
    return jaas


def _check_token(given: Mapping[str, SettingEntry], options: Mapping[str, str]) -> None:
    if TOKEN_URL in given:
        place = urlsplit(given[TOKEN_URL].value)
        has_secret = CLIENT_ID in options and CLIENT_SECRET in options
        is_endpoint = place.scheme in ("http", "https") and has_secret
        if not is_endpoint and (place.scheme != "file" or place.netloc):
            text = f"{given[TOKEN_URL].where}: {TOKEN_URL} must be a file with the token, "
            text += f"file:/FOLDER/TOKEN, or the URL of an issuer, for which {JAAS} has "
            raise ConfigError([f'{text}{CLIENT_ID}="NAME" {CLIENT_SECRET}="SECRET"'])
        return
    where = f"{given[JAAS].where}: "
    if f"{CLAIM}sub" not in options:
        text = f'{JAAS} has no {CLAIM}sub="NAME", and there is no {TOKEN_URL}=file:/FOLDER/TOKEN '
        raise ConfigError([f"{where}{text}either"])
    try:
        float(options.get(LIFETIME, 0))
    except ValueError:
        raise ConfigError([f"{where}{LIFETIME} must be a number of seconds"]) from None

"""Settings of TLS: keystores, truststores and client authentication.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
The invariant: names are Kafka's, keys and certificates are PEM, and each setting can be set for
one listener (``listener.name.<listener>.ssl.keystore.location``).  Echoes
Kafka's ``SslConfigs`` and ``BrokerSecurityConfigs``.
"""

from __future__ import annotations

from typing import Any

from minibroker.broker.settings.setting import Setting, setting
from minibroker.broker.settings.types import (
    BOOLEAN,
    INT,
    LIST,
    PASSWORD,
    STRING,
    BadValueError,
    Kind,
    SettingType,
    at_least,
    one_of,
    optional,
    some_of,
)

_OPTIONAL_STRING = optional(STRING)
_OPTIONAL_PASSWORD = optional(PASSWORD)


def _parse_store_type(text: str) -> str:
    if text.upper() in ("JKS", "PKCS12"):
        raise BadValueError(
            "must be PEM; convert a Java store: keytool -importkeystore -srckeystore FILE "
            "-destkeystore store.p12 -deststoretype PKCS12, then openssl pkcs12 -in store.p12 "
            "-out store.pem -nodes"
        )
    if text.upper() != "PEM":
        raise BadValueError("must be PEM")
    return "PEM"


STORE_TYPE = SettingType(Kind.STRING, "PEM", _parse_store_type, str)

SSL_KEYSTORE_TYPE = setting(
    "ssl.keystore.type",
    STORE_TYPE,
    default="PEM",
    per_listener=True,
    dynamic_at_listener=True,
    doc="The format of the keystore. Convert a Java keystore to PEM.",
    no_effect="PEM is the only supported format",
)
SSL_KEYSTORE_LOCATION = setting(
    "ssl.keystore.location",
    _OPTIONAL_STRING,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="A PEM file with the private key and certificate chain of SSL and SASL_SSL listeners.",
)
SSL_KEYSTORE_CERTIFICATE_CHAIN = setting(
    "ssl.keystore.certificate.chain",
    _OPTIONAL_PASSWORD,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="The certificate chain as PEM text instead of a file, together with `ssl.keystore.key`.",
)
SSL_KEYSTORE_KEY = setting(
    "ssl.keystore.key",
    _OPTIONAL_PASSWORD,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="The private key as PEM text instead of a file.",
)
SSL_KEY_PASSWORD = setting(
    "ssl.key.password",
    _OPTIONAL_PASSWORD,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="The password of an encrypted private key.",
)
SSL_TRUSTSTORE_TYPE = setting(
    "ssl.truststore.type",
    STORE_TYPE,
    default="PEM",
    per_listener=True,
    dynamic_at_listener=True,
    doc="The format of the truststore.",
    no_effect="PEM is the only supported format",
)
SSL_TRUSTSTORE_LOCATION = setting(
    "ssl.truststore.location",
    _OPTIONAL_STRING,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="A PEM file with the certificate authorities that sign client certificates.",
)
SSL_TRUSTSTORE_CERTIFICATES = setting(
    "ssl.truststore.certificates",
    _OPTIONAL_PASSWORD,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="The certificates of the truststore as PEM text instead of a file.",
)
SSL_RENEWED: tuple[Setting[Any], ...] = (
    SSL_KEYSTORE_TYPE,
    SSL_KEYSTORE_LOCATION,
    SSL_KEYSTORE_CERTIFICATE_CHAIN,
    SSL_KEYSTORE_KEY,
    SSL_KEY_PASSWORD,
    SSL_TRUSTSTORE_TYPE,
    SSL_TRUSTSTORE_LOCATION,
    SSL_TRUSTSTORE_CERTIFICATES,
)
"""Settings that can be renewed while a listener is open."""

SSL_ALLOW_DN_CHANGES = setting(
    "ssl.allow.dn.changes",
    BOOLEAN,
    default=False,
    per_listener=True,
    doc="Whether a renewed certificate may have another subject.",
)
SSL_ALLOW_SAN_CHANGES = setting(
    "ssl.allow.san.changes",
    BOOLEAN,
    default=False,
    per_listener=True,
    doc="Whether a renewed certificate may lack a subject alternative name of the old one.",
)
SSL_CLIENT_AUTH = setting(
    "ssl.client.auth",
    STRING,
    default="none",
    valid=one_of("none", "requested", "required"),
    per_listener=True,
    doc="Whether the broker requests a certificate from clients, and whether it requires one.",
)
SSL_ENABLED_PROTOCOLS = setting(
    "ssl.enabled.protocols",
    LIST,
    default=("TLSv1.2", "TLSv1.3"),
    valid=some_of("TLSv1.2", "TLSv1.3"),
    per_listener=True,
    doc="The TLS versions that clients may use.",
)
SSL_PRINCIPAL_MAPPING_RULES = setting(
    "ssl.principal.mapping.rules",
    STRING,
    default="DEFAULT",
    per_listener=True,
    doc="Rules that map the subject of a client's certificate to a user name: a list of "
    "RULE:pattern/replacement/, of which the first match applies. L or U at the end of a rule "
    "converts the name to lower or upper case. DEFAULT uses the subject unchanged.",
)
PRINCIPAL_BUILDER_CLASS = setting(
    "principal.builder.class",
    _OPTIONAL_STRING,
    default=None,
    default_text="SASL user, else certificate, else ANONYMOUS",
    doc="A function that builds principals, as package.module:callable. Its argument is a "
    "`minibroker.broker.security.principal.Introduction`, which includes the client's address. It "
    "returns a `Principal` or a text such as User:alice. An exception is logged and closes the "
    "connection.",
)
CONNECTION_FAILED_AUTHENTICATION_DELAY_MS = setting(
    "connection.failed.authentication.delay.ms",
    INT,
    default=100,
    valid=at_least(0),
    doc="How long the broker waits after a failed authentication before it responds and closes the "
    "connection, in milliseconds.",
)

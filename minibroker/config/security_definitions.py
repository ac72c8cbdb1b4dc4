"""The settings of TLS: which certificate a listener shows, and which it wants to see.

Owns their declarations; like ``definitions``, of which it is a part, it must never read a file or
hold a value in force.  The invariant: names are Kafka's, keys and certificates are PEM, and each
setting may be given for one listener (``listener.name.<listener>.ssl.keystore.location``).  Echoes
Kafka's ``SslConfigs`` and ``BrokerSecurityConfigs``.
"""

from __future__ import annotations

from typing import Any

from minibroker.config.setting import Setting, setting
from minibroker.config.types import (
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
    doc="How key and certificate are kept. A Java store must be converted.",
    no_effect="PEM is the one form that is served",
)
SSL_KEYSTORE_LOCATION = setting(
    "ssl.keystore.location",
    _OPTIONAL_STRING,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="A PEM file with the private key and the certificate chain that SSL and SASL_SSL listeners "
    "show.",
)
SSL_KEYSTORE_CERTIFICATE_CHAIN = setting(
    "ssl.keystore.certificate.chain",
    _OPTIONAL_PASSWORD,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="The certificate chain itself, as PEM text, instead of a file; goes with "
    "`ssl.keystore.key`.",
)
SSL_KEYSTORE_KEY = setting(
    "ssl.keystore.key",
    _OPTIONAL_PASSWORD,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="The private key itself, as PEM text, instead of a file.",
)
SSL_KEY_PASSWORD = setting(
    "ssl.key.password",
    _OPTIONAL_PASSWORD,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="What an encrypted private key is opened with.",
)
SSL_TRUSTSTORE_TYPE = setting(
    "ssl.truststore.type",
    STORE_TYPE,
    default="PEM",
    per_listener=True,
    dynamic_at_listener=True,
    doc="How trusted certificates are kept.",
    no_effect="PEM is the one form that is served",
)
SSL_TRUSTSTORE_LOCATION = setting(
    "ssl.truststore.location",
    _OPTIONAL_STRING,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="A PEM file with the certificates of those who sign clients' certificates.",
)
SSL_TRUSTSTORE_CERTIFICATES = setting(
    "ssl.truststore.certificates",
    _OPTIONAL_PASSWORD,
    default=None,
    default_text="none",
    per_listener=True,
    dynamic_at_listener=True,
    doc="These certificates themselves, as PEM text, instead of a file.",
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
"""What may be renewed while a listener is open."""

SSL_ALLOW_DN_CHANGES = setting(
    "ssl.allow.dn.changes",
    BOOLEAN,
    default=False,
    per_listener=True,
    doc="Whether a certificate may be renewed with another subject while the broker runs.",
)
SSL_ALLOW_SAN_CHANGES = setting(
    "ssl.allow.san.changes",
    BOOLEAN,
    default=False,
    per_listener=True,
    doc="Whether a certificate may be renewed without a name (subject alternative name) that it "
    "had while the broker runs.",
)
SSL_CLIENT_AUTH = setting(
    "ssl.client.auth",
    STRING,
    default="none",
    valid=one_of("none", "requested", "required"),
    per_listener=True,
    doc="Whether clients are asked for a certificate, and whether they must have one.",
)
SSL_ENABLED_PROTOCOLS = setting(
    "ssl.enabled.protocols",
    LIST,
    default=("TLSv1.2", "TLSv1.3"),
    valid=some_of("TLSv1.2", "TLSv1.3"),
    per_listener=True,
    doc="The versions of TLS that clients may speak.",
)
SSL_PRINCIPAL_MAPPING_RULES = setting(
    "ssl.principal.mapping.rules",
    STRING,
    default="DEFAULT",
    per_listener=True,
    doc="How the subject of a client's certificate becomes a user's name: a list of "
    "RULE:pattern/replacement/, of which the first that fits decides, an L or U at its end making "
    "small or capital letters; DEFAULT takes the subject as it is.",
)
PRINCIPAL_BUILDER_CLASS = setting(
    "principal.builder.class",
    _OPTIONAL_STRING,
    default=None,
    default_text="SASL user, else certificate, else ANONYMOUS",
    doc="Code of yours that names clients, as package.module:callable. It is given a "
    "`minibroker.security.principal.Introduction`, has the client's address among it, and gives a "
    "`Principal` or a text such as User:alice. An error in it is logged and closes the connection.",
)
CONNECTION_FAILED_AUTHENTICATION_DELAY_MS = setting(
    "connection.failed.authentication.delay.ms",
    INT,
    default=100,
    valid=at_least(0),
    doc="How long a client whose authentication failed waits until it is told and its connection "
    "closed.",
)

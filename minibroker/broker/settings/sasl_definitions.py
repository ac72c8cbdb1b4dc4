"""Settings of SASL: mechanisms, credentials and session lifetimes.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
The invariant: names are Kafka's, and a setting that Kafka accepts for one listener and mechanism
(``listener.name.outside.plain.sasl.jaas.config``) is accepted in the same form.
Echoes ``BrokerSecurityConfigs`` and ``SaslConfigs``.
"""

from __future__ import annotations

from typing import Final, TypeVar

from minibroker.broker.settings.jaas import JAAS
from minibroker.broker.settings.setting import MECHANISMS, Setting, setting
from minibroker.broker.settings.types import (
    DOUBLE,
    INT,
    LIST,
    LONG,
    STRING,
    BadValueError,
    Kind,
    SettingType,
    at_least,
    optional,
)

_OPTIONAL_STRING = optional(STRING)
_FILE: Final = "file:"


def _parse_file_url(text: str) -> str:
    path = text.removeprefix(_FILE).removeprefix("//")
    if not text.startswith(_FILE) or not path.startswith("/"):
        raise BadValueError("must be a file, e.g. file:///etc/minibroker/jwks.json")
    return path


def _parse_mechanisms(text: str) -> tuple[str, ...]:
    found = LIST.parse(text)
    for name in found:
        if name not in MECHANISMS:
            raise BadValueError(f"has {name}; the supported mechanisms are {', '.join(MECHANISMS)}")
    return found


MECHANISM_LIST = SettingType(Kind.LIST, "list", _parse_mechanisms, LIST.render)
FILE_URL = SettingType(Kind.STRING, "file:///…", _parse_file_url, lambda path: f"{_FILE}//{path}")

SASL_ENABLED_MECHANISMS = setting(
    "sasl.enabled.mechanisms",
    MECHANISM_LIST,
    default=(),
    default_text="none; a SASL listener needs at least one (Kafka: GSSAPI, not supported)",
    per_listener=True,
    doc=f"The SASL mechanisms that clients may use: {', '.join(MECHANISMS)}.",
)
SASL_JAAS_CONFIG = setting(
    "sasl.jaas.config",
    optional(JAAS),
    default=None,
    default_text="none",
    per_listener=True,
    per_mechanism=True,
    doc='The options of a login module: for PLAIN the users, as `user_alice="secret"`; for '
    "OAUTHBEARER without keys `unsecuredValidatorPrincipalClaimName`, "
    "`unsecuredValidatorScopeClaimName`, `unsecuredValidatorRequiredScope`, "
    "`unsecuredValidatorAllowableClockSkewMs`.",
)
SASL_SERVER_MAX_RECEIVE_SIZE = setting(
    "sasl.server.max.receive.size",
    INT,
    default=512 * 1024,
    valid=at_least(1),
    per_listener=True,
    doc="The largest request of a client that has not authenticated, in bytes.",
)
CONNECTIONS_MAX_REAUTH_MS = setting(
    "connections.max.reauth.ms",
    LONG,
    default=0,
    valid=at_least(0),
    per_listener=True,
    per_mechanism=True,
    doc="The maximum lifetime of a session without reauthentication, in milliseconds. When it has "
    "expired, the broker closes the connection at the next request. With 0, a session ends only "
    "when its token expires.",
)
SASL_OAUTHBEARER_JWKS_ENDPOINT_URL = setting(
    "sasl.oauthbearer.jwks.endpoint.url",
    optional(FILE_URL),
    default=None,
    default_text="none: unsigned tokens are accepted; use this only in tests",
    per_listener=True,
    per_mechanism=True,
    doc="A JWKS file with the public keys for verifying tokens. Requires "
    "`pip install minibroker[oauth]`.",
)
SASL_OAUTHBEARER_EXPECTED_AUDIENCE = setting(
    "sasl.oauthbearer.expected.audience",
    LIST,
    default=(),
    per_listener=True,
    per_mechanism=True,
    doc="The audiences (`aud`) of which a token must have one. If empty, signed tokens with an "
    "audience are rejected.",
)
SASL_OAUTHBEARER_EXPECTED_ISSUER = setting(
    "sasl.oauthbearer.expected.issuer",
    _OPTIONAL_STRING,
    default=None,
    default_text="any",
    per_listener=True,
    per_mechanism=True,
    doc="The required issuer (`iss`) of tokens.",
)
SASL_OAUTHBEARER_SUB_CLAIM_NAME = setting(
    "sasl.oauthbearer.sub.claim.name",
    STRING,
    default="sub",
    per_listener=True,
    per_mechanism=True,
    doc="The claim of a token that contains the user name.",
)
SASL_OAUTHBEARER_CLOCK_SKEW_SECONDS = setting(
    "sasl.oauthbearer.clock.skew.seconds",
    INT,
    default=30,
    valid=at_least(0),
    per_listener=True,
    per_mechanism=True,
    doc="The allowed difference between the clocks of the token issuer and the broker, in seconds.",
)

T = TypeVar("T")

_NO_KERBEROS = "the mechanism GSSAPI is not supported"


def _kerberos(name: str, type: SettingType[T], default: T, doc: str) -> Setting[T]:  # noqa: A002
    """Declare a setting of Kerberos, which Kafka's tools may set for one broker."""
    return setting(
        f"sasl.kerberos.{name}",
        type,
        default=default,
        dynamic=True,
        per_broker=True,
        no_effect=_NO_KERBEROS,
        default_text="none" if default is None else None,
        doc=doc,
    )


SASL_KERBEROS_KINIT_CMD = _kerberos(
    "kinit.cmd", STRING, "/usr/bin/kinit", "The path of the command `kinit`."
)
SASL_KERBEROS_MIN_TIME_BEFORE_RELOGIN = _kerberos(
    "min.time.before.relogin", LONG, 60_000, "The shortest time between two logins."
)
SASL_KERBEROS_PRINCIPAL_TO_LOCAL_RULES = _kerberos(
    "principal.to.local.rules", LIST, ("DEFAULT",), "Rules from principals to user names."
)
SASL_KERBEROS_SERVICE_NAME = _kerberos(
    "service.name", _OPTIONAL_STRING, None, "The name of the principal that Kafka runs as."
)
SASL_KERBEROS_TICKET_RENEW_JITTER = _kerberos(
    "ticket.renew.jitter", DOUBLE, 0.05, "The random part of the time of a renewal."
)
SASL_KERBEROS_TICKET_RENEW_WINDOW_FACTOR = _kerberos(
    "ticket.renew.window.factor", DOUBLE, 0.8, "The share of a ticket's lifetime before a renewal."
)

"""The settings of SASL: how clients may prove who they are, and for how long that is worth.

Owns their declarations; like ``definitions``, of which it is a part, it must never read a file or
hold a value in force.  The invariant: names are Kafka's, and where Kafka lets them be given for one
listener and one mechanism (``listener.name.outside.plain.sasl.jaas.config``), so it is here.
Echoes ``BrokerSecurityConfigs`` and ``SaslConfigs``.
"""

from __future__ import annotations

from typing import Final

from minibroker.config.jaas import JAAS
from minibroker.config.setting import MECHANISMS, setting
from minibroker.config.types import (
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
            raise BadValueError(f"has {name}; what is served is {', '.join(MECHANISMS)}")
    return found


MECHANISM_LIST = SettingType(Kind.LIST, "list", _parse_mechanisms, LIST.render)
FILE_URL = SettingType(Kind.STRING, "file:///…", _parse_file_url, lambda path: f"{_FILE}//{path}")

SASL_ENABLED_MECHANISMS = setting(
    "sasl.enabled.mechanisms",
    MECHANISM_LIST,
    default=(),
    default_text="none; a SASL listener needs some (Kafka: GSSAPI, which is not served)",
    per_listener=True,
    doc=f"The mechanisms of SASL that clients may choose from: {', '.join(MECHANISMS)}.",
)
SASL_JAAS_CONFIG = setting(
    "sasl.jaas.config",
    optional(JAAS),
    default=None,
    default_text="none",
    per_listener=True,
    per_mechanism=True,
    doc='What a login module needs: for PLAIN the users, as `user_alice="secret"`; for OAUTHBEARER '
    "without keys `unsecuredValidatorPrincipalClaimName`, `unsecuredValidatorScopeClaimName`, "
    "`unsecuredValidatorRequiredScope`, `unsecuredValidatorAllowableClockSkewMs`.",
)
SASL_SERVER_MAX_RECEIVE_SIZE = setting(
    "sasl.server.max.receive.size",
    INT,
    default=512 * 1024,
    valid=at_least(1),
    per_listener=True,
    doc="The largest request, in bytes, of a client that has not proven who it is.",
)
CONNECTIONS_MAX_REAUTH_MS = setting(
    "connections.max.reauth.ms",
    LONG,
    default=0,
    valid=at_least(0),
    per_listener=True,
    per_mechanism=True,
    doc="After how many milliseconds a client must prove again who it is, or its connection is "
    "closed at its next request; 0 asks for it only when a token expires.",
)
SASL_OAUTHBEARER_JWKS_ENDPOINT_URL = setting(
    "sasl.oauthbearer.jwks.endpoint.url",
    optional(FILE_URL),
    default=None,
    default_text="none: unsigned tokens are believed, which is for tests only",
    per_listener=True,
    per_mechanism=True,
    doc="A JWKS file with the keys that tokens are signed with. Needs "
    "`pip install minibroker[oauth]`.",
)
SASL_OAUTHBEARER_EXPECTED_AUDIENCE = setting(
    "sasl.oauthbearer.expected.audience",
    LIST,
    default=(),
    per_listener=True,
    per_mechanism=True,
    doc="A token must be for one of these audiences (`aud`); empty asks for none, and refuses"
    " signed tokens that are for some.",
)
SASL_OAUTHBEARER_EXPECTED_ISSUER = setting(
    "sasl.oauthbearer.expected.issuer",
    _OPTIONAL_STRING,
    default=None,
    default_text="any",
    per_listener=True,
    per_mechanism=True,
    doc="Who a token must come from (`iss`).",
)
SASL_OAUTHBEARER_SUB_CLAIM_NAME = setting(
    "sasl.oauthbearer.sub.claim.name",
    STRING,
    default="sub",
    per_listener=True,
    per_mechanism=True,
    doc="The claim of a token that has the user's name.",
)
SASL_OAUTHBEARER_CLOCK_SKEW_SECONDS = setting(
    "sasl.oauthbearer.clock.skew.seconds",
    INT,
    default=30,
    valid=at_least(0),
    per_listener=True,
    per_mechanism=True,
    doc="How far the clock of who signs tokens may be from ours.",
)

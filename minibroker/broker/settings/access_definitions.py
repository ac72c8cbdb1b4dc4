"""Settings of authorization.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
The invariant: the class names of Kafka's authorizers select the built-in one.  Echoes
``AclAuthorizer`` and ``StandardAuthorizer``.
"""

from __future__ import annotations

from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import BOOLEAN, STRING, BadValueError, Kind, SettingType

AUTHORIZERS = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)


def _parse_authorizer(text: str) -> str:
    if text and text not in AUTHORIZERS:
        raise BadValueError(f"must be empty or one of {', '.join(AUTHORIZERS)}")
    return text


def _parse_principals(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(";") if part.strip())
    for principal in found:
        kind, _, name = principal.partition(":")
        if not (kind and name):
            raise BadValueError(f"has '{principal}'; a principal is KIND:NAME, e.g. User:alice")
    return found


AUTHORIZER = SettingType(Kind.CLASS, "class name", _parse_authorizer, STRING.render)
PRINCIPALS = SettingType(
    Kind.STRING, "principals, separated by semicolons", _parse_principals, ";".join
)

AUTHORIZER_CLASS_NAME = setting(
    "authorizer.class.name",
    AUTHORIZER,
    default="",
    doc="The authorizer for ACLs. If empty, every request is authorized. Kafka's "
    f"{AUTHORIZERS[0]} and {AUTHORIZERS[2]} both select the built-in authorizer.",
)
SUPER_USERS = setting(
    "super.users",
    PRINCIPALS,
    default=(),
    doc="Principals that may do everything, regardless of ACLs, e.g. User:admin;User:root.",
)
ALLOW_EVERYONE_IF_NO_ACL_FOUND = setting(
    "allow.everyone.if.no.acl.found",
    BOOLEAN,
    default=False,
    doc="Whether every principal may use a resource that has no ACL.",
)

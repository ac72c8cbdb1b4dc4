"""The settings of access rules: whether they are in force, and whom they do not bind.

Owns their declarations; like ``definitions``, of which it is a part, it must never read a file or
hold a value in force.  The invariant: the names and classes that Kafka has for its own authorizers
mean ours.  Echoes ``AclAuthorizer`` and ``StandardAuthorizer``.
"""

from __future__ import annotations

from minibroker.config.setting import setting
from minibroker.config.types import BOOLEAN, STRING, BadValueError, Kind, SettingType

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
    Kind.STRING, "principals with semicolons between", _parse_principals, ";".join
)

AUTHORIZER_CLASS_NAME = setting(
    "authorizer.class.name",
    AUTHORIZER,
    default="",
    doc="Whether access rules (ACLs) are in force: empty means that everybody may do everything; "
    f"Kafka's {AUTHORIZERS[0]} and {AUTHORIZERS[2]} both stand for this broker's own.",
)
SUPER_USERS = setting(
    "super.users",
    PRINCIPALS,
    default=(),
    doc="Who may do everything whatever the access rules say, e.g. User:admin;User:root.",
)
ALLOW_EVERYONE_IF_NO_ACL_FOUND = setting(
    "allow.everyone.if.no.acl.found",
    BOOLEAN,
    default=False,
    doc="Whether a resource that no access rule speaks of is open to everybody.",
)

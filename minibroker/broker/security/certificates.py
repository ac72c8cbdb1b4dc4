"""Names in certificates: the subject as text, and the rules that map it to a user name.

Owns RFC 2253's form of a subject and the syntax ``RULE:pattern/replacement/[LU]``. It must never
see a private key or validate a certificate. Invariant: the first rule whose pattern matches the
complete subject applies, and a subject that no rule matches has no name. Kafka's
``SslPrincipalMapper`` and Java's ``X500Principal``.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Final, NamedTuple

Subject = Sequence[Sequence[tuple[str, str]]]
"""Parts in the order of the certificate, each of one or more (kind, value) pairs."""

DEFAULT: Final = "DEFAULT"
EXAMPLE: Final = "RULE:^CN=([^,]*),.*$/$1/L,DEFAULT"

NAME_CHARS_MAX: Final = 2048
"""A longer name is compared with no pattern: those of rules are matched as in Java, by trying."""

_KEYWORDS: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_EMAIL: Final = "emailAddress"
_IA5_STRING: Final = 0x16

_TEMPLATE = re.compile(r"\$(?P<group>\d+)|\\?(?P<plain>.)", re.DOTALL)
_RULE = re.compile(
    r"[\s,]*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/"
    r"(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)


class BadRules(ValueError):
    """An invalid list of rules or an invalid pattern; the message names it."""


class NoName(Exception):
    """No rule matches a subject."""


class PrincipalMappingRule(NamedTuple):
    """One rule; without a pattern the subject is used unchanged."""

    pattern: re.Pattern[str] | None
    template: str = ""
    case: str = ""


def distinguished_name(subject: Subject) -> str:
    """Format the subject as Java does: last part first, without spaces, with keywords for types."""
    return ",".join("+".join(_pair(*pair) for pair in part) for part in reversed(subject))


def _pair(kind: str, value: str) -> str:
    if kind == _EMAIL and value.isascii() and len(value) < 128:
        # RFC 2253 has no keyword for it, so its number and its bytes are used.
        data = bytes([_IA5_STRING, len(value)]) + value.encode()
        return f"1.2.840.113549.1.9.1=#{data.hex()}"
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text.startswith((" ", "#")):
        text = f"\\{text}"
    if len(text) > 1 and text.endswith(" "):
        text = f"{text[:-1]}\\ "
    return f"{_KEYWORDS.get(kind, kind)}={text}"


def parse_rules(text: str) -> tuple[PrincipalMappingRule, ...]:
    """Parse ``ssl.principal.mapping.rules``; empty rules are skipped. Raises `BadRules`."""
    rules, at = [], 0
    text = text.strip(f"{string.whitespace},") or DEFAULT
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None:
            raise BadRules(f"has '{text[at:]}', which is not a rule; a list of rules is {EXAMPLE}")
        rules.append(_rule(found))
        at = found.end()
    return tuple(rules)


def _as_python(found: re.Match[str]) -> str:
    r"""Java's $1 is \g<1> in Python; escaped characters represent themselves."""
    if found["group"]:
        return f"\\g<{found['group']}>"
    return found["plain"].replace("\\", "\\\\")


def _rule(found: re.Match[str]) -> PrincipalMappingRule:
    if found["default"]:
        return PrincipalMappingRule(None)
    try:
        pattern = re.compile(found["pattern"])
        template = _TEMPLATE.sub(_as_python, found["replacement"])
        re.compile(f"(?:{found['pattern']})|").sub(template, "")  # raises if a group does not exist
    except (re.error, IndexError) as error:
        raise BadRules(f"has the rule '{found.group().strip(' ,')}': {error}") from None
    return PrincipalMappingRule(pattern, template, found["case"])


def user_name(name: str, rules: Sequence[PrincipalMappingRule]) -> str:
    """Apply the first matching rule to a distinguished name. Raises `NoName`."""
    for pattern, template, case in rules:
        if pattern is None:
            return name
        if len(name) > NAME_CHARS_MAX:
            raise NoName(f"a certificate's name has more than {NAME_CHARS_MAX} characters")
        if found := pattern.fullmatch(name):
            made = found.expand(template)
            return made.lower() if case == "L" else made.upper() if case == "U" else made
    raise NoName(f"no rule of ssl.principal.mapping.rules matches the certificate of {name}")

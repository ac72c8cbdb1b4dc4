"""Certificates: their subject and alternative names, and the rules that map a subject to a user.

Owns the parts of X.509's DER that lead to these two, RFC 2253's form of a subject, and the syntax
``RULE:pattern/replacement/[LU]``. It must never see a private key, validate a certificate or check
its expiry. Invariant: bytes that are not a certificate raise `BadCertificate`; the first rule whose
pattern matches the complete subject applies, and a subject that no rule matches has no name.
Kafka's ``SslPrincipalMapper`` and Java's ``X500Principal`` and ``X509Certificate``; Python's
``ssl`` reads these fields of a peer's certificate only.
"""

from __future__ import annotations

import binascii
import re
import string
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
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


# The fields of a certificate ----------------------------------------------------------------------

_BLOCK = re.compile(
    r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]*)-----END (?:X509 |TRUSTED )?CERTIFICATE"
)
"""OpenSSL's "trusted" certificates have more data after the certificate."""

_INTEGER, _OCTETS, _OID, _SEQUENCE = 0x02, 0x04, 0x06, 0x30
_VERSION, _EXTENSIONS = 0xA0, 0xA3
"""Numbered fields of a certificate."""

_ENCODINGS: Final = {0x1E: "utf-16-be", 0x1C: "utf-32-be", 0x14: "latin-1"}
"""Encodings of texts other than UTF-8 and its subsets."""

_SUBJECT_ALT_NAME: Final = "2.5.29.17"

_KINDS: Final = {
    "0.9.2342.19200300.100.1.1": "userId",
    "0.9.2342.19200300.100.1.25": "domainComponent",
    "1.2.840.113549.1.9.1": "emailAddress",
    "2.5.4.3": "commonName",
    "2.5.4.6": "countryName",
    "2.5.4.7": "localityName",
    "2.5.4.8": "stateOrProvinceName",
    "2.5.4.9": "streetAddress",
    "2.5.4.10": "organizationName",
    "2.5.4.11": "organizationalUnitName",
}
"""OpenSSL's keywords for kinds of names; others are written as their numbers."""

_NAMES: Final = {0x81: "email", 0x82: "DNS", 0x86: "URI"}
_ADDRESS: Final = 0x87


class BadCertificate(ValueError):
    """A text without a certificate, or with one that cannot be read."""


class Identity(NamedTuple):
    """Subject and alternative names of a certificate; ``names`` are like ``DNS:localhost``."""

    subject: Subject
    names: frozenset[str]


class _Value(NamedTuple):
    tag: int
    body: bytes


def identity(pem: str) -> Identity:
    """Read the first certificate of a PEM text. Raises `BadCertificate`."""
    found = _BLOCK.search(pem)
    if found is None:
        raise BadCertificate("has no certificate")
    try:
        return _identity(binascii.a2b_base64(found[1]))
    except (ValueError, IndexError, StopIteration) as error:
        raise BadCertificate("has a certificate that can't be read") from error


def _identity(der: bytes) -> Identity:
    certificate = next(_values(der))
    to_be_signed = next(_values(certificate.body))
    fields = list(_values(to_be_signed.body))
    if fields[0].tag == _VERSION:
        fields.pop(0)
    number, _algorithm, _issuer, _validity, subject = fields[:5]
    if number.tag != _INTEGER or subject.tag != _SEQUENCE:
        raise ValueError
    extensions = [field.body for field in fields[5:] if field.tag == _EXTENSIONS]
    return Identity(
        tuple(tuple(map(_attribute, _values(part.body))) for part in _values(subject.body)),
        frozenset(name for body in extensions for name in _names(body)),
    )


def _values(data: bytes) -> Iterator[_Value]:
    """Yield consecutive DER values."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            width = size & 0x7F
            size = int.from_bytes(data[at : at + width], "big")
            at += width
        if at + size > len(data):
            raise ValueError
        yield _Value(tag, data[at : at + size])
        at += size


def _attribute(pair: _Value) -> tuple[str, str]:
    kind, value = _values(pair.body)
    number = _number(kind)
    return _KINDS.get(number, number), value.body.decode(_ENCODINGS.get(value.tag, "utf-8"))


def _number(value: _Value) -> str:
    """Return an object identifier in dotted form."""
    if value.tag != _OID:
        raise ValueError
    parts, part = list[int](), 0
    for byte in value.body:
        part = part << 7 | byte & 0x7F
        if not byte & 0x80:
            parts.append(part)
            part = 0
    first = min(parts[0] // 40, 2)
    return ".".join(map(str, (first, parts[0] - 40 * first, *parts[1:])))


def _names(extensions: bytes) -> Iterator[str]:
    (every,) = _values(extensions)
    for extension in _values(every.body):
        # An optional flag between them says whether the extension is critical.
        kind, *_, content = _values(extension.body)
        if _number(kind) == _SUBJECT_ALT_NAME and content.tag == _OCTETS:
            (names,) = _values(content.body)
            yield from map(_name, _values(names.body))


def _name(name: _Value) -> str:
    if name.tag in _NAMES:
        return f"{_NAMES[name.tag]}:{name.body.decode('latin-1')}"
    if name.tag == _ADDRESS and len(name.body) in (4, 16):
        return f"IP:{ip_address(name.body)}"
    return f"{name.tag:#x}:{name.body.hex()}"

"""Reads the subject and the alternative names of a certificate.

Owns the parts of X.509's DER that lead to these two. It must never see a private key, validate a
certificate or check its expiry. Invariant: bytes that are not a certificate raise `BadCertificate`.
Kafka uses Java's ``X509Certificate``; Python's ``ssl`` reads these fields of a peer's certificate
only.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final, NamedTuple

from minibroker.broker.security.certificates import Subject

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
        tuple(tuple(map(_pair, _values(part.body))) for part in _values(subject.body)),
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


def _pair(pair: _Value) -> tuple[str, str]:
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

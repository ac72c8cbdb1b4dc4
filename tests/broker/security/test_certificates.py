"""Certificates are read, and their subjects written and mapped as Kafka does."""

from __future__ import annotations

import base64
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.security.certificates import (
    NAME_CHARS_MAX,
    BadCertificate,
    BadRules,
    NoName,
    distinguished_name,
    identity,
    parse_rules,
    user_name,
)


def test_subject_is_written_as_java_writes_it() -> None:
    subject = (
        (("countryName", "US"),),
        (("organizationName", "A, Inc."),),
        (("organizationalUnitName", "x"), ("userId", "7")),
        (("emailAddress", "a@b"),),
        (("commonName", " me#"),),
        (("serialNumber", "1 "),),
    )
    assert distinguished_name(subject) == (
        r"serialNumber=1\ ,CN=\ me#,1.2.840.113549.1.9.1=#1603614062,OU=x+UID=7,O=A\, Inc.,C=US"
    )


RULES = (
    "RULE:^CN=(.*),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*),OU=(.*),O=(.*),L=(.*),ST=(.*),C=(.*)$/$1@$2/L, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_first_rule_that_fits_decides(name: str, user: str) -> None:
    assert user_name(name, parse_rules(RULES)) == user


def test_slashes_in_principal_mapping_rules_are_escaped() -> None:
    rules = parse_rules(r"RULE:^CN=(\w+)\/x$/$1\/y/")
    assert user_name("CN=a/x", rules) == "a/y"
    assert user_name("b", parse_rules(r"RULE:(b)|c/\$1\\$1/")) == "$1\\b"


def test_subject_that_no_rule_fits_has_no_name() -> None:
    with pytest.raises(NoName, match="matches the certificate of CN=b"):
        user_name("CN=b", parse_rules("RULE:CN=a/a/"))
    assert user_name("CN=b", parse_rules("")) == "CN=b"


def test_long_subject_is_compared_with_no_pattern() -> None:
    rules = parse_rules("RULE:(a+)+b/$1/")
    with pytest.raises(NoName, match="more than 2048 characters"):
        user_name("a" * (NAME_CHARS_MAX + 1), rules)
    assert user_name("a" * (NAME_CHARS_MAX + 1), parse_rules("")) != ""


@pytest.mark.parametrize(
    "text", ["", " ,, ,", ",,RULE:x/y/,,,DEFAULT,,", " , RULE:x/y/ , DEFAULT, ,"]
)
def test_extra_commas_are_ignored(text: str) -> None:
    rules = parse_rules(text)
    assert len(rules) == (2 if "x" in text else 1)
    assert user_name("CN=b", rules) == "CN=b"


@pytest.mark.parametrize(
    "text",
    [
        "default",
        "RULE:x",
        "RULE:(/x/",
        "RULE:a/$1/",
        "RULE:a/b/X",
        "DEFAULT,y",
        "y,DEFAULT",
        "RULE:a/b/LU",
    ],
)
def test_invalid_principal_mapping_rule_is_rejected(text: str) -> None:
    with pytest.raises(BadRules):
        parse_rules(text)


AUTHORITY = trustme.CA()


def pem_of(leaf: trustme.LeafCert) -> str:
    return leaf.private_key_and_cert_chain_pem.bytes().decode()


def test_subject_and_all_names() -> None:
    leaf = AUTHORITY.issue_cert(
        "localhost",
        "*.example.org",
        "127.0.0.1",
        "::1",
        "me@example.org",
        common_name="Käfer, the",
        organization_name="Tests",
        organization_unit_name="Unit",
    )
    found = identity(pem_of(leaf))
    read = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes())
    expected = [[(part.oid.dotted_string, part.value) for part in rdn] for rdn in read.subject.rdns]
    numbers = {"2.5.4.3": "commonName", "2.5.4.10": "organizationName"}
    numbers |= {"2.5.4.11": "organizationalUnitName"}
    assert [list(part) for part in found.subject] == [
        [(numbers[oid], value) for oid, value in part] for part in expected
    ]
    assert distinguished_name(found.subject).startswith(r"CN=Käfer\, the,")
    dns = {"DNS:localhost", "DNS:*.example.org"}
    assert found.names == {*dns, "IP:127.0.0.1", "IP:::1", "email:me@example.org"}


def test_unknown_attribute_type_is_shown_as_oid() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.ObjectIdentifier("2.999.7"), "seven")])
    now = datetime(2026, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    ).sign(key, hashes.SHA256())
    found = identity(made.public_bytes(serialization.Encoding.PEM).decode())
    assert found.subject == ((("2.999.7", "seven"),),)
    assert found.names == frozenset()


def test_first_certificate_of_a_chain_counts() -> None:
    leaf = AUTHORITY.create_child_ca().issue_cert("localhost", common_name="me")
    assert len(leaf.cert_chain_pems) > 1
    assert "CN=me" in distinguished_name(identity(pem_of(leaf)).subject)


def test_text_without_a_certificate() -> None:
    with pytest.raises(BadCertificate, match="has no certificate"):
        identity("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")


DER = base64.b64decode("".join(AUTHORITY.cert_pem.bytes().decode().splitlines()[1:-1]))


@given(st.one_of(st.binary(), st.integers(0, len(DER)).map(lambda end: DER[:end])))
def test_invalid_bytes_raise_only_the_documented_error(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    try:
        identity(f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    except BadCertificate:
        assert data != DER
    else:
        assert data == DER


@given(st.integers(0, len(DER) - 1), st.integers(0, 255))
def test_corrupt_byte_raises_only_the_documented_error(at: int, byte: int) -> None:
    text = base64.b64encode(DER[:at] + bytes([byte]) + DER[at + 1 :]).decode()
    with suppress(BadCertificate):
        identity(f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")

"""Names of certificates: Java's texts of subjects, and Kafka's own cases of mapping rules."""

from __future__ import annotations

import pytest

from minibroker.broker.security.certificates import (
    NAME_CHARS_MAX,
    BadRules,
    NoName,
    distinguished_name,
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

"""Delegation tokens: times, secrets, and the stored form."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from minibroker.broker.security.delegation_token import (
    TIMESTAMP_MAX,
    TokenLifetimes,
    decode_token,
    encode_token,
    issue,
    later,
    token_credential,
    token_hmac,
)
from minibroker.broker.security.principal import Principal
from minibroker.broker.security.scram import HASHES, credential, salted

ALICE, BOB = Principal("User", "alice"), Principal("User", "b:ob")
LIFETIMES = TokenLifetimes(max_ms=100, renewal_ms=10)
TOKEN = issue("t", ALICE, BOB, (BOB,), now_ms=1000, requested_ms=-1, lifetimes=LIFETIMES)


def test_new_token_expires_before_its_maximum_lifetime() -> None:
    assert (TOKEN.issued_ms, TOKEN.expires_ms, TOKEN.max_ms) == (1000, 1010, 1100)
    brief = issue("t", ALICE, BOB, (), now_ms=0, requested_ms=5, lifetimes=LIFETIMES)
    assert (brief.expires_ms, brief.max_ms) == (5, 5)


def test_token_expires_after_the_last_millisecond() -> None:
    assert not TOKEN.is_expired(1010)
    assert TOKEN.is_expired(1011)
    assert TOKEN.expiring(5000).expires_ms == TOKEN.max_ms


def test_times_do_not_overflow() -> None:
    assert later(TIMESTAMP_MAX - 1, 5) == TIMESTAMP_MAX


def test_only_owner_and_renewers_change_a_token() -> None:
    assert TOKEN.may_be_changed_by(ALICE)
    assert TOKEN.may_be_changed_by(BOB)
    assert not TOKEN.may_be_changed_by(Principal("Group", "alice"))


def test_secret_is_kafkas_hmac() -> None:
    assert token_hmac("key", "id") == hmac.new(b"key", b"id", hashlib.sha512).digest()


@pytest.mark.parametrize("mechanism", HASHES)
def test_credential_is_that_of_the_secret_as_password(mechanism: str) -> None:
    found = token_credential("key", "id", mechanism)
    password = base64.b64encode(token_hmac("key", "id")).decode()
    key = salted(mechanism, password, found.salt, found.iterations)
    assert found == credential(mechanism, key, found.salt, found.iterations)
    assert found.salt != token_credential("key", "other", mechanism).salt


def test_token_round_trips_in_its_stored_form() -> None:
    stored = encode_token(TOKEN)
    assert decode_token("t", stored) == TOKEN
    assert decode_token("t", encode_token(TOKEN._replace(renewers=()))) is not None
    for broken in ({}, {**stored, "owner": "alice"}, {**stored, "max.ms": "x"}):
        assert decode_token("t", broken) is None


@pytest.mark.parametrize("name", ["", "a\nb", "User:x", '"'])
def test_renewer_may_have_any_name(name: str) -> None:
    token = TOKEN._replace(renewers=(Principal("User", name), BOB))
    assert decode_token("t", encode_token(token)) == token


@pytest.mark.parametrize("renewers", ["", "User:bob", "{}", "[1]", '[["User"]]', "[" * 100_000])
def test_token_with_invalid_renewers_is_none(renewers: str) -> None:
    assert decode_token("t", {**encode_token(TOKEN), "renewers": renewers}) is None

"""OAUTHBEARER: messages, and which claims are believed on which clock."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.security.mechanism import (
    AuthenticatedUser,
    AuthenticationFailed,
    AuthenticationStep,
)
from minibroker.broker.security.oauth import (
    BadToken,
    OAuthBearer,
    TokenRules,
    check_claims,
    unsecured,
)
from tests.broker.security.tokens import bearer, unsigned

NOW_MS = 1_000_000_500
CLAIMS = {"sub": "carol", "exp": 1_000_100}


def respond(message: bytes, rules: TokenRules | None = None) -> AuthenticationStep:
    return OAuthBearer(unsecured, rules or TokenRules(), lambda: NOW_MS).respond(message)


def test_token_authenticates_until_it_expires() -> None:
    token = unsigned(CLAIMS)
    assert respond(bearer(token)) == AuthenticationStep(
        b"", AuthenticatedUser("carol", 1_000_100_000)
    )
    assert respond(bearer(token, "carol", "traceId=7\x01")).proven is not None
    with pytest.raises(AuthenticationFailed, match="authorization id"):
        respond(bearer(token, "mallory"))


def test_invalid_token_gets_error_response_before_failure() -> None:
    exchange = OAuthBearer(unsecured, TokenRules(), lambda: NOW_MS)
    refused = exchange.respond(bearer(unsigned({"sub": "carol", "exp": 1})))
    assert refused == AuthenticationStep(b'{"status":"invalid_token"}')
    with pytest.raises(AuthenticationFailed, match="it has expired") as caught:
        exchange.respond(b"\x01")
    assert caught.value.client_message == '{"status":"invalid_token"}'


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,\x01\x01", b"y,,\x01auth=Bearer x\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"\xff"],
)
def test_malformed_oauth_message_fails_immediately(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        respond(message)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"sub": ""}, "is empty"),
        ({"sub": 7}, "is empty"),
        ({"exp": None}, "no exp"),
        ({"exp": 1_000_000.5}, "expired"),
        ({"exp": "soon"}, "is not a time"),
        ({"exp": True}, "is not a time"),
        ({"exp": 1e300}, "is not a time"),
        ({"iat": 1_000_001}, "issued in the future"),
        ({"iat": 1_000_000, "exp": 1_000_000}, "expired"),
        ({"sub": " "}, "is empty"),
        ({"scope": "read"}, "lacks a required scope"),
        ({"scope": "read write"}, "lacks a required scope"),
        ({"scope": None}, "lacks a required scope"),
        ({"scope": 7}, "is not a scope"),
        ({"scope": ["write", 7]}, "is not a scope"),
        ({"iss": "them"}, "issuer"),
        ({"aud": ["them"]}, "audience"),
    ],
)
def test_invalid_claims_are_rejected(claims: dict[str, Any], why: str) -> None:
    good = {**CLAIMS, "scope": ["read", " write "], "iss": "us", "aud": ["x", "broker"]}
    rules = TokenRules(
        scope=frozenset({"write"}), issuer="us", audience=frozenset({"broker", "other"})
    )
    assert check_claims(good, rules, NOW_MS).user == "carol"
    assert check_claims({**good, "scope": " write "}, rules, NOW_MS).user == "carol"
    with pytest.raises(BadToken, match=why):
        check_claims({**good, **claims}, rules, NOW_MS)


def test_skew_is_allowed_in_both_directions() -> None:
    rules = TokenRules(skew_ms=1000)
    check_claims({"sub": "c", "exp": 1_000_000, "iat": 999_999}, rules, NOW_MS)
    check_claims({"sub": "c", "exp": 1_000_100, "iat": 1_000_001}, rules, NOW_MS)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iat": None}, "no iat"),
        ({"iat": -5}, "no iat"),
        ({"nbf": 1_000_001.5, "exp": 1_000_001.25}, "not valid yet"),
        ({"scope": " "}, "empty or repeated scope"),
        ({"scope": ["a", "a "]}, "empty or repeated scope"),
        ({"nbf": 1_000_001.6}, "not valid yet"),
        ({"nbf": "soon"}, "is not a time"),
        ({"aud": "them"}, "another audience"),
        ({"aud": ["them", "others"]}, "another audience"),
        ({"aud": []}, "another audience"),
    ],
)
def test_signed_token_with_invalid_time_or_audience_is_rejected(
    claims: dict[str, Any], why: str
) -> None:
    good = {**CLAIMS, "iat": 999_000, "nbf": 1_000_001.5, "scope": 7}
    rules = TokenRules(skew_ms=1000, signed=True)
    assert check_claims(good, rules, NOW_MS).user == "carol"
    with pytest.raises(BadToken, match=why):
        check_claims({**good, **claims}, rules, NOW_MS)
    if why != "is not a time":
        unsigned_one = {**good, "scope": "a", **claims}
        assert check_claims(unsigned_one, TokenRules(skew_ms=1000), NOW_MS).user == "carol"


@pytest.mark.parametrize(
    "token", ["", "a.b", "a.b.", "e30.e30.", unsigned(CLAIMS) + "sig", "W10.e30.", "\x00.\x00."]
)
def test_only_tokens_that_claim_no_signature_are_unsecured(token: str) -> None:
    with pytest.raises(BadToken):
        unsecured(token)

"""OAUTHBEARER: messages, and which claims are believed on which clock."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.security.mechanism import AuthenticationFailed, Proven, Step
from minibroker.security.oauth import BadToken, OAuthBearer, Rules, judge, unsecured
from tests.security.tokens import bearer, unsigned

NOW_MS = 1_000_000_500
CLAIMS = {"sub": "carol", "exp": 1_000_100}


def respond(message: bytes, rules: Rules | None = None) -> Step:
    return OAuthBearer(unsecured, rules or Rules(), lambda: NOW_MS).respond(message)


def test_a_token_proves_a_name_until_it_expires() -> None:
    token = unsigned(CLAIMS)
    assert respond(bearer(token)) == Step(b"", Proven("carol", 1_000_100_000))
    assert respond(bearer(token, "carol", "traceId=7\x01")).proven is not None
    with pytest.raises(AuthenticationFailed, match="authorization id"):
        respond(bearer(token, "mallory"))


def test_a_refused_token_is_answered_first_and_fails_then() -> None:
    exchange = OAuthBearer(unsecured, Rules(), lambda: NOW_MS)
    refused = exchange.respond(bearer(unsigned({"sub": "carol", "exp": 1})))
    assert refused == Step(b'{"status":"invalid_token"}')
    with pytest.raises(AuthenticationFailed, match="it has expired") as caught:
        exchange.respond(b"\x01")
    assert caught.value.told == '{"status":"invalid_token"}'


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,\x01\x01", b"y,,\x01auth=Bearer x\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"\xff"],
)
def test_what_is_no_message_fails_at_once(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        respond(message)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"sub": ""}, "names nobody"),
        ({"sub": 7}, "names nobody"),
        ({"exp": None}, "no exp"),
        ({"exp": 1_000_000.5}, "expired"),
        ({"exp": "soon"}, "no time"),
        ({"exp": True}, "no time"),
        ({"exp": 1e300}, "no time"),
        ({"iat": 1_000_001}, "issued in the future"),
        ({"iat": 1_000_000, "exp": 1_000_000}, "expired"),
        ({"scope": "read"}, "scope"),
        ({"iss": "them"}, "issuer"),
        ({"aud": ["them"]}, "audience"),
    ],
)
def test_claims_that_are_not_believed(claims: dict[str, Any], why: str) -> None:
    good = {**CLAIMS, "scope": "read write", "iss": "us", "aud": ["x", "broker"]}
    rules = Rules(scope=frozenset({"write"}), issuer="us", audience=frozenset({"broker", "other"}))
    assert judge(good, rules, NOW_MS).user == "carol"
    with pytest.raises(BadToken, match=why):
        judge({**good, **claims}, rules, NOW_MS)


def test_a_skew_is_allowed_in_both_directions() -> None:
    rules = Rules(skew_ms=1000)
    judge({"sub": "c", "exp": 1_000_000, "iat": 999_999}, rules, NOW_MS)
    judge({"sub": "c", "exp": 1_000_100, "iat": 1_000_001}, rules, NOW_MS)


@pytest.mark.parametrize(
    "token", ["", "a.b", "a.b.", "e30.e30.", unsigned(CLAIMS) + "sig", "W10.e30.", "\x00.\x00."]
)
def test_only_tokens_that_claim_no_signature_are_unsecured(token: str) -> None:
    with pytest.raises(BadToken):
        unsecured(token)

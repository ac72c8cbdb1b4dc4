"""OAuth bearer tokens are checked, also by the keys of a file."""

from __future__ import annotations

import base64
import builtins
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from minibroker.broker.security.authentication import (
    AuthenticatedUser,
    AuthenticationFailed,
    AuthenticationStep,
)
from minibroker.broker.security.oauth import (
    BadToken,
    OAuthBearer,
    TokenRules,
    UnusableKeys,
    check_claims,
    unsecured,
    verifier,
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


KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
SIGNED_CLAIMS = {"sub": "carol", "exp": 1}


def jwk(key: Any, key_id: str | None = "k1") -> dict[str, Any]:
    made: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    return made | ({"kid": key_id} if key_id else {})


def jwks(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": list(keys)})


def signed(key: Any = KEY, key_id: str | None = "k1") -> str:
    return jwt.encode(SIGNED_CLAIMS, key, "ES256", headers={"kid": key_id} if key_id else None)


def test_token_signed_with_known_key_is_accepted() -> None:
    assert verifier(jwks(jwk(OTHER, "k0"), jwk(KEY)))(signed()) == SIGNED_CLAIMS
    assert verifier(jwks(jwk(KEY)))(signed(key_id=None)) == SIGNED_CLAIMS


def nested(key: Any = None) -> str:
    """A token with JSON that is nested too deeply, in its header or in claims that a key signs."""
    arrays = "[" * 100_000 + "]" * 100_000
    if key is not None:
        return jwt.api_jws.encode(arrays.encode(), key, "ES256", headers={"kid": "k1"})
    header = base64.urlsafe_b64encode(f'{{"alg":"ES256","kid":{arrays}}}'.encode()).rstrip(b"=")
    return f"{header.decode()}.e30.AAAA"


@pytest.mark.parametrize(
    "token",
    [
        nested(),
        nested(KEY),
        signed(OTHER),
        signed(key_id="k2"),
        unsigned(SIGNED_CLAIMS),
        jwt.encode(
            SIGNED_CLAIMS, "a shared secret of thirty-two byt", "HS256", headers={"kid": "k1"}
        ),
        "",
        "a.b.c",
        signed()[:-4] + "AAAA",
    ],
    ids=lambda token: token[:20],
)
def test_invalid_proof_is_rejected(token: str) -> None:
    with pytest.raises(BadToken):
        verifier(jwks(jwk(KEY)))(token)


def test_token_that_names_no_key_may_be_of_any() -> None:
    of_both = verifier(jwks(jwk(OTHER, "a"), jwk(KEY, "b")))
    assert of_both(signed(key_id=None)) == SIGNED_CLAIMS
    with pytest.raises(BadToken, match="signature is not valid"):
        of_both(signed(ec.generate_private_key(ec.SECP256R1()), key_id=None))


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_jwk_alg_and_use_restrict_accepted_signatures(algorithm: str) -> None:
    pair = rsa.generate_private_key(65537, 2048)
    says = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(pair.public_key()))
    token = jwt.encode(SIGNED_CLAIMS, pair, algorithm)
    assert verifier(jwks(says))(token) == SIGNED_CLAIMS
    stated = verifier(jwks({**says, "alg": "RS256"}))
    if algorithm == "RS256":
        assert stated(token) == SIGNED_CLAIMS
    else:
        with pytest.raises(BadToken, match="signature is not valid"):
            stated(token)
    with pytest.raises(UnusableKeys, match="no usable key"):
        verifier(jwks({**says, "use": "enc"}))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{}",
            "[]",
            '{"keys": []}',
            '{"keys": 7}',
            '{"keys": [7]}',
            '{"keys": [{"kty": "x"}]}',
        ),
        "[" * 100_000,
    ],
    ids=lambda text: text[:20],
)
def test_jwks_without_usable_keys_is_rejected(text: str) -> None:
    with pytest.raises(UnusableKeys):
        verifier(text)


def test_shared_secret_is_no_key() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "k1", "alg": "HS256"}
    with pytest.raises(UnusableKeys, match="shared secret"):
        verifier(jwks(secret))


def test_missing_jwt_library_reports_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "jwt":
            raise ImportError("No module named 'jwt'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnusableKeys, match=r"pip install minibroker\[oauth\]"):
        verifier(jwks(jwk(KEY)))

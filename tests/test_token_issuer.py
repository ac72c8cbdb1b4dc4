"""Tokens of the issuer: a broker accepts a valid one, and rejects each wrong one for its reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import get_args

import pytest

from minibroker.broker.security.oauth import BadToken, TokenRules, check_claims, verifier
from minibroker.token_issuer import (
    AUDIENCE,
    JWKS,
    Algorithm,
    NoTokenLibrary,
    TokenIssuer,
    TokenKind,
    TokenWishes,
    claims_of,
    issuer_url,
)

ISSUER = "http://127.0.0.1:1/v1/oauth"
NOW_S = 1_700_000_000
RULES = TokenRules(issuer=ISSUER, audience=frozenset({AUDIENCE}), signed=True, skew_ms=30_000)
REASONS: dict[TokenKind, str] = {
    "expired": "it has expired",
    "not_yet_valid": "it is not valid yet",
    "wrong_audience": "it is for another audience",
    "wrong_issuer": "it has another issuer",
    "unknown_key": "it names an unknown key",
    "wrong_signature": "its signature is not valid",
}


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    made = TokenIssuer(tmp_path)
    made.create()
    return made


def user_of(issuer: TokenIssuer, token: str) -> str:
    """The user of a token, as the broker finds it."""
    claims = verifier(json.dumps(issuer.jwks()))(token)
    return check_claims(claims, RULES, NOW_S * 1000).user


def token(issuer: TokenIssuer, kind: TokenKind = "valid") -> str:
    return issuer.token(TokenWishes("alice", kind), ISSUER, NOW_S)


def test_valid_token_is_accepted(issuer: TokenIssuer) -> None:
    assert user_of(issuer, token(issuer)) == "alice"


@pytest.mark.parametrize("kind", sorted(set(get_args(TokenKind)) - {"valid"}))
def test_wrong_token_is_rejected_for_its_reason(issuer: TokenIssuer, kind: TokenKind) -> None:
    with pytest.raises(BadToken, match=REASONS[kind]):
        user_of(issuer, token(issuer, kind))


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_old_tokens_stay_valid_while_their_key_is_kept(
    issuer: TokenIssuer, algorithm: Algorithm
) -> None:
    old = token(issuer)
    key_id = issuer.rotate(algorithm=algorithm)
    assert issuer.jwks()["keys"][0]["kid"] == key_id
    assert issuer.jwks()["keys"][0]["alg"] == algorithm
    assert user_of(issuer, token(issuer)) == user_of(issuer, old) == "alice"
    issuer.rotate(keep_old=False)
    with pytest.raises(BadToken, match="unknown key"):
        user_of(issuer, old)


def test_keys_are_created_once_and_private_ones_are_not_published(
    issuer: TokenIssuer, tmp_path: Path
) -> None:
    before = (tmp_path / JWKS).read_text()
    issuer.create()
    assert (tmp_path / JWKS).read_text() == before
    issuer.rotate(algorithm="RS256")
    for key in issuer.jwks()["keys"]:
        assert {"d", "p", "q"}.isdisjoint(key)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_given_claims_override_those_of_the_kind() -> None:
    wishes = TokenWishes("alice", lifetime_s=60, scope="a b", claims={"aud": ["x"], "team": 1})
    claims = claims_of(wishes, ISSUER, NOW_S)
    assert claims["exp"] - claims["iat"] == 60
    assert (claims["aud"], claims["team"], claims["scope"]) == (["x"], 1, "a b")


def test_issuer_is_at_the_control_api_without_its_token() -> None:
    assert issuer_url("http://minibroker:secret@127.0.0.1:1") == ISSUER


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(NoTokenLibrary, match=r"pip install 'minibroker\[oauth\]'"):
        TokenIssuer(tmp_path).create()

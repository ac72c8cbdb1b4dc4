"""Signed tokens: which keys prove something, and that a token never chooses the algorithm."""

from __future__ import annotations

import base64
import builtins
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from minibroker.broker.security.jwks import UnusableKeys, verifier
from minibroker.broker.security.oauth import BadToken
from tests.broker.security.tokens import unsigned

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {"sub": "carol", "exp": 1}


def jwk(key: Any, key_id: str | None = "k1") -> dict[str, Any]:
    made: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    return made | ({"kid": key_id} if key_id else {})


def jwks(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": list(keys)})


def signed(key: Any = KEY, key_id: str | None = "k1") -> str:
    return jwt.encode(CLAIMS, key, "ES256", headers={"kid": key_id} if key_id else None)


def test_token_signed_with_known_key_is_accepted() -> None:
    assert verifier(jwks(jwk(OTHER, "k0"), jwk(KEY)))(signed()) == CLAIMS
    assert verifier(jwks(jwk(KEY)))(signed(key_id=None)) == CLAIMS


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
        unsigned(CLAIMS),
        jwt.encode(CLAIMS, "a shared secret of thirty-two byt", "HS256", headers={"kid": "k1"}),
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
    assert of_both(signed(key_id=None)) == CLAIMS
    with pytest.raises(BadToken, match="signature is not valid"):
        of_both(signed(ec.generate_private_key(ec.SECP256R1()), key_id=None))


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_jwk_alg_and_use_restrict_accepted_signatures(algorithm: str) -> None:
    pair = rsa.generate_private_key(65537, 2048)
    says = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(pair.public_key()))
    token = jwt.encode(CLAIMS, pair, algorithm)
    assert verifier(jwks(says))(token) == CLAIMS
    stated = verifier(jwks({**says, "alg": "RS256"}))
    if algorithm == "RS256":
        assert stated(token) == CLAIMS
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

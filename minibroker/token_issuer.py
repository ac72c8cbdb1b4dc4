"""The token issuer of a test broker: its keys, and signed tokens with every fault on request.

Owns the private key that signs, the JWKS file with which a broker verifies, and the claims of each
kind of token. It must never validate a token. Invariant: the JWKS file has public keys only, and is
replaced as a whole; a token differs from a valid one in exactly what its kind says. Issuers that
applications use are Keycloak and others; Kafka has none.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

TokenKind = Literal[
    "valid",
    "expired",
    "not_yet_valid",
    "wrong_audience",
    "wrong_issuer",
    "unknown_key",
    "wrong_signature",
]
IssuedKind = Literal[TokenKind, "denied", "unavailable"]
"""What the token endpoint answers: a kind of token, or an error."""

Algorithm = Literal["ES256", "RS256"]

AUDIENCE: Final = "kafka"
LIFETIME_S: Final = 3600
JWKS: Final = "jwks.json"
MISSING: Final = "tokens need PyJWT with cryptography: pip install 'minibroker[oauth]'"

_SIGNING_KEY: Final = "signing-key.pem"
_FILE_MODE: Final = 0o600
_RSA_BITS: Final = 2048
_KEY_ID_BYTES: Final = 8
_DAY_S: Final = 86_400


def issuer_url(control_url: str) -> str:
    """The URL of the issuer of a broker, without a token of its control API."""
    place = urlsplit(control_url)
    return f"{place.scheme}://{place.netloc.rpartition('@')[2]}/v1/oauth"


class NoTokenLibrary(Exception):
    """PyJWT or cryptography is missing; the message says how to install them."""


def write_private(path: Path, content: bytes) -> None:
    """Write or replace a file that only its owner can read."""
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE), "wb") as file:
        file.write(content)
    os.replace(new, path)


class TokenWishes(NamedTuple):
    """What a token contains; ``claims`` are further ones, and override the others."""

    subject: str
    kind: TokenKind = "valid"
    lifetime_s: int = LIFETIME_S
    scope: str | None = None
    claims: Mapping[str, object] = {}


def claims_of(wishes: TokenWishes, issuer: str, now_s: int) -> dict[str, Any]:
    """Return the claims of a token, of which its kind has made one wrong."""
    issued, lifetime_s = now_s, wishes.lifetime_s
    if wishes.kind == "expired":
        issued = now_s - _DAY_S - lifetime_s
    claims: dict[str, Any] = {
        "iss": issuer if wishes.kind != "wrong_issuer" else f"{issuer}/another",
        "sub": wishes.subject,
        "aud": AUDIENCE if wishes.kind != "wrong_audience" else "another",
        "iat": issued,
        "exp": issued + lifetime_s,
        "jti": secrets.token_hex(_KEY_ID_BYTES),
    }
    if wishes.kind == "not_yet_valid":
        claims |= {"nbf": now_s + _DAY_S, "exp": now_s + _DAY_S + lifetime_s}
    if wishes.scope:
        claims["scope"] = wishes.scope
    return {**claims, **wishes.claims}


class TokenIssuer:
    """The issuer of one folder, whose files `create` has written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self) -> None:
        """Write a key and its JWKS if there are none. Raises `NoTokenLibrary`."""
        if not (self._folder / JWKS).exists():
            self.rotate(keep_old=False)

    def rotate(self, *, keep_old: bool = True, algorithm: Algorithm = "ES256") -> str:
        """Sign with a new key from now on, and return its id.

        Tokens of old keys are valid as long as ``keep_old`` keeps these keys in the JWKS.
        """
        listed = self.jwks()["keys"] if keep_old else []
        key, key_id = _new_key(algorithm), secrets.token_hex(_KEY_ID_BYTES)
        public = {**_public_jwk(key, algorithm), "kid": key_id, "alg": algorithm, "use": "sig"}
        write_private(self._folder / _SIGNING_KEY, _as_pem(key))
        jwks = json.dumps({"keys": [public, *listed]}, indent=1)
        write_private(self._folder / JWKS, jwks.encode())
        return key_id

    def jwks(self) -> dict[str, Any]:
        """Return the public keys, the one that signs first."""
        found: dict[str, Any] = json.loads((self._folder / JWKS).read_text())
        return found

    def token(self, wishes: TokenWishes, issuer: str, now_s: int) -> str:
        """Return a signed token. Raises `NoTokenLibrary`."""
        jwt = _jwt()
        says = self.jwks()["keys"][0]
        algorithm: Algorithm = says["alg"]
        key: Any = (self._folder / _SIGNING_KEY).read_bytes()
        if wishes.kind in ("unknown_key", "wrong_signature"):
            key = _new_key(algorithm)
        key_id = says["kid"] if wishes.kind != "unknown_key" else secrets.token_hex(_KEY_ID_BYTES)
        claims = claims_of(wishes, issuer, now_s)
        return str(jwt.encode(claims, key, algorithm, headers={"kid": key_id}))

    def discovery(self, issuer: str) -> dict[str, Any]:
        """Return the metadata of OpenID Connect Discovery."""
        algorithms: Sequence[str] = sorted({str(key["alg"]) for key in self.jwks()["keys"]})
        return {
            "issuer": issuer,
            "token_endpoint": f"{issuer}/token",
            "jwks_uri": f"{issuer}/keys",
            "grant_types_supported": ["client_credentials"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            "id_token_signing_alg_values_supported": algorithms,
            "response_types_supported": [],
            "subject_types_supported": ["public"],
        }


def _jwt() -> Any:
    try:
        import jwt
        import jwt.algorithms

        _ = jwt.algorithms.ECAlgorithm
    except (ImportError, AttributeError):
        raise NoTokenLibrary(MISSING) from None
    return jwt


def _new_key(algorithm: Algorithm) -> EllipticCurvePrivateKey | RSAPrivateKey:
    _jwt()
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if algorithm == "RS256":
        return rsa.generate_private_key(65537, _RSA_BITS)
    return ec.generate_private_key(ec.SECP256R1())


def _public_jwk(
    key: EllipticCurvePrivateKey | RSAPrivateKey, algorithm: Algorithm
) -> dict[str, Any]:
    algorithms = _jwt().algorithms
    kind = algorithms.RSAAlgorithm if algorithm == "RS256" else algorithms.ECAlgorithm
    found: dict[str, Any] = kind.to_jwk(key.public_key(), as_dict=True)
    found.pop("key_ops", None)
    return found


def _as_pem(key: EllipticCurvePrivateKey | RSAPrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )

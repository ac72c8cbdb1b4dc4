"""Signed tokens: returns their claims if a key of a JWKS file verifies the signature.

Owns the choice of key and algorithms, which depends on the key and never on the token; PyJWT
verifies, and is loaded when a listener needs it. It must never judge a claim. Invariant: symmetric
keys and tokens without a signature are never accepted. Kafka's ``BrokerJwtValidator``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from minibroker.broker.security.oauth import BadToken, Claims, Verifier

if TYPE_CHECKING:
    import jwt

_SYMMETRIC = "oct"
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
"""Algorithms of an RSA key that does not name one."""

_CLAIMS_UNCHECKED = dict.fromkeys(
    ("verify_exp", "verify_iat", "verify_nbf", "verify_aud", "verify_iss", "verify_sub"), False
)
"""Claims are checked elsewhere, by the broker's clock."""


class UnusableKeys(Exception):
    """Not a JWKS, or PyJWT is missing; the message says how to correct it."""


class _Key(NamedTuple):
    name: str | None
    half: Any
    algorithms: Sequence[str]


def verifier(jwks: str) -> Verifier:
    """Return a verifier of tokens signed by these keys. Raises ``UnusableKeys``."""
    try:
        import jwt
    except ImportError as error:
        text = f"signed tokens need PyJWT ({error}): pip install minibroker[oauth]"
        raise UnusableKeys(text) from None
    try:
        found = list(_usable(json.loads(jwks)["keys"]))
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise UnusableKeys(f"is not a JWKS with usable keys: {error!r}") from None
    if not found:
        raise UnusableKeys("has no usable key")
    keys = [_as_key(key, says) for key, says in found if key.key_type != _SYMMETRIC]
    if not keys:
        raise UnusableKeys("has no public key; a shared secret could also sign tokens")

    def verify(token: str) -> Claims:
        try:
            name = jwt.get_unverified_header(token).get("kid")
        except (jwt.PyJWTError, RecursionError) as error:  # Some versions of PyJWT raise both.
            raise BadToken(f"it is not a JWS ({type(error).__name__})") from None
        why: Exception | None = None
        # A token without a key id may have been signed by any key.
        for key in [each for each in keys if name in (None, each.name)]:
            try:
                claims: Claims = jwt.decode(
                    token,
                    key=key.half,
                    algorithms=key.algorithms,
                    options=cast("Any", _CLAIMS_UNCHECKED),
                )
            except (jwt.PyJWTError, RecursionError) as error:
                why = error
            else:
                return claims
        if why is None:
            raise BadToken("it names an unknown key")
        raise BadToken(f"its signature is not valid ({type(why).__name__})")

    return verify


def _usable(listed: Sequence[dict[str, Any]]) -> Iterator[tuple[jwt.PyJWK, dict[str, Any]]]:
    """Yield the supported signature keys, each with its JSON."""
    import jwt

    for says in listed:
        if says.get("use", "sig") == "sig":
            try:
                yield jwt.PyJWK(says), says
            except jwt.PyJWTError:
                continue  # For example of a type that the library does not know yet.


def _as_key(key: jwt.PyJWK, says: dict[str, Any]) -> _Key:
    is_free = key.key_type == "RSA" and "alg" not in says
    return _Key(key.key_id, key.key, _RSA if is_free else (key.algorithm_name,))

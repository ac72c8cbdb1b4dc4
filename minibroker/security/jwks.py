"""Tokens that somebody has signed: their claims, if a key of a JWKS file proves the signature.

Owns the choice of the key and of the algorithms, which the key decides and never the token; the
arithmetic is PyJWT's, loaded when a listener needs it.  It must never judge a claim.  The
invariant: a symmetric key or a token without a signature proves nothing.  Echoes Kafka's
``BrokerJwtValidator``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from minibroker.security.oauth import BadToken, Claims, Verifier

if TYPE_CHECKING:
    import jwt

_SYMMETRIC = "oct"
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
"""What an RSA key may sign with that does not say which."""

_CLAIMS_UNCHECKED = dict.fromkeys(
    ("verify_exp", "verify_iat", "verify_nbf", "verify_aud", "verify_iss", "verify_sub"), False
)
"""The claims are judged elsewhere, on the broker's clock."""


class UnusableKeys(Exception):
    """The text is no JWKS, or nothing can check signatures; the message says how to mend it."""


class _Key(NamedTuple):
    name: str | None
    half: Any
    algorithms: Sequence[str]


def verifier(jwks: str) -> Verifier:
    """What believes the tokens that these keys have signed. Raises ``UnusableKeys``."""
    try:
        import jwt
    except ImportError as error:
        text = f"signed tokens need PyJWT ({error}): pip install minibroker[oauth]"
        raise UnusableKeys(text) from None
    try:
        found = list(_usable(json.loads(jwks)["keys"]))
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise UnusableKeys(f"is no JWKS with keys that can be used: {error!r}") from None
    if not found:
        raise UnusableKeys("has no key that can be used")
    keys = [_as_key(key, says) for key, says in found if key.key_type != _SYMMETRIC]
    if not keys:
        raise UnusableKeys("has no key that is half of a pair; a shared secret would sign, too")

    def verify(token: str) -> Claims:
        try:
            name = jwt.get_unverified_header(token).get("kid")
        except jwt.PyJWTError as error:
            raise BadToken(f"it is no JWS ({type(error).__name__})") from None
        why: Exception | None = None
        # One that does not say which key signed it may have been signed by any.
        for key in [each for each in keys if name in (None, each.name)]:
            try:
                claims: Claims = jwt.decode(
                    token,
                    key=key.half,
                    algorithms=key.algorithms,
                    options=cast("Any", _CLAIMS_UNCHECKED),
                )
            except jwt.PyJWTError as error:
                why = error
            else:
                return claims
        if why is None:
            raise BadToken("it names a key that is not known")
        raise BadToken(f"its signature is not proven ({type(why).__name__})")

    return verify


def _usable(listed: Sequence[dict[str, Any]]) -> Iterator[tuple[jwt.PyJWK, dict[str, Any]]]:
    """The keys that are for signatures and can be understood, each with what is said of it."""
    import jwt

    for says in listed:
        if says.get("use", "sig") == "sig":
            try:
                yield jwt.PyJWK(says), says
            except jwt.PyJWTError:
                continue  # Of a kind that is newer than the library, say.


def _as_key(key: jwt.PyJWK, says: dict[str, Any]) -> _Key:
    is_free = key.key_type == "RSA" and "alg" not in says
    return _Key(key.key_id, key.key, _RSA if is_free else (key.algorithm_name,))

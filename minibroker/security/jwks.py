"""Tokens that somebody has signed: their claims, if a key of a JWKS file proves the signature.

Owns the choice of the key and of the algorithm, which the key decides and never the token; the
arithmetic is PyJWT's, loaded when a listener needs it.  It must never judge a claim.  The
invariant: a symmetric key or a token without a signature proves nothing.  Echoes Kafka's
``BrokerJwtValidator``.
"""

from __future__ import annotations

from typing import Any, cast

from minibroker.security.oauth import BadToken, Claims, Verifier

_SYMMETRIC = "oct"
_CLAIMS_UNCHECKED = dict.fromkeys(
    ("verify_exp", "verify_iat", "verify_nbf", "verify_aud", "verify_iss", "verify_sub"), False
)
"""The claims are judged elsewhere, on the broker's clock."""


class UnusableKeys(Exception):
    """The text is no JWKS, or nothing can check signatures; the message says how to mend it."""


def verifier(jwks: str) -> Verifier:
    """What believes the tokens that these keys have signed. Raises ``UnusableKeys``."""
    try:
        import jwt
    except ImportError as error:
        text = f"signed tokens need PyJWT ({error}): pip install minibroker[oauth]"
        raise UnusableKeys(text) from None
    try:
        found = jwt.PyJWKSet.from_json(jwks).keys
    except (jwt.PyJWTError, ValueError, AttributeError, TypeError) as error:
        raise UnusableKeys(f"is no JWKS with keys that can be used: {error}") from None
    keys = [key for key in found if key.key_type != _SYMMETRIC]
    if not keys:
        raise UnusableKeys("has no key that is half of a pair; a shared secret would sign, too")

    def verify(token: str) -> Claims:
        try:
            key = _chosen(keys, jwt.get_unverified_header(token).get("kid"))
            claims: Claims = jwt.decode(
                token,
                key=key,
                algorithms=[key.algorithm_name],
                options=cast("Any", _CLAIMS_UNCHECKED),
            )
        except jwt.PyJWTError as error:
            raise BadToken(f"its signature is not proven ({type(error).__name__})") from None
        return claims

    return verify


def _chosen(keys: list[Any], key_id: str | None) -> Any:
    for key in keys:
        if key.key_id == key_id or (key_id is None and len(keys) == 1):
            return key
    raise BadToken("it names a key that is not known")

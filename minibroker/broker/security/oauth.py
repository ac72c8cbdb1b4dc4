"""Signed tokens: returns their claims if a key of a JWKS file verifies the signature.

Owns the choice of key and algorithms, which depends on the key and never on the token; PyJWT
verifies, and is loaded when a listener needs it. It must never judge a claim. Invariant: symmetric
keys and tokens without a signature are never accepted. Kafka's ``BrokerJwtValidator``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from minibroker.broker.security.authentication import (
    AuthenticatedUser,
    AuthenticationFailed,
    AuthenticationStep,
    text_of,
)

if TYPE_CHECKING:
    import jwt

Claims = Mapping[str, Any]

Verifier = Callable[[str], Claims]
"""Returns the claims of a token. Raises ``BadToken``."""

_KVSEP: Final = "\x01"
_SASLNAME: Final = r"(?:[^=,\x00]|=2C|=3D)+"
_FIRST = re.compile(
    rf"n,(?:a=(?P<acting_as>{_SASLNAME}))?,\x01(?P<pairs>(?:[A-Za-z]++=[!-~ \t\r\n]++\x01)*)\x01"
)
_BEARER = re.compile(r"bearer +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)


class BadToken(Exception):
    """A token is not accepted; the text is logged."""


class TokenRules(NamedTuple):
    """Requirements for the claims of a token."""

    name_claim: str = "sub"
    scope_claim: str = "scope"
    scope: frozenset[str] = frozenset()
    skew_ms: int = 0
    issuer: str | None = None
    audience: frozenset[str] = frozenset()
    signed: bool = False
    """Whether tokens are signed.

    Signed ones must have an issue time and be valid already, and a token with an audience is
    rejected if none is expected.
    """


class OAuthBearer:
    """One exchange; ``now_ms`` returns the time in epoch milliseconds."""

    def __init__(self, verify: Verifier, rules: TokenRules, now_ms: Callable[[], int]) -> None:
        self._verify = verify
        self._rules = rules
        self._now_ms = now_ms
        self._rejection: str | None = None

    def respond(self, token: bytes) -> AuthenticationStep:
        """Check a token; if it is rejected, the client gets an error in JSON and then ends the
        exchange.
        """
        if self._rejection is not None:
            raise AuthenticationFailed(f"the token was rejected: {self._rejection}", _INVALID)
        found = _FIRST.fullmatch(text_of(token))
        if found is None:
            raise AuthenticationFailed("the client's first message is not an OAUTHBEARER message")
        pairs = dict(pair.partition("=")[::2] for pair in found["pairs"].split(_KVSEP)[:-1])
        bearer = _BEARER.fullmatch(pairs.get("auth", ""))
        if bearer is None:
            raise AuthenticationFailed("the client's first message has no bearer token")
        try:
            authenticated = check_claims(self._verify(bearer["token"]), self._rules, self._now_ms())
        except BadToken as bad:
            self._rejection = str(bad)
            return AuthenticationStep(_INVALID.encode())
        acting_as = (found["acting_as"] or "").replace("=2C", ",").replace("=3D", "=")
        if acting_as not in ("", authenticated.user):
            text = "Authentication failed: Client requested an authorization id that is different "
            text += "from the token's principal name"
            raise AuthenticationFailed(text, text)
        return AuthenticationStep(b"", authenticated)


_INVALID: Final = '{"status":"invalid_token"}'


def check_claims(claims: Claims, rules: TokenRules, now_ms: int) -> AuthenticatedUser:
    """Return the user of the claims and their expiry. Raises ``BadToken``."""
    name = claims.get(rules.name_claim)
    if not isinstance(name, str) or not name.strip():
        raise BadToken(f"its claim {rules.name_claim} is empty")
    issued, expires = _time_ms(claims, "iat"), _time_ms(claims, "exp")
    if expires is None:
        raise BadToken("it has no exp")
    if expires + rules.skew_ms <= now_ms:
        raise BadToken("it has expired")
    if issued is not None and issued - rules.skew_ms > now_ms:
        raise BadToken("it was issued in the future")
    if issued is not None and expires <= issued:
        raise BadToken("it expires before it was issued")
    if rules.signed:
        begins = _time_ms(claims, "nbf")
        _check_start(issued, begins, min(now_ms + rules.skew_ms, expires))
    _check_scope(claims, rules)
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise BadToken("it has another issuer")
    audience = claims.get("aud")
    audiences = {audience} if isinstance(audience, str) else set(_strings(audience))
    needs_audience = bool(rules.audience) or (rules.signed and audience is not None)
    if needs_audience and not rules.audience & audiences:
        raise BadToken("it is for another audience")
    return AuthenticatedUser(name, expires)


def _check_start(issued_ms: int | None, begins_ms: int | None, latest_ms: int) -> None:
    if issued_ms is None or issued_ms < 0:
        raise BadToken("it has no iat")
    if begins_ms is not None and begins_ms > latest_ms:
        raise BadToken("it is not valid yet (nbf)")


def _check_scope(claims: Claims, rules: TokenRules) -> None:
    scope = claims.get(rules.scope_claim)
    # As in Kafka, a text is one scope even if it contains blanks; a list has several.
    parts = [scope] if isinstance(scope, str) else scope
    if parts is None or (rules.signed and not isinstance(parts, list)):
        parts = []
    if not isinstance(parts, list) or len(_strings(parts)) < len(parts):
        raise BadToken(f"its claim {rules.scope_claim} is not a scope")
    has = {part.strip() for part in parts}
    if rules.signed and ("" in has or len(has) < len(parts)):
        raise BadToken("it has an empty or repeated scope")
    if not rules.scope <= has:
        raise BadToken("it lacks a required scope")


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _time_ms(claims: Claims, name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise BadToken(f"its {name} is not a time")
    return round(value * 1000)


def unsecured(token: str) -> Claims:
    """Return the claims of an unsigned token (``alg`` is none). Raises ``BadToken``."""
    parts = token.split(".")
    if len(parts) != 3:
        raise BadToken("it is not a JWS in compact form")
    header, claims = map(_object, parts[:2])
    if header.get("alg") != "none" or parts[2]:
        raise BadToken("it is signed, and no keys for verification are configured")
    return claims


def _object(part: str) -> Mapping[str, Any]:
    try:
        found = json.loads(base64.b64decode(part + "=" * (-len(part) % 4), "-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise BadToken("it is not a JWS") from None
    if not isinstance(found, dict):
        raise BadToken("it is not a JWS")
    return found


# Signed tokens ------------------------------------------------------------------------------------
#
# The claims of a token whose signature a key of a JWKS file verifies. The choice of key and
# algorithms depends on the key and never on the token; PyJWT verifies, and is loaded when a
# listener needs it. Invariant: symmetric keys and tokens without a signature are never accepted.
# Kafka's ``BrokerJwtValidator``.


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

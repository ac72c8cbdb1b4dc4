"""SASL OAUTHBEARER (RFC 7628): a token that names its bearer.

Owns the messages and the checks of a token's claims. A verifier decides whether claims are
authentic; unsigned tokens are accepted by default, as in Kafka. It must never keep a token.
Invariant: a token is accepted only within its validity, to the millisecond of the given clock and
the allowed skew. Kafka's ``OAuthBearerSaslServer``, ``OAuthBearerUnsecuredJws`` and, for signed
tokens, ``BrokerJwtValidator``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from minibroker.broker.security.mechanism import (
    AuthenticatedUser,
    AuthenticationFailed,
    AuthenticationStep,
    text_of,
)

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

"""Rules for delegation tokens in the image: creation, renewal, expiry and removal.

Owns the errors of each change. It must never store anything or know a message; the time is an
argument. Invariant: only the owner and the renewers change a token. Kafka's
``DelegationTokenControlManager``.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Final, NamedTuple

from minibroker.broker.metadata.image import (
    DELEGATION_TOKEN,
    EMPTY,
    ChangeRejected,
    ConfigChanged,
    Image,
)
from minibroker.broker.security.delegation_token import (
    DelegationToken,
    TokenLifetimes,
    decode_token,
    encode_token,
    later,
    token_hmac,
)
from minibroker.broker.security.principal import Principal
from minibroker.broker.settings import (
    DELEGATION_TOKEN_EXPIRY_TIME_MS,
    DELEGATION_TOKEN_MAX_LIFETIME_MS,
    Settings,
)
from minibroker_protocol.errors import ErrorCode

TOKENS_MAX: Final = 10_000
"""How many tokens there can be: every processor keeps them in memory."""


class TokenChange(NamedTuple):
    """A requested change of the token with this HMAC, by ``principal`` at ``now_ms``.

    ``period_ms`` is the requested time until expiry.
    """

    hmac: bytes
    principal: Principal
    now_ms: int
    period_ms: int


def token_lifetimes(settings: Settings) -> TokenLifetimes:
    """The limits of the settings."""
    return TokenLifetimes(
        settings[DELEGATION_TOKEN_MAX_LIFETIME_MS], settings[DELEGATION_TOKEN_EXPIRY_TIME_MS]
    )


def find_token(image: Image, token_id: str) -> DelegationToken | None:
    """The token with this id, or None."""
    return decode_token(token_id, image.configs.get((DELEGATION_TOKEN, token_id), EMPTY))


def all_tokens(image: Image) -> Iterator[DelegationToken]:
    """All tokens, in the order of their ids."""
    for kind, token_id in sorted(image.configs):
        token = find_token(image, token_id) if kind == DELEGATION_TOKEN else None
        if token is not None:
            yield token


def plan_token(image: Image, token: DelegationToken) -> ConfigChanged | ChangeRejected:
    """Store a new token, unless there are too many."""
    if sum(kind == DELEGATION_TOKEN for kind, _ in image.configs) >= TOKENS_MAX:
        return ChangeRejected(ErrorCode.POLICY_VIOLATION, f"There are {TOKENS_MAX} tokens already")
    return _stored(token)


def plan_renewal(
    image: Image, settings: Settings, key: str, change: TokenChange
) -> ConfigChanged | ChangeRejected:
    """Move the expiry of a token; a period that is not positive is the longest one."""
    token = _changeable(image, key, change, expired_first=True)
    if isinstance(token, ChangeRejected):
        return token
    longest_ms = token_lifetimes(settings).renewal_ms
    period_ms = min(longest_ms, change.period_ms) if change.period_ms > 0 else longest_ms
    return _stored(token.expiring(later(change.now_ms, period_ms)))


def plan_expiry(image: Image, key: str, change: TokenChange) -> ConfigChanged | ChangeRejected:
    """Set the expiry of a token; with a negative period it is removed at once."""
    token = _changeable(image, key, change, expired_first=False)
    if isinstance(token, ChangeRejected):
        return token
    if change.period_ms < 0:
        return ConfigChanged(DELEGATION_TOKEN, token.token_id, EMPTY)
    if token.is_expired(change.now_ms):
        return _EXPIRED
    return _stored(token.expiring(later(change.now_ms, change.period_ms)))


def plan_removals(image: Image, now_ms: int) -> list[ConfigChanged]:
    """Remove the expired tokens."""
    return [
        ConfigChanged(DELEGATION_TOKEN, token.token_id, EMPTY)
        for token in all_tokens(image)
        if token.is_expired(now_ms)
    ]


_NOT_FOUND: Final = ChangeRejected(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "No token has this HMAC")
_EXPIRED: Final = ChangeRejected(ErrorCode.DELEGATION_TOKEN_EXPIRED, "The token has expired")
_OF_OTHERS: Final = ChangeRejected(
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "Only the owner and the renewers change a token"
)


def _changeable(
    image: Image, key: str, change: TokenChange, *, expired_first: bool
) -> DelegationToken | ChangeRejected:
    for token in all_tokens(image):
        if hmac.compare_digest(token_hmac(key, token.token_id), change.hmac):
            if expired_first and token.is_expired(change.now_ms):
                return _EXPIRED
            return token if token.may_be_changed_by(change.principal) else _OF_OTHERS
    return _NOT_FOUND


def _stored(token: DelegationToken) -> ConfigChanged:
    return ConfigChanged(DELEGATION_TOKEN, token.token_id, encode_token(token))

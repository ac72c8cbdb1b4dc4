"""Delegation tokens: their secret, their lifetime, and their form in the config store (KIP-48).

Owns the arithmetic of times and the HMAC that is the token's secret. It must never store a secret:
the HMAC follows from the token's id and ``delegation.token.secret.key``. Invariant: a token never
outlives its maximum lifetime. Kafka's ``TokenInformation`` and ``DelegationTokenManager``.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.broker.security.principal import Principal, parse
from minibroker.broker.security.scram import HASHES, ITERATIONS_MIN, Credential, credential, salted

TIMESTAMP_MAX: Final = 2**63 - 1
HMAC_HASH: Final = "sha512"
_SALT_LABEL: Final = b"salt of "


class DelegationToken(NamedTuple):
    """One token; times are epoch milliseconds."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def is_expired(self, now_ms: int) -> bool:
        """Whether the token can no longer be used."""
        return min(self.expires_ms, self.max_ms) < now_ms

    def may_be_changed_by(self, principal: Principal) -> bool:
        """Whether this is the owner or a renewer."""
        return principal == self.owner or principal in self.renewers

    def expiring(self, expires_ms: int) -> DelegationToken:
        """The token with another expiry, which its maximum lifetime bounds."""
        return self._replace(expires_ms=min(self.max_ms, expires_ms))


class TokenLifetimes(NamedTuple):
    """Limits of new tokens and renewals in milliseconds."""

    max_ms: int
    renewal_ms: int


def issue(
    token_id: str,
    owner: Principal,
    requester: Principal,
    renewers: tuple[Principal, ...],
    *,
    now_ms: int,
    requested_ms: int,
    lifetimes: TokenLifetimes,
) -> DelegationToken:
    """Return a new token; a requested lifetime that is not positive is the longest one."""
    lifetime_ms = min(lifetimes.max_ms, requested_ms) if requested_ms > 0 else lifetimes.max_ms
    max_ms = later(now_ms, lifetime_ms)
    expires_ms = min(max_ms, later(now_ms, lifetimes.renewal_ms))
    return DelegationToken(token_id, owner, requester, renewers, now_ms, expires_ms, max_ms)


def later(now_ms: int, duration_ms: int) -> int:
    """The time after a duration, at most the largest timestamp."""
    return min(TIMESTAMP_MAX, now_ms + duration_ms)


def token_hmac(key: str, token_id: str) -> bytes:
    """Return the secret of a token."""
    return hmac.digest(key.encode(), token_id.encode(), HMAC_HASH)


def token_credential(key: str, token_id: str, mechanism: str) -> Credential:
    """Return the SCRAM credential of a token, whose password is the HMAC in base64."""
    secret = token_hmac(key, token_id)
    salt = hmac.digest(secret, _SALT_LABEL + mechanism.encode(), HASHES[mechanism])
    password = base64.b64encode(secret).decode()
    return credential(
        mechanism, salted(mechanism, password, salt, ITERATIONS_MIN), salt, ITERATIONS_MIN
    )


def encode_token(token: DelegationToken) -> Mapping[str, str]:
    """Return the stored form of a token, without its id, which is its name."""
    return {
        "owner": str(token.owner),
        "requester": str(token.requester),
        "renewers": json.dumps(token.renewers),
        "issued.ms": str(token.issued_ms),
        "expires.ms": str(token.expires_ms),
        "max.ms": str(token.max_ms),
    }


def decode_token(token_id: str, stored: Mapping[str, str]) -> DelegationToken | None:
    """Return a token from its stored form; None if that is invalid."""
    try:
        return DelegationToken(
            token_id,
            parse(stored["owner"]),
            parse(stored["requester"]),
            _renewers(stored["renewers"]),
            int(stored["issued.ms"]),
            int(stored["expires.ms"]),
            int(stored["max.ms"]),
        )
    except (KeyError, ValueError, RecursionError):
        return None


def _renewers(text: str) -> tuple[Principal, ...]:
    """Principals of any names, also empty ones. Raises ValueError."""
    pairs = json.loads(text)
    is_list = isinstance(pairs, list) and all(isinstance(pair, list) for pair in pairs)
    if not is_list or not all(list(map(type, pair)) == [str, str] for pair in pairs):
        raise ValueError("not a list of types and names")
    return tuple(Principal(*pair) for pair in pairs)

"""Rules for what users prove their identity with: SCRAM credentials and delegation tokens.

Owns the validation of requests, the error of each rejection, and a user's resulting config. It must
never see a password, only the salted one, store anything, or know a message; the time is an
argument. Invariants: credentials are stored beside a user's quotas under the same name, and a
change of either keeps the other; only the owner and the renewers change a token. Kafka's
``ScramControlManager``, but one request may change both mechanisms of a user, as in ZooKeeper mode,
and ``DelegationTokenControlManager``.
"""

from __future__ import annotations

import hmac
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.broker.metadata.image import (
    DELEGATION_TOKEN,
    EMPTY,
    USER,
    ChangeRejected,
    ConfigChanged,
    Image,
)
from minibroker.broker.quotas.types import desanitize, sanitize
from minibroker.broker.security.delegation_token import (
    DelegationToken,
    TokenLifetimes,
    decode_token,
    encode_token,
    later,
    token_hmac,
)
from minibroker.broker.security.principal import Principal
from minibroker.broker.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_NUMBERS,
    SALT_BYTES,
    Credential,
    CredentialShape,
    credential,
    credential_text,
    parse_credential,
    salted,
)
from minibroker.broker.settings import (
    DELEGATION_TOKEN_EXPIRY_TIME_MS,
    DELEGATION_TOKEN_MAX_LIFETIME_MS,
    LISTENERS,
    SASL_ENABLED_MECHANISMS,
    SASL_JAAS_CONFIG,
    Settings,
)
from minibroker_protocol.errors import ErrorCode

SCRAM_MODULE: Final = "ScramLoginModule"
"""Kafka's login module of SCRAM, without its package."""

SHAPES_MAX: Final = 16
"""Shapes of credentials that may be shown for unknown users."""


class CredentialChange(NamedTuple):
    """Requested change of one user and mechanism; without a credential it is deleted.

    ``mechanism`` is the requested number, which may be invalid.
    """

    user: str
    mechanism: int
    credential: Credential | None


def plan_credentials(
    image: Image, wanted: Sequence[CredentialChange]
) -> dict[str, ConfigChanged | ChangeRejected]:
    """Return the new config of each user, or the reason of the rejection."""
    by_user: dict[str, list[CredentialChange]] = {}
    for change in wanted:
        by_user.setdefault(change.user, []).append(change)
    return {user: _plan(image, user, changes) for user, changes in by_user.items()}


def _plan(
    image: Image, user: str, changes: Sequence[CredentialChange]
) -> ConfigChanged | ChangeRejected:
    key = sanitize(user)
    config = image.configs.get((USER, key), EMPTY)
    # Errors in this order: invalid, duplicate, not found.
    for rejection in (*map(_invalid, changes), _twice(changes)):
        if rejection is not None:
            return rejection
    for change in changes:
        mechanism = MECHANISM_NUMBERS[change.mechanism]
        if change.credential is None and mechanism not in config:
            text = "Attempt to delete a user credential that does not exist"
            return ChangeRejected(ErrorCode.RESOURCE_NOT_FOUND, text)
        config = _changed(change, config)
    return ConfigChanged(USER, key, config)


def wanted_users(settings: Settings, image: Image) -> Iterator[CredentialChange]:
    """Yield the credentials of SCRAM users in login modules of listeners that do not exist yet.

    As with PLAIN, ``user_alice="secret"`` in ``listener.name.NAME.scram-sha-512.sasl.jaas.config``.
    """
    for listener in settings[LISTENERS]:
        for number, mechanism in MECHANISM_NUMBERS.items():
            if mechanism not in settings.at_listener(listener.name, SASL_ENABLED_MECHANISMS):
                continue
            entry = settings.at_listener(listener.name, SASL_JAAS_CONFIG, mechanism)
            if entry is None or entry.module_name != SCRAM_MODULE:
                continue
            for user, password in entry.users.items():
                if number not in iterations(image, user):
                    salt = os.urandom(SALT_BYTES)
                    hashed = salted(mechanism, password, salt, ITERATIONS_MIN)
                    kept = credential(mechanism, hashed, salt, ITERATIONS_MIN)
                    yield CredentialChange(user, number, kept)


def _twice(changes: Sequence[CredentialChange]) -> ChangeRejected | None:
    if len({change.mechanism for change in changes}) == len(changes):
        return None
    text = "A user credential cannot be altered twice in the same request"
    return ChangeRejected(ErrorCode.DUPLICATE_RESOURCE, text)


def _invalid(change: CredentialChange) -> ChangeRejected | None:
    if not change.user:
        return ChangeRejected(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = MECHANISM_NUMBERS.get(change.mechanism)
    if mechanism is None:
        return ChangeRejected(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if change.credential is None:
        return None
    if change.credential.iterations < ITERATIONS_MIN:
        return ChangeRejected(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.credential.iterations > ITERATIONS_MAX:
        return ChangeRejected(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if _is_nobodys_secret(mechanism, change.credential):
        # Java rejects empty keys, and Kafka has no specific error code for it.
        text = "Empty key: the salted password is empty, so anybody could prove to be this user"
        return ChangeRejected(ErrorCode.UNKNOWN_SERVER_ERROR, text)
    return None


def _is_nobodys_secret(mechanism: str, kept: Credential) -> bool:
    return kept == credential(mechanism, b"", kept.salt, kept.iterations)


def _changed(change: CredentialChange, config: Mapping[str, str]) -> dict[str, str]:
    mechanism = MECHANISM_NUMBERS[change.mechanism]
    changed = {name: text for name, text in config.items() if name != mechanism}
    if change.credential is not None:
        changed[mechanism] = credential_text(change.credential)
    return changed


def iterations(image: Image, user: str) -> dict[int, int]:
    """Return the iterations of a user's credentials by mechanism number."""
    config = image.configs.get((USER, sanitize(user)), EMPTY)
    found = {
        number: parse_credential(config.get(name, "")) for number, name in MECHANISM_NUMBERS.items()
    }
    return {number: kept.iterations for number, kept in found.items() if kept is not None}


def shapes(image: Image, mechanism: str) -> tuple[CredentialShape, ...]:
    """Return iterations and salt lengths of users' credentials, most frequent first.

    Credentials with too few iterations are omitted: a server must not imitate those.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for (kind, _), config in image.configs.items():
        text = config.get(mechanism) if kind == USER else None
        kept = None if text is None else parse_credential(text)
        if kept is not None and kept.iterations >= ITERATIONS_MIN:
            counts[kept.iterations, len(kept.salt)] += 1
    return tuple(CredentialShape(*shape, count) for shape, count in counts.most_common(SHAPES_MAX))


def users(image: Image) -> Iterator[str]:
    """Yield the users with credentials."""
    for kind, name in sorted(image.configs):
        if kind == USER and "/" not in name:
            user = desanitize(name)
            if iterations(image, user):
                yield user


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

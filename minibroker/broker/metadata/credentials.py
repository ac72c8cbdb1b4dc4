"""Rules for SCRAM credentials: which may be set and removed, and a user's resulting config.

Owns the validation of requests and the text of each rejection. It must never see a password, only
the salted one. Invariant: credentials are stored beside a user's quotas under the same name, and a
change of either keeps the other. Kafka's ``ScramControlManager``, but one request may change both
mechanisms of a user, as in ZooKeeper mode.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.broker.metadata.image import EMPTY, USER, ChangeRejected, ConfigChanged, Image
from minibroker.broker.quotas.entity import desanitize, sanitize
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

"""Rules for ACLs, and their nodes in the store.

Owns the validation of requests, what a filter matches, what remains, and the text of each
rejection; and which nodes a pattern's ACLs use, in Kafka's two trees, their JSON, and the
notifications of their changes. The meaning of ACLs is in ``security.acl``. Invariant: an accepted
ACL is matched by the filter that repeats it; the store reads what Kafka's tools of ZooKeeper mode
write and they read what it writes, except that characters and names that cannot be part of a path
are percent-encoded, where Kafka loses or rejects them. Kafka's ``AclControlManager``,
``AclBindingFilter``, ``ZkAclStore`` and ``AclEntry``.
"""

from __future__ import annotations

import hmac
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from minibroker.broker.metadata.image import (
    DELEGATION_TOKEN,
    EMPTY,
    USER,
    AclsChanged,
    ChangeRejected,
    ConfigChanged,
    Image,
    Plan,
    plan_of,
)
from minibroker.broker.metadata.layout import LayoutError
from minibroker.broker.metadata.store.tree import Create, Delete, NoNodeError, Set, Store
from minibroker.broker.metadata.store.tree import Operation as Step
from minibroker.broker.quotas.types import desanitize, sanitize
from minibroker.broker.security.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclRule,
    Acls,
    Operation,
    Pattern,
    PatternType,
    Permission,
    Resource,
)
from minibroker.broker.security.principal import BadPrincipal, Principal, parse
from minibroker.broker.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_NUMBERS,
    SALT_BYTES,
    Credential,
    CredentialShape,
    DelegationToken,
    TokenLifetimes,
    credential,
    credential_text,
    decode_token,
    encode_token,
    later,
    parse_credential,
    salted,
    token_hmac,
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

_NO_FILTER: Final = ChangeRejected(
    ErrorCode.INVALID_REQUEST, "The filter has an element that is not known."
)


MatchingAcls = list[tuple[Pattern, AclRule]]
"""The ACLs that a filter matches."""


class Binding(NamedTuple):
    """An ACL as requested; its numbers may be invalid."""

    resource: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class Filter(NamedTuple):
    """Conditions on ACLs; null means any."""

    resource: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


def as_filter(message: Any, resource_type: int) -> Filter:
    """The filter of a request, or of one of its elements."""
    return Filter(
        resource_type,
        message.resource_name_filter,
        message.pattern_type_filter,
        message.principal_filter,
        message.host_filter,
        message.operation,
        message.permission_type,
    )


def check_binding(wanted: Binding) -> tuple[Pattern, AclRule] | ChangeRejected:
    """Return the pattern and the rule of a valid ACL, or the reason why it is invalid."""
    problem = _problem(wanted)
    if problem is not None:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, problem)
    pattern = Pattern(Resource(wanted.resource), wanted.name, PatternType(wanted.pattern_type))
    rule = AclRule(
        str(parse(wanted.principal)),
        wanted.host,
        Operation(wanted.operation),
        Permission(wanted.permission),
    )
    return pattern, rule


def _problem(wanted: Binding) -> str | None:
    known = (
        ("resourceType", wanted.resource, list(Resource)[2:]),
        ("patternType", wanted.pattern_type, [PatternType.LITERAL, PatternType.PREFIXED]),
        ("operation", wanted.operation, list(Operation)[2:]),
        ("permissionType", wanted.permission, [Permission.DENY, Permission.ALLOW]),
    )
    for what, value, allowed in known:
        if value not in allowed:
            return f"Invalid {what} {value}"
    if not wanted.name or not wanted.host:
        return f"{'Host' if wanted.name else 'Resource name'} should not be empty"
    if wanted.resource == Resource.CLUSTER and wanted.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    try:
        parse(wanted.principal)
    except BadPrincipal as bad:
        return f"Could not parse principal: {bad}"
    return None


def plan_acl_creation(
    image: Image, wanted: Sequence[Binding]
) -> Plan[tuple[ChangeRejected | None, ...]]:
    """Plan the new ACLs of each pattern; answer with the rejection of each ACL."""
    plans: list[AclsChanged | ChangeRejected] = []
    after: dict[Pattern, tuple[AclRule, ...]] = {}
    for one in wanted:
        checked = check_binding(one)
        if isinstance(checked, ChangeRejected):
            plans.append(checked)
            continue
        pattern, rule = checked
        rules = after.get(pattern, image.acls.get(pattern, ()))
        after[pattern] = rules if rule in rules else (*rules, rule)
        plans.append(AclsChanged(pattern, after[pattern]))
    return plan_of(plans)


def check_search(wanted: Filter) -> ChangeRejected | None:
    """Return why a filter for a search is invalid, or None if it is valid.

    Numbers that only newer clients know are valid and match nothing.
    """
    numbers = (wanted.resource, wanted.pattern_type, wanted.operation, wanted.permission)
    return None if all(numbers) else _NO_FILTER


def check_filter(wanted: Filter) -> ChangeRejected | None:
    """Return why a filter for a deletion is invalid, or None if it is valid."""
    known = (
        (wanted.resource, Resource),
        (wanted.pattern_type, PatternType),
        (wanted.operation, Operation),
        (wanted.permission, Permission),
    )
    if all(value and value in list(kind) for value, kind in known):
        return None
    return _NO_FILTER


def find(acls: Acls, wanted: Filter) -> Iterator[tuple[Pattern, AclRule]]:
    """Yield the ACLs that match a filter, sorted by pattern."""
    for pattern, rules in sorted(acls.items()):
        if _matches_pattern(pattern, wanted):
            for rule in rules:
                if _matches_rule(rule, wanted):
                    yield pattern, rule


def _matches_pattern(pattern: Pattern, wanted: Filter) -> bool:
    if wanted.resource not in (Resource.ANY, pattern.resource):
        return False
    any_or_match = (PatternType.ANY, PatternType.MATCH)
    if wanted.pattern_type not in (*any_or_match, pattern.type):
        return False
    if wanted.name is None or pattern.name == wanted.name:
        return True
    return wanted.pattern_type == PatternType.MATCH and (
        pattern.matches(wanted.name) if wanted.name != WILDCARD else False
    )


def _matches_rule(rule: AclRule, wanted: Filter) -> bool:
    return (
        wanted.principal in (None, rule.principal)
        and wanted.host in (None, rule.host)
        and wanted.operation in (Operation.ANY, rule.operation)
        and wanted.permission in (Permission.ANY, rule.permission)
    )


def plan_acl_deletion(
    image: Image, wanted: Sequence[Filter]
) -> Plan[list[MatchingAcls | ChangeRejected]]:
    """Plan the new ACLs of the patterns; answer with what each filter matches, or its rejection."""
    answers: list[MatchingAcls | ChangeRejected] = []
    deleted: dict[Pattern, set[AclRule]] = {}
    for one in wanted:
        found = check_filter(one) or list(find(image.acls, one))
        answers.append(found)
        if not isinstance(found, ChangeRejected):
            for pattern, rule in found:
                deleted.setdefault(pattern, set()).add(rule)
    changes = [
        AclsChanged(pattern, tuple(rule for rule in image.acls[pattern] if rule not in rules))
        for pattern, rules in deleted.items()
    ]
    return Plan(answers, changes)


def differing_acls(
    image: Image, stored: Mapping[Pattern, tuple[AclRule, ...]]
) -> list[AclsChanged]:
    """Return the stored ACLs of patterns that differ from the image."""
    return [
        AclsChanged(pattern, rules)
        for pattern, rules in stored.items()
        if set(rules) != set(image.acls.get(pattern, ()))
    ]


E = TypeVar("E", bound=IntEnum)

_NO_PATH_CHARACTER: Final = re.compile("[%/\x00-\x1f\x7f-\x9f\ue000-\uf8ff\ufff0-\uffff]")
"""Characters that ZooKeeper does not allow in a path, and those of the encoding itself."""

ACL_RESOURCES: Final = tuple(Resource)[2:]
ACL_ROOTS: Final[Mapping[PatternType, str]] = {
    PatternType.LITERAL: "/kafka-acl",
    PatternType.PREFIXED: "/kafka-acl-extended/prefixed",
}
ACL_CHANGES: Final[Mapping[PatternType, str]] = {
    PatternType.LITERAL: "/kafka-acl-changes",
    PatternType.PREFIXED: "/kafka-acl-extended-changes",
}
ACL_PATHS: Final = (*ACL_ROOTS.values(), *ACL_CHANGES.values())
"""Nodes that exist once there are rules to keep."""


def _kafka_word(value: IntEnum) -> str:
    """``TransactionalId`` for TRANSACTIONAL_ID."""
    return value.name.title().replace("_", "")


def _from_word(kind: type[E], word: str) -> E:
    for value in kind:
        if word.upper() in (_kafka_word(value).upper(), value.name):
            return value
    raise ValueError(f"{word} is not a {kind.__name__}")


def acl_path(pattern: Pattern) -> str:
    """The node that holds a pattern's rules."""
    name = _NO_PATH_CHARACTER.sub(lambda found: quote(found[0], safe=""), pattern.name)
    if name in (".", ".."):
        name = "%2E" * len(name)
    return f"{ACL_ROOTS[pattern.type]}/{_kafka_word(pattern.resource)}/{name}"


def encode_acls(rules: Sequence[AclRule]) -> bytes:
    """Encode the data of such a node."""
    acls = [
        {
            "principal": rule.principal,
            "permissionType": _kafka_word(rule.permission),
            "operation": _kafka_word(rule.operation),
            "host": rule.host,
        }
        for rule in rules
    ]
    return json.dumps({"version": 1, "acls": acls}, separators=(",", ":")).encode()


def decode_acls(path: str, data: bytes) -> tuple[AclRule, ...]:
    """Decode the rules in such data. Raises `LayoutError`."""
    try:
        return tuple(
            AclRule(
                str(found["principal"]),
                str(found["host"]),
                _from_word(Operation, found["operation"]),
                _from_word(Permission, found["permissionType"]),
            )
            for found in (json.loads(data)["acls"] if data else ())
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LayoutError(f"{path}: cannot be read as access rules: {error!r}") from None


def encode_acl_change(pattern: Pattern) -> bytes:
    """Encode the notification that a pattern's rules were written."""
    if pattern.type is PatternType.LITERAL:
        return f"{pattern.resource.name}:{pattern.name}".encode()
    fields = {
        "version": 1,
        "resourceType": pattern.resource.name,
        "name": pattern.name,
        "patternType": pattern.type.name,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_acl_change(path: str, data: bytes) -> Pattern:
    """Decode the pattern in such a notification. Raises `LayoutError`."""
    try:
        if data.startswith(b"{"):
            fields = json.loads(data)
            resource, name = fields["resourceType"], fields["name"]
            pattern_type = _from_word(PatternType, fields["patternType"])
        else:
            resource, name = data.decode().split(":", 1)
            pattern_type = PatternType.LITERAL
        return Pattern(_from_word(Resource, resource), str(name), pattern_type)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LayoutError(f"{path}: does not name a pattern: {error!r}") from None


async def load_acls(store: Store, pattern: Pattern) -> tuple[AclRule, ...]:
    """Read the rules of a pattern, which may be empty. Raises `LayoutError`."""
    path = acl_path(pattern)
    try:
        return decode_acls(path, (await store.get(path)).data)
    except NoNodeError:
        return ()


async def load_all_acls(store: Store) -> AsyncIterator[AclsChanged]:
    """Read all rules. Raises `LayoutError`."""
    for pattern_type, root in ACL_ROOTS.items():
        for resource in ACL_RESOURCES:
            try:
                names = await store.children(f"{root}/{_kafka_word(resource)}")
            except NoNodeError:
                continue
            for found in names:
                name = unquote(found)
                pattern = Pattern(resource, name, pattern_type)
                yield AclsChanged(pattern, await load_acls(store, pattern))


async def acl_steps(store: Store, changes: Sequence[AclsChanged]) -> list[Step]:
    """Return the operations that store the last of several changes of each pattern, and notify
    of it.
    """
    for path in ACL_PATHS if changes else ():
        await store.ensure(path)
    steps: list[Step] = []
    for pattern, rules in dict(changes).items():
        path = acl_path(pattern)
        is_there = await store.exists(path)
        if rules:
            await store.ensure(path.rpartition("/")[0])
            steps.append(
                Set(path, encode_acls(rules)) if is_there else Create(path, encode_acls(rules))
            )
        elif is_there:
            steps.append(Delete(path))
        path = f"{ACL_CHANGES[pattern.type]}/acl_changes_"
        steps.append(Create(path, encode_acl_change(pattern), sequential=True))
    return steps


# ---------- Rules for what users prove their identity with: SCRAM credentials and delegation tokens
# Owns the validation of requests, the error of each rejection, and a user's resulting config. It
# must never see a password, only the salted one, store anything, or know a message; the time is an
# argument. Invariants: credentials are stored next to a user's quotas under the same name, and a
# change of either keeps the other; only the owner and the renewers change a token. Kafka's
# ``ScramControlManager``, but one request may change both mechanisms of a user, as in ZooKeeper
# mode, and ``DelegationTokenControlManager``.


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
